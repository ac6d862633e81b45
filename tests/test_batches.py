"""Batches: who joins one, what is taken from the store, and what is left alone."""

import functools
import shutil
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from conftest import Terminal, experiment_tree, prepare_sweep

from ncpipe.commands.fill import fill_store
from ncpipe.commands.train import train as train_run
from ncpipe.config.params import load_params
from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared
from ncpipe.models import residual_block
from ncpipe.runs import batches
from ncpipe.runs.batches import groups, train_batches
from ncpipe.runs.store import checkpoint_of, has, saved_epochs, sweep_fingerprints
from ncpipe.system import console
from ncpipe.system.console import Progress
from ncpipe.system.errors import InputError
from ncpipe.training.checkpoints import Checkpoints, Stopped
from ncpipe.training.cost import bytes_per_run
from ncpipe.training.loop import train_batch
from ncpipe.training.session import Trained

train = functools.partial(train_run, workers=1)  # a batch in one piece, whatever the cores


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two depths and three seeds of one experiment, its data prepared."""
    monkeypatch.chdir(tmp_path)
    prepare_sweep([2, 3], [0, 1, 2], one=experiment_tree())
    return tmp_path


def stored() -> int:
    """Runs in the store."""
    return len([path for path in Path("data/.store").iterdir() if len(path.name) == 64])


def trained() -> list[str]:
    return sorted(str(path.parent.relative_to("data/runs")) for path in Path("data/runs").rglob("run.json"))


def test_train_trains_exactly_what_it_is_asked_for(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And takes what the store has. Red: other runs of the sweep that train beside it."""
    train("one", 2, 1)
    assert trained() == ["one/L2/s1"]
    assert stored() == 1
    fill_store(None, 1, 60.0)
    assert stored() == 6
    monkeypatch.setattr(batches, "train_batch", None)  # from here on nothing may train
    train("one", 2, 0)
    train("one", 2, 2)
    assert trained() == ["one/L2/s0", "one/L2/s1", "one/L2/s2"]
    assert "taken from the store" in capsys.readouterr().err


@pytest.mark.parametrize("back", [False, True])
def test_data_that_change_before_they_are_read_train_nothing(
    back: bool, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another command. Red: other data's result under the name of these, if they were compared before."""
    [first, *_] = sweep_fingerprints(load_params(), load_params().compute)
    shutil.copytree("data/prepared/one", "same")
    prepare_sweep([2], [0], one=experiment_tree(data=experiment_tree()["data"] | {"seed": 1}))
    shutil.move("data/prepared/one", "other")
    shutil.copytree("same", "data/prepared/one")
    read = batches.read_prepared

    def read_other(folder: Path) -> Prepared:
        shutil.rmtree(folder)
        shutil.copytree("other", folder)
        data = read(folder)
        if back:
            shutil.rmtree(folder)
            shutil.copytree("same", folder)
        return data

    monkeypatch.setattr(batches, "read_prepared", read_other)
    with pytest.raises(InputError, match="data/prepared/one: changed while the command ran"):
        train_batches([[first]], 1, 60.0, Progress("train", 1, 1.0))
    assert not has(first.key())


def test_the_bar_counts_all_runs_and_goes_on_from_the_checkpoint(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three runs are trained, three were stopped after 12 of 20 epochs."""
    train("one", 2)
    fingerprints = [s for s in sweep_fingerprints(load_params(), load_params().compute) if s.run.depth == 3]
    runs, files = [s.run for s in fingerprints], Checkpoints([checkpoint_of(s) for s in fingerprints], 0.0)
    seen = iter(range(100))
    data, cpu = batches.read_prepared(Path("data/prepared/one")), torch.device("cpu")
    with pytest.raises(Stopped):
        train_batch(runs, data, cpu, "float32", checkpoints=files, stop=lambda: next(seen) == 12)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(console, "REFRESH", 0.0)
    monkeypatch.setenv("COLUMNS", "150")
    fill_store(None, 1, 60.0)
    bars = [text for text in terminal.getvalue().split("\r") if "|" in text]
    assert bars[0].startswith("fill:  60%|")
    assert "3 of 6 runs, " in bars[0]
    shown = [text for text in bars if "epoch 16 of 20, loss 0." in text]
    assert shown[0].startswith("fill:  80%|")
    announced = "train one L=3 seed=0 together with one seed 1, one seed 2: L-RN1 on cpu"
    assert announced in "\n".join(terminal.screen)


def test_jobs_share_the_runs_of_a_shape(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two shapes of three seeds each. Red: one job that claims a shape whole, and others that wait for it."""
    fill_store(None, 1, 60.0, jobs=3)
    assert "fill: 6 runs to train in 6 batches on cpu, 1 at a time" in capsys.readouterr().err
    assert stored() == 6


def full_gpu() -> None:
    raise torch.OutOfMemoryError


def full_cpu() -> None:
    torch.empty(2**50)


@pytest.mark.parametrize("fail", [full_gpu, full_cpu])
def test_out_of_memory_halves_the_batch(
    fail: Callable[[], None],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And one run that does not fit is a line. Red: only a GPU's error is known."""
    tried = []
    memory: list[weakref.ref[torch.Tensor]] = []

    def limited(runs: list[Run], *rest: Any) -> list[Trained]:
        assert not [ref for ref in memory if ref() is not None], "what ran out is still held"
        taken = torch.zeros(1)
        memory.append(weakref.ref(taken))
        tried.append(len(runs))
        if len(runs) > 1:
            fail()
        return original(runs, *rest)

    original = batches.train_batch
    monkeypatch.setattr(batches, "train_batch", limited)
    train("one", 2)
    assert tried == [3, 1, 2, 1, 1]
    assert stored() == 3
    assert "out of memory on cpu, retrying with batches of 1" in capsys.readouterr().err

    monkeypatch.setattr(batches, "train_batch", lambda *rest: fail())
    with pytest.raises(InputError, match=r"one run does not fit on cpu; make model\.width, .* smaller"):
        train("one", 3, 2)


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "lbfgs", "learning_rate": 1.0, "memory": 5},
        {"name": "torch", "class": "NAdam", "learning_rate": 0.01},
    ],
)
def test_what_trains_one_at_a_time_is_stored_one_at_a_time(
    optimizer: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the third run, whose checkpoint is written. Red: the two finished runs are lost."""
    monkeypatch.chdir(tmp_path)
    prepare_sweep([2], [0, 1, 2, 3], one=experiment_tree() | {"optimizer": optimizer})
    params, stop = load_params(), threading.Event()
    fingerprints = sweep_fingerprints(params, params.compute)

    class Watched(Progress):
        epochs = 0

        def add(self, work: float, batch: str, epoch: str, loss: Callable[[], float]) -> None:
            self.epochs += 1
            if self.epochs == 2 * 21 + 5:  # 20 epochs and the start
                stop.set()

    progress = Watched("train", 4, 1.0)
    with pytest.raises(Stopped):
        train_batches(groups(fingerprints), 1, 60.0, progress, stop=stop)
    assert [has(fingerprint.key()) for fingerprint in fingerprints] == [True, True, False, False]
    assert [saved_epochs(fingerprint) for fingerprint in fingerprints] == [0, 0, 5, 0]
    train_batches(groups(fingerprints[2:]), 1, 60.0, Progress("train", 2, 1.0))
    assert all(has(fingerprint.key()) for fingerprint in fingerprints)


def test_a_batch_takes_what_fits_in_memory(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    params = load_params()
    data = batches.read_prepared(Path("data/prepared/one"))
    need = bytes_per_run(params.run("one", 2, 0), data, torch.device("cpu"), torch.float32)
    free = type("Memory", (), {"available": int(2.5 * need / batches.MEMORY_SHARE)})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    train("one", 2)
    assert "batches of 2 of 3 runs" in capsys.readouterr().err
    assert stored() == 3


@pytest.mark.parametrize(
    ("compiled", "matrices", "columns"), [(False, 3, 2), (True, 1.25, 1)], ids=["operations", "compiled"]
)
def test_memory_grows_with_depth_and_samples(
    compiled: bool, matrices: float, columns: int, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block of L-RN1 keeps its input, the sum before LN, ReLU's output, LN's two statistics and its ones.

    Compiled it keeps its input, a byte for each entry of the ReLU, and one statistic of LN.
    """
    monkeypatch.setattr(residual_block, "can_compile", lambda: compiled)
    monkeypatch.setattr(residual_block, "FEWEST_NUMBERS", 0)
    params = load_params()
    data = batches.read_prepared(Path("data/prepared/one"))
    twice = Prepared("vector", 3, None, data.train[torch.arange(48) % 24], data.test, {})
    run = params.run("one", 2, 0)

    def need(depth: int, prepared: Prepared) -> int:
        deeper = Run("one", depth, 0, run.spec)
        return bytes_per_run(deeper, prepared, torch.device("cpu"), torch.float32)

    block = need(9, data) - need(8, data)
    weights = 8 * 4 * (64 + 16)  # one matrix and its bias, padded to 64 bytes
    activations = block - weights
    assert matrices * 24 * 8 * 4 <= activations <= 1.2 * (matrices * 24 * 8 + columns * 24 + 8) * 4 + 1
    assert need(9, twice) - need(8, twice) - weights == pytest.approx(2 * activations, rel=0.02)
