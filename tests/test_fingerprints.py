"""What a run's result depends on: what tells runs apart, what lets them train side by side, what is said."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import experiment, vector_data

from ncpipe.config.run import Compute, Run
from ncpipe.runs.fingerprint import RunFingerprint, check_run, fingerprint_of, is_current
from ncpipe.runs.run_folder import read_history, read_state, write_run
from ncpipe.runs.store import checkpoint_of
from ncpipe.system.errors import InputError
from ncpipe.training.loop import train_batch

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
    "start": ["halves"],
}
BESIDE: dict[str, list[Any]] = {  # what runs of one batch may differ in
    "penalty": [
        {"rule": "over_depth", "value": 0.005, "last_layer": None},
        {"rule": "constant", "value": 0.1, "last_layer": 0.2},
    ],
    "optimizer": [{"name": "adam", "learning_rate": 0.02, "beta1": 0.8, "beta2": 0.9, "eps": 1e-6}],
}


def fingerprint(
    depth: int = 3, seed: int = 0, data: str = "a", compute: Compute = CPU, **changes: Any
) -> RunFingerprint:
    return fingerprint_of(Run("x", depth, seed, experiment(**changes)), data, compute)


def changed(changes: dict[str, list[Any]]) -> list[RunFingerprint]:
    return [fingerprint(**{key: value}) for key, values in changes.items() for value in values]


ELSEWHERE = [
    fingerprint(depth=4),
    fingerprint(data="b"),
    fingerprint(compute=Compute("cpu", 2, "float32")),
    fingerprint(compute=Compute("cpu", 1, "float64")),
]


def test_every_key_of_an_experiment_is_tried() -> None:
    """Red: a new key that neither keeps runs apart nor is known to let them train side by side."""
    fields = {field.name for field in dataclasses.fields(fingerprint().run.spec)}
    assert fields == {*OTHER, *BESIDE, "data", "augmentation"}  # the last in test_batch_norm_networks


@pytest.mark.parametrize(
    "other", [*changed(OTHER), *ELSEWHERE, fingerprint(compute=Compute("auto", 1, "float32"))]
)
def test_what_trains_apart(other: RunFingerprint) -> None:
    """Another loss, schedule, batch, log, shape, depth, data set or way to compute. Red: CE and MSE in one
    batch, which has one loss."""
    assert other.batch_key() != fingerprint().batch_key()


@pytest.mark.parametrize("other", [*changed(BESIDE), fingerprint(seed=1)])
def test_what_trains_side_by_side(other: RunFingerprint) -> None:
    assert other.batch_key() == fingerprint().batch_key()
    assert other.key() != fingerprint().key()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the run that `fingerprint()` is of."""
    path = tmp_path_factory.mktemp("runs") / "s0"
    (trained,) = train_batch([fingerprint().run], vector_data(), torch.device("cpu"), "float32")
    write_run(path, trained, fingerprint(), "cpu")
    return path


@pytest.mark.parametrize("other", [*changed(OTHER), *changed(BESIDE), *ELSEWHERE, fingerprint(seed=1)])
def test_a_folder_of_another_run_is_no_result(other: RunFingerprint, folder: Path) -> None:
    assert is_current(folder, fingerprint())
    assert other.key() != fingerprint().key()
    assert not is_current(folder, other)
    with pytest.raises(InputError, match="trained with another"):
        check_run(folder, other)


def test_the_device_asked_for_tells_checkpoints_apart_and_not_finished_runs() -> None:
    """A finished run is the result, whoever trained it; none goes on where another device began it.

    Red: a run that trains again because --device names another one; half a run of each."""
    away = fingerprint(compute=Compute("cuda", 1, "float32"))
    assert away.key() == fingerprint().key()
    assert checkpoint_of(away) != checkpoint_of(fingerprint())


def test_how_a_run_ended_is_recorded(tmp_path: Path) -> None:
    """One run of two diverges. Red: `finished` whatever happened; the other's weights or history."""
    wild = experiment(
        optimizer=SGD | {"learning_rate": 50.0, "momentum": 0.0},
        schedule={"name": "constant"},
        penalty={"rule": "constant", "value": 0.5, "last_layer": None},
    )
    tame = experiment(optimizer=SGD, schedule={"name": "constant"})
    fingerprints = [
        fingerprint_of(Run("x", 3, seed, spec), "a", CPU) for seed, spec in enumerate((tame, wild))
    ]
    ended = train_batch([one.run for one in fingerprints], vector_data(), torch.device("cpu"), "float32")
    outcomes = []
    for one, trained in zip(fingerprints, ended, strict=True):
        folder = tmp_path / f"s{one.run.seed}"
        write_run(folder, trained, one, "cpu")
        outcomes.append(json.loads((folder / "run.json").read_text())["outcome"])
        assert all(torch.equal(read_state(folder, one)[name], t) for name, t in trained.state.items())
        assert [row["epoch"] for row in read_history(folder)] == [p.epoch for p in trained.history]
    assert outcomes[0] == {"finished": True, "diverged_at_epoch": None}
    assert outcomes[1] == {"finished": False, "diverged_at_epoch": ended[1].diverged_at}
    assert ended[1].diverged_at is not None
