"""What idle workers do while a run trains that DVC asked for: the sweep's next batches, to the same bytes."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import experiment_tree, write_params

from ncpipe.artifacts import sha256_of
from ncpipe.commands import train as command
from ncpipe.commands.fetch import fetch
from ncpipe.commands.train import train
from ncpipe.params import load_params
from ncpipe.scheduling import ahead, batches, registry
from ncpipe.scheduling.pending import batch_lock, is_placed, sweep_stamps
from ncpipe.scheduling.store import checkpoint_of, waits
from ncpipe.specs import Run
from ncpipe.stamps import Stamp
from ncpipe.training.checkpoints import epochs_done


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two experiments of two depths and two seeds, their data prepared."""
    monkeypatch.chdir(tmp_path)
    write_params([2, 3], [0, 1], one=experiment_tree(), other=experiment_tree(model={"width": 9}))
    for name in ("one", "other"):
        fetch(name)
    monkeypatch.setattr(ahead, "LONGEST", 60.0)
    monkeypatch.setattr(ahead.psutil.Process, "create_time", lambda self: 0.0)  # this process is old
    return tmp_path


def stamps() -> dict[str, Stamp]:
    params = load_params()
    return {f"{s.run.experiment}-{s.run.depth}-{s.run.seed}": s for s in sweep_stamps(params, params.compute)}


def waiting() -> set[str]:
    """Runs that are trained and not in their places."""
    trained = {name for name, stamp in stamps().items() if waits(stamp.key())}
    return {name for name in trained if not is_placed(stamps()[name])}


def files(folder: str) -> dict[str, str]:
    place = Path("data/runs") / folder
    return {path.name: sha256_of(path) for path in place.rglob("*") if path.is_file()}


def test_all_that_is_short_is_trained_by_the_first_and_claimed_by_the_others(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: a worker that ends with its own batch; other bytes than a run has that trains alone."""
    train("one", 2, 1, workers=2, ahead=True)
    assert waiting() == set(stamps()) - {"one-2-1"}
    said = capsys.readouterr().err
    assert "train ahead other L=3 seed=0 together with other seed 1: " in said
    with monkeypatch.context() as patch:
        patch.setattr(batches, "train_batch", None)  # from here on nothing may train
        train("other", 3, 0, ahead=True)
    claimed = files("other/L3/s0")
    train("other", 3, 0, alone=True)
    assert files("other/L3/s0") == claimed
    assert len(claimed) == 10


def test_all_is_trained_at_once_where_dvc_will_ask_for_all(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: a second loading of PyTorch; the longest as the last, alone on its core; no word of the time."""
    deep = experiment_tree(model={"width": 9}, epochs=60)
    write_params([2, 3], [0, 1], one=experiment_tree(), other=deep)
    monkeypatch.setattr(ahead, "LONGEST", 0.0)
    monkeypatch.setattr(command, "dvc_wants_all", lambda: True)
    monkeypatch.setattr(batches, "seconds_per_epoch", lambda run, *rest: float(run.depth))
    taken = order_of_batches(monkeypatch)
    train("one", 2, 0, workers=1, ahead=True)
    assert taken == [("one", 2), ("other", 3), ("other", 2), ("one", 3)]
    assert waiting() == set(stamps()) - {"one-2-0"}


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["repro"], True),
        (["repro", "dvc.yaml"], True),
        (["--cd", "here", "repro", "-f", "train"], True),
        (["exp", "run", "-S", "experiments.train@x=1", "-n", "a"], True),
        (["repro", "train@one-2-0"], False),
        (["repro", "train", "train@one-2-0"], False),
        (["repro", "data/runs/one/L2/s0"], False),
        (["repro", "-s", "train"], False),
        (["queue", "start"], False),
        (["no such command"], False),
    ],
)
def test_what_dvc_was_asked_for(
    project: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], wanted: bool
) -> None:
    """Red: other runs trained for who wants one; a shell or a launcher between taken for DVC."""
    Path("dvc.yaml").write_text("stages: {train: {cmd: a}, plot: {cmd: b}}")

    class Parent:
        def __init__(self, *command: str) -> None:
            self.command = command

        def cmdline(self) -> list[str]:
            return list(self.command)

    for program in (
        ["/env/bin/python", "/env/bin/dvc"],
        ["python", "-P", "-m", registry.PROGRAM],
        ["dvc.exe"],
    ):
        chain = [Parent("/bin/sh", "-c", "ncpipe train one 2 0"), Parent(*program, *arguments), Parent("dvc")]
        monkeypatch.setattr(registry.psutil.Process, "parents", lambda self, chain=chain: chain)
        assert registry.dvc_wants_all() is wanted


def test_no_dvc_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.psutil.Process, "parents", lambda self: [])
    assert not registry.dvc_wants_all()


def test_those_behind_the_asked_for_come_first(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = order_of_batches(monkeypatch)
    train("one", 3, 0, workers=1, ahead=True)
    assert taken == [("one", 3), ("other", 2), ("other", 3), ("one", 2)]


def test_what_is_begun_goes_on_in_its_own_stage(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: a stage that waits for what it was not asked for; work that is lost; another run's bytes."""
    long = experiment_tree(model={"width": 9}, epochs=3000, log_every=100)
    write_params([2], [0], one=experiment_tree(), other=long)
    monkeypatch.setattr(ahead, "LONGEST", 0.0)
    begun = threading.Event()
    train_batch = batches.train_batch

    def patient(runs: Sequence[Run], *arguments: Any) -> Any:
        """The run that was asked for ends as soon as another is 10 epochs on its way."""
        if runs[0].experiment == "one":
            assert begun.wait(60)
            return train_batch(runs, *arguments)
        data, place, precision, on_epoch, *rest = arguments

        def watch(epoch: int, loss: Any) -> None:
            on_epoch(epoch, loss)
            if epoch == 10:
                begun.set()

        return train_batch(runs, data, place, precision, watch, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(batches, "train_batch", patient)
        train("one", 2, 0, workers=2, ahead=True)
    stamp = stamps()["other-2-0"]
    done = epochs_done(checkpoint_of(stamp))
    assert 10 <= done < 3000
    assert waiting() == set()
    capsys.readouterr()
    train("other", 2, 0, ahead=True)
    assert f"from the checkpoint after {done}" in capsys.readouterr().err
    resumed = files("other/L2/s0")
    train("other", 2, 0, alone=True)
    assert files("other/L2/s0") == resumed


def test_what_others_train_is_left_to_them(project: Path) -> None:
    """Red: two processes in one batch."""
    with batch_lock(stamps()["other-2-0"]):
        train("one", 2, 0, workers=2, ahead=True)
    assert waiting() == {"one-2-1", "one-3-0", "one-3-1", "other-3-0", "other-3-1"}


def test_what_dvc_would_restore_is_not_trained(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "cached_stages", lambda names: {n for n in names if "other" in n})
    train("one", 2, 0, workers=2, ahead=True)
    assert waiting() == {"one-2-1", "one-3-0", "one-3-1"}


def test_a_failure_ahead_is_its_own_stages(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: a run that fails because another does."""
    train_batch = batches.train_batch

    def failing(runs: Sequence[Run], *arguments: Any) -> Any:
        if runs[0].experiment == "other":
            raise RuntimeError("broken")
        return train_batch(runs, *arguments)

    monkeypatch.setattr(batches, "train_batch", failing)
    train("one", 2, 0, workers=2, ahead=True)
    assert waiting() == {"one-2-1", "one-3-0", "one-3-1"}
    assert "train ahead other L=2 seed=0: left to its own stage (broken)" in capsys.readouterr().err


def test_alone_is_alone(project: Path) -> None:
    train("one", 2, 0, alone=True, workers=2, ahead=True)
    assert waiting() == set()


def order_of_batches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    taken: list[tuple[str, int]] = []
    train_batch = batches.train_batch

    def noted(runs: Sequence[Run], *arguments: Any) -> Any:
        taken.append((runs[0].experiment, runs[0].depth))
        return train_batch(runs, *arguments)

    monkeypatch.setattr(batches, "train_batch", noted)
    return taken
