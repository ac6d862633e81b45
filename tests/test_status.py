"""`ncpipe status`: every run in the state that its files are in, without DVC and without torch."""

import shutil
from pathlib import Path

import pytest
from conftest import experiment_tree, write_params

from ncpipe.commands.fetch import fetch
from ncpipe.commands.status import status
from ncpipe.commands.train import train
from ncpipe.config.params import load_params
from ncpipe.datasets.prepared import read_prepared
from ncpipe.runs import run_claims
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.run_claims import claimed
from ncpipe.runs.store import checkpoint_of, saved_epochs, sweep_fingerprints
from ncpipe.system.artifacts import PREPARED
from ncpipe.training.checkpoints import Checkpoints, Stopped, epochs_done
from ncpipe.training.device import prepare_device
from ncpipe.training.loop import train_batch


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_claims, "INTERVAL", 0.0)
    write_params([2, 3], [0, 1], one=experiment_tree())
    return tmp_path


def stamp_of(depth: int, seed: int) -> RunFingerprint:
    params = load_params()
    grid = sweep_fingerprints(params, params.compute)
    return next(
        fingerprint for fingerprint in grid if (fingerprint.run.depth, fingerprint.run.seed) == (depth, seed)
    )


def rows(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """By L: the counts, as `runs=2 done=1`."""
    capsys.readouterr()
    status()
    head, *lines = capsys.readouterr().out.splitlines()
    names = head.split()[2:]
    by_depth = {}
    for line in lines:
        words = line.split()
        if words[:1] == ["one"] and words[1].isdigit():
            counts = zip(names, words[2:], strict=True)
            by_depth[words[1]] = " ".join(f"{name}={count}" for name, count in counts)
    return by_depth


def test_a_run_goes_from_waiting_to_done_and_stale(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Red: a state that follows from a folder's name alone; a column of zeros."""
    assert rows(capsys)["2"] == "runs=2 waiting=2"
    fetch("one")
    train("one", 2, workers=1)
    shutil.rmtree("data/runs/one/L2/s0")
    assert rows(capsys) == {
        "2": "runs=2 done=1 trained=1 waiting=·",
        "3": "runs=2 done=· trained=· waiting=2",
    }
    write_params([2, 3], [0, 1], one=experiment_tree(epochs=21))
    assert rows(capsys)["2"] == "runs=2 stale=1 waiting=1"


def test_a_batch_in_training_says_where_it_is(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Red: an epoch that is not the batch's; a checkpoint that counts while its batch trains."""
    fetch("one")
    pair = [stamp_of(3, 0), stamp_of(3, 1)]
    data, lines = read_prepared(PREPARED / "one"), []
    checkpoints = Checkpoints([checkpoint_of(fingerprint) for fingerprint in pair], 0.0)

    def watch(epoch: int, loss: object) -> None:
        claim.beat(epoch, 7200.0)
        if epoch == 7:
            lines.append(rows(capsys)["3"])
            status()

    place = prepare_device(pair[0].compute)
    runs = [fingerprint.run for fingerprint in pair]
    with claimed(pair) as claim, pytest.raises(Stopped):
        train_batch(runs, data, place, "float32", watch, checkpoints, lambda: len(lines) > 0)
    said = capsys.readouterr().out
    assert lines == ["runs=2 training=2 waiting=·"]
    assert "one L=3 seed=0 and 1 more: epoch 7 of 20, about " in said
    assert "\nall training: about 2.0 h left\n" in said
    assert rows(capsys)["3"] == "runs=2 stopped=2 waiting=·"
    assert saved_epochs(pair[0]) == epochs_done(checkpoint_of(pair[0])) > 0


def test_why_a_run_could_not_be_trained_is_kept_until_it_is(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a log that stays when all is well; one of what was only stopped."""
    fetch("one")
    for error, state in ((Stopped(), "waiting"), (RuntimeError("a bug"), "failed")):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr("ncpipe.runs.batches.train_batch", fail)
            with pytest.raises(type(error)):
                train("one", 2, 0, workers=1)
        assert f"{state}=1" in rows(capsys)["2"] or state == "waiting"
        assert bool(list(project.glob("data/logs/failed-*"))) == (state == "failed")
    status()
    assert "one L=2 seed=0: failed, see data/logs/failed-one-L2-s0.log" in capsys.readouterr().out
    said = (project / "data/logs/failed-one-L2-s0.log").read_text()
    assert said.startswith("one L=2 seed=0: a bug\n")
    assert "Traceback" in said
    train("one", 2, 0, workers=1)
    assert not list(project.glob("data/logs/failed-*"))
