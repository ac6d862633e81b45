"""Runs that were stopped end with the same bytes as runs that were not."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import (
    before_calls,
    experiment,
    experiment_tree,
    prepare_sweep,
    vector_data,
    write_params,
)
from pipeline import HEAR_CTRL_C
from training_cases import assert_same, files_of, go_on, stop_after

from ncpipe.commands.train import train
from ncpipe.config.params import load_params
from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared
from ncpipe.runs.run_claims import claims
from ncpipe.runs.store import checkpoint_of, sweep_fingerprints
from ncpipe.runs.store_layout import ALONE
from ncpipe.training import checkpoints
from ncpipe.training.checkpoints import Checkpoints, epochs_done, read_checkpoint
from ncpipe.training.loop import train_batch

CPU = torch.device("cpu")


def test_stopped_at_any_epoch_before_and_after_it_diverges(tmp_path: Path) -> None:
    """Red: a checkpoint without the last weights whose loss is finite, which the next epoch may ask for."""
    spec = experiment(
        optimizer={"name": "sgd", "learning_rate": 50.0, "momentum": 0.0},
        schedule={"name": "constant"},
        penalty={"rule": "constant", "value": 0.5, "last_layer": None},
        epochs=30,
        log_every=100,
    )
    runs, data = [Run("x", 3, 0, spec)], vector_data()
    (never,) = train_batch(runs, data, CPU, "float32")
    assert never.diverged_at is not None
    assert 4 < never.diverged_at < 29
    for epoch in range(never.diverged_at - 3, never.diverged_at + 2):
        stop_after(epoch, runs, data, tmp_path / str(epoch))
        assert_same(go_on(runs, data, tmp_path / str(epoch)), [never])


def test_states_after_different_numbers_of_epochs_are_not_mixed(tmp_path: Path) -> None:
    """Nor is anything taken up where one of the runs has none: a batch begins anew, or is split before."""
    spec = experiment(epochs=9)
    runs, data = [Run("x", 3, seed, spec) for seed in (0, 1)], vector_data()
    for run, epoch in zip(runs, (4, 6), strict=True):
        stop_after(epoch, [run], data, tmp_path)
    assert files_of(runs, tmp_path).read() == []
    never = train_batch(runs, data, CPU, "float32")
    assert_same(go_on(runs, data, tmp_path), never)
    (tmp_path / "1").unlink()
    assert files_of(runs, tmp_path).read() == []
    assert [state["epoch"] for state in files_of(runs[:1], tmp_path).read()] == [4]


Stopped = tuple[list[Run], Prepared]


@pytest.fixture
def stopped(tmp_path: Path) -> Stopped:
    """Two runs that were stopped after 4 of 9 epochs; their checkpoints are tmp_path / "0" and "1"."""
    spec = experiment(epochs=9)
    runs, data = [Run("x", 3, seed, spec) for seed in (0, 1)], vector_data()
    stop_after(4, runs, data, tmp_path)
    return runs, data


def exchange(file: Path) -> None:
    other = file.with_name("1")
    content = file.read_bytes()
    file.write_bytes(other.read_bytes())
    other.write_bytes(content)


def raise_epoch(file: Path) -> None:
    head, epoch, rest = file.read_bytes().partition(b"\n4\n")
    file.write_bytes(head + epoch.replace(b"4", b"5") + rest)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "emptied": (lambda file: file.write_bytes(b""), "damaged"),
    "cut short": (lambda file: file.write_bytes(file.read_bytes()[:-1]), "damaged"),
    "a raised epoch": (raise_epoch, "damaged"),
    "exchanged": (exchange, "another run's checkpoint"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_no_checkpoint_of_a_run_is_dropped_unread(
    name: str, stopped: Stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Red: anything loaded before it is known to be what was written; a message of several lines."""
    damage, reason = DAMAGES[name]
    damage(tmp_path / "0")
    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", lambda *rest, **more: pytest.fail("loaded"))
        assert epochs_done(tmp_path / "0") == 0
        assert os.path.lexists(tmp_path / "0")  # who only asks changes nothing
        assert read_checkpoint(tmp_path / "0") is None
    assert not os.path.lexists(tmp_path / "0")
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path / '0'}: ")
    assert reason in line
    runs, data = stopped
    assert_same(go_on(runs, data, tmp_path), train_batch(runs, data, CPU, "float32"))


def test_a_checkpoint_of_another_torch_is_dropped(
    stopped: Stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its generators and numbers may be others. Red: a run of which each version trained a part."""
    monkeypatch.setattr(checkpoints, "KIND", checkpoints.KIND.replace(b"torch 2", b"torch 3"))
    assert epochs_done(tmp_path / "0") == 0
    assert read_checkpoint(tmp_path / "0") is None


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "Too many open files"), MemoryError()])
def test_one_that_cannot_be_read_now_stays(
    error: Exception, stopped: Stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: hours of training deleted for want of memory or of a free descriptor."""

    def fail(file: Path) -> bytes:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        with pytest.raises(type(error)):
            read_checkpoint(tmp_path / "0")
    assert read_checkpoint(tmp_path / "0") is not None


WRITES = ((torch, "save"), (checkpoints, "reach_disk"), (os, "replace"))


@pytest.mark.parametrize("call", range(5))
def test_a_full_disk_leaves_the_former_checkpoints(
    call: int, stopped: Stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The n-th of the calls that bring two checkpoints to the disk fails. Red: one written, one not, which
    then train apart; a partial file that stays."""
    runs, data = stopped
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    calls = iter(range(100))

    def fail() -> None:
        if next(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        before_calls(patch, WRITES, fail)
        asked = iter(range(9))
        files = files_of(runs, tmp_path)
        with pytest.raises(OSError, match="No space"):
            train_batch(runs, data, CPU, "float32", checkpoints=files, stop=lambda: next(asked) == 2)
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert left.keys() == before.keys()
    if call < 4:  # the last comes when the first is in its place
        assert left == before
    assert_same(go_on(runs, data, tmp_path), train_batch(runs, data, CPU, "float32"))


RIVALS: dict[str, Callable[[Checkpoints, list[Any]], object]] = {
    "writes": lambda rival, states: rival.write(states),
    "resumes": lambda rival, states: rival.read(),
    "finishes": lambda rival, states: rival.remove(),
}


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("name", RIVALS)
def test_two_processes_that_train_a_batch_leave_whole_checkpoints(
    name: str, at: int, stopped: Stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each believes the other to have been killed, as on two machines. Red: one that ends with an error; a
    file of which each wrote a part; a partial file that stays."""
    runs, _ = stopped
    files, rival = files_of(runs, tmp_path), files_of(runs, tmp_path)
    states, acts = files.read(), iter([False] * at + [True])
    with monkeypatch.context() as patch:
        before_calls(patch, WRITES, lambda: next(acts, False) and RIVALS[name](rival, states))
        files.write(states)
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {path.name for path in files.files}
    assert all(epochs_done(tmp_path / file) == states[0]["epoch"] for file in left)
    assert name == "finishes" or len(left) == len(runs)


def test_what_a_kill_left_of_a_checkpoint_is_removed(project: Path) -> None:
    """By the next command that trains the run. Red: a full disk that stays full."""
    write_params([3], [0, 1], one=experiment_tree(epochs=20))
    params = load_params()
    [one, other] = sweep_fingerprints(params, params.compute)
    ALONE.mkdir()
    left, others = [file.with_name(f".{file.name}.12ab") for file in map(checkpoint_of, (one, other))]
    for half in (left, others):
        half.write_bytes(b"half")
    assert Checkpoints([checkpoint_of(one)], 60.0).read() == []
    assert not left.exists()  # before training, which may need the room
    left.write_bytes(b"half")
    train("one", 3, 0)
    assert not left.exists()
    assert others.exists()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One experiment whose three seeds train for half a second or so, its data prepared."""
    monkeypatch.chdir(tmp_path)
    prepare_sweep([3], [0, 1, 2], one=experiment_tree(epochs=300, log_every=10))
    return tmp_path


TRAIN = [sys.executable, "-m", "ncpipe", "train", "--experiment", "one", "--depth", "3"]


def wait_for_epochs(process: subprocess.Popen[str], runs: int) -> None:
    """Until so many runs train, each with an epoch done."""
    assert process.stderr is not None
    for words in ("loading PyTorch", f"{runs} runs to train", "L-RN1 on cpu"):
        assert words in process.stderr.readline()
    end = time.monotonic() + 600
    while sum(len(claim.keys) for claim in claims() if claim.epoch) < runs:
        assert time.monotonic() < end, "no epoch"
        time.sleep(0.1)


# Where DVC runs a stage: a shell between it and the stage.
DVC = """
import subprocess, sys
subprocess.run(["/bin/sh", "-c", sys.argv[1]])
"""
STOPS: dict[str, tuple[list[str], dict[str, str], signal.Signals]] = {
    "Ctrl-C": ([sys.executable, "-c", HEAR_CTRL_C, *TRAIN], {}, signal.SIGINT),
    "the end of DVC": (
        [sys.executable, "-c", DVC, " ".join(TRAIN) + "; true"],
        {"DVC_STAGE": "train@one-3-0"},
        signal.SIGTERM,
    ),
}


@pytest.mark.skipif(os.name == "nt", reason="stops a parent by a signal")
@pytest.mark.parametrize("name", STOPS)
def test_what_is_stopped_keeps_what_was_trained(name: str, project: Path) -> None:
    """Red: checkpoints that are only written at their time; a training that goes on beside the next
    `dvc repro`; SIGTERM left as it is, which ends all at once."""
    write_params([3], [0, 1], one=experiment_tree(epochs=100_000))
    command, more, how = STOPS[name]
    environment = os.environ | {"NCPIPE_CHECKPOINT_SECONDS": "1e6", "NCPIPE_WORKERS": "2"} | more
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        wait_for_epochs(process, 2)
        process.send_signal(how)
        _, said = process.communicate(timeout=600)  # to its end: nobody holds the pipe any more
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert process.returncode == (130 if name == "Ctrl-C" else -signal.SIGTERM)
    assert said.splitlines()[-1].startswith("ncpipe: interrupted")
    files = sorted(Path("data/.store").glob("*.checkpoint"))
    assert [epochs_done(file) > 0 for file in files] == [True, True]
