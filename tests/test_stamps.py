"""What a run's result depends on: what tells runs apart, what lets them train side by side, what is said."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import experiment, experiment_tree, vector_data, write_params

from ncpipe.code_memory import MEMORY
from ncpipe.commands import sweep
from ncpipe.commands.fetch import fetch
from ncpipe.commands.train import train
from ncpipe.errors import InputError
from ncpipe.params import load_params
from ncpipe.scheduling import registry
from ncpipe.specs import Compute, Run
from ncpipe.stamps import Stamp, check_run, forget_code, is_current
from ncpipe.training.loop import train_batch
from ncpipe.training.run_folder import read_history, read_state, write_run

CPU = Compute("cpu", 1, "float32")
SGD = {"name": "sgd", "learning_rate": 0.01, "momentum": 0.9}
# One change of every key of an experiment that is not its data, the words of a list below one another.
OTHER: dict[str, list[Any]] = {
    "model": [{"width": 9}, {"norm": "pre"}, {"gain": 2.0}, {"layer_norm_eps": 0.0}, {"last_bias": True}],
    "loss": ["mse"],
    "optimizer": [SGD],
    "schedule": [{"name": "constant"}, {"name": "cosine", "final": 0.1}],
    "epochs": [21],
    "batch_size": [6],
    "log_every": [4],
    "history": [{"at": [0.5], "metrics": ["nc2_etf"]}],
}
BESIDE: dict[str, list[Any]] = {  # what runs of one batch may differ in
    "penalty": [
        {"rule": "over_depth", "value": 0.005, "last_layer": None},
        {"rule": "constant", "value": 0.1, "last_layer": 0.2},
    ],
    "optimizer": [{"name": "adam", "learning_rate": 0.02, "beta1": 0.8, "beta2": 0.9, "eps": 1e-6}],
}


def stamp(depth: int = 3, seed: int = 0, data: str = "a", compute: Compute = CPU, **changes: Any) -> Stamp:
    return Stamp(Run("x", depth, seed, experiment(**changes)), data, compute)


def changed(changes: dict[str, list[Any]]) -> list[Stamp]:
    return [stamp(**{key: value}) for key, values in changes.items() for value in values]


ELSEWHERE = [
    stamp(depth=4),
    stamp(data="b"),
    stamp(compute=Compute("cpu", 2, "float32")),
    stamp(compute=Compute("cpu", 1, "float64")),
]


def test_every_key_of_an_experiment_is_tried() -> None:
    """Red: a new key that neither keeps runs apart nor is known to let them train side by side."""
    fields = {field.name for field in dataclasses.fields(stamp().run.spec)}
    assert fields == {*OTHER, *BESIDE, "data", "augmentation"}  # the last in test_batch_norm_networks


@pytest.mark.parametrize("other", [*changed(OTHER), *ELSEWHERE, stamp(compute=Compute("auto", 1, "float32"))])
def test_what_trains_apart(other: Stamp) -> None:
    """Another loss, schedule, batch, log, shape, depth, data set or way to compute. Red: CE and MSE in one
    batch, which has one loss."""
    assert other.batch_key() != stamp().batch_key()


@pytest.mark.parametrize("other", [*changed(BESIDE), stamp(seed=1)])
def test_what_trains_side_by_side(other: Stamp) -> None:
    assert other.batch_key() == stamp().batch_key()
    assert other.key() != stamp().key()


@pytest.mark.parametrize("other", [*changed(OTHER), *changed(BESIDE), *ELSEWHERE, stamp(seed=1)])
def test_a_folder_of_another_run_is_no_result(other: Stamp, tmp_path: Path) -> None:
    (trained,) = train_batch([stamp().run], vector_data(), torch.device("cpu"), "float32")
    write_run(tmp_path / "s0", trained, stamp(), "cpu")
    assert is_current(tmp_path / "s0", stamp())
    assert other.key() != stamp().key()
    assert not is_current(tmp_path / "s0", other)
    with pytest.raises(InputError, match="trained with another"):
        check_run(tmp_path / "s0", other)


def test_the_device_asked_for_tells_waiting_runs_apart_and_not_finished_ones() -> None:
    """On a GPU the numbers are others, to rounding: a run that waits there is not the one asked for here."""
    away = stamp(compute=Compute("cuda", 1, "float32"))
    assert away.key() != stamp().key()
    assert away.inputs() == stamp().inputs()


def test_how_a_run_ended_is_recorded(tmp_path: Path) -> None:
    """One run of two diverges. Red: `finished` whatever happened; the other's weights or history."""
    wild = experiment(
        optimizer=SGD | {"learning_rate": 50.0, "momentum": 0.0},
        schedule={"name": "constant"},
        penalty={"rule": "constant", "value": 0.5, "last_layer": None},
    )
    tame = experiment(optimizer=SGD, schedule={"name": "constant"})
    stamps = [Stamp(Run("x", 3, seed, spec), "a", CPU) for seed, spec in enumerate((tame, wild))]
    ended = train_batch([one.run for one in stamps], vector_data(), torch.device("cpu"), "float32")
    outcomes = []
    for one, trained in zip(stamps, ended, strict=True):
        folder = tmp_path / f"s{one.run.seed}"
        write_run(folder, trained, one, "cpu")
        outcomes.append(json.loads((folder / "run.json").read_text())["outcome"])
        assert all(torch.equal(read_state(folder, one)[name], t) for name, t in trained.state.items())
        assert [row["epoch"] for row in read_history(folder)] == [p.epoch for p in trained.history]
    assert outcomes[0] == {"finished": True, "diverged_at_epoch": None}
    assert outcomes[1] == {"finished": False, "diverged_at_epoch": ended[1].diverged_at}
    assert ended[1].diverged_at is not None


@pytest.mark.parametrize("before", [None, "schema: '2.0'\n"])
@pytest.mark.parametrize("edit", ["params", "code", "comment"])
@pytest.mark.parametrize("whole", [True, False])
def test_an_edit_while_dvc_registers_takes_the_lock_back(
    whole: bool, edit: str, before: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs were right before `dvc commit`, which takes params.yaml and code as they are when it reads
    them; even an edit that changes no run may have been half read."""
    monkeypatch.chdir(tmp_path)
    write_params([3], [0, 1], one=experiment_tree())
    fetch("one")
    forget_code()  # an edit of the case before
    train("one", 3, 0, workers=1)
    compute = load_params().compute
    if before is not None:
        registry.LOCK.write_text(before)

    def commit(stages: object) -> None:
        registry.LOCK.write_text("of another time")
        if edit == "code":
            monkeypatch.setattr("ncpipe.stamps.training_digests", lambda _: {"a module": "another digest"})
            MEMORY.unlink(missing_ok=True)  # whose files are other ones after a real edit
        elif edit == "params":
            write_params([3], [0, 1], one=experiment_tree(epochs=21))
        else:
            Path("params.yaml").write_text(Path("params.yaml").read_text() + "# a comment\n")

    monkeypatch.setattr(sweep, "register", commit)
    with pytest.raises(InputError, match="changed while"):
        sweep._register(compute, {"train@one-3-1"}, whole)
    assert (registry.LOCK.read_text() if registry.LOCK.exists() else None) == before
