"""Series of runs in several processes: the same rows as in one, and no loss when one is ended."""

import os
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from conftest import write_params
from training_cases import free_tree

import ncpipe.papers.s24.series_training as module
from ncpipe.config.params import load_params
from ncpipe.config.run import Compute, Run
from ncpipe.papers.s24.series_training import train_series
from ncpipe.runs.fingerprint import fingerprint_of
from ncpipe.runs.store import checkpoint_of, saved_epochs
from ncpipe.system.errors import InputError
from ncpipe.training.checkpoints import Stopped
from ncpipe.training.session import Trained

COMPUTE = Compute("cpu", 1, "float32")
EPOCHS = 12


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Five runs of two widths."""
    monkeypatch.chdir(tmp_path)
    write_params([3], [0], x=free_tree(epochs=EPOCHS, log_every=1))
    with Path("params.yaml").open("a", encoding="utf-8") as file:
        file.write("\nseries: {x: {depth: 3, axis: model.width, values: [8, 9], seeds: [2, 0, 1]}}\n")
    return load_params().series_runs("x")[:5]


def history(trained: Trained, compute: Compute) -> tuple[str, int, list[Any]]:
    """What is measured here: which run it was, by which process, to the last digit of each row."""
    rows = [repr(point) for point in trained.history]
    return trained.run.name, os.getpid(), rows


def killed(trained: Trained, compute: Compute) -> None:
    """What the pool raises here for a process that something has ended."""
    raise BrokenProcessPool


def test_two_processes_give_what_one_gives(runs: list[Run]) -> None:
    done: list[int] = []
    one = train_series(runs, COMPUTE, 1, 60.0, history, done.append)
    assert [name for name, _, _ in one] == [run.name for run in runs]
    assert {process for _, process, _ in one} == {os.getpid()}
    assert done == [3, 2]
    two = train_series(runs, COMPUTE, 2, 60.0, history)
    assert [(name, rows) for name, _, rows in two] == [(name, rows) for name, _, rows in one]
    assert not list(Path("data/.store").glob("*"))


def test_a_process_that_is_ended_is_one_line(runs: list[Run]) -> None:
    with pytest.raises(InputError) as error:
        train_series(runs, COMPUTE, 1, 60.0, killed)
    assert str(error.value) == "x: a training process was killed; run dvc repro to resume"


@pytest.mark.parametrize(("workers", "sizes"), [(1, [3, 2]), (2, [2, 1, 1, 1]), (9, [1, 1, 1, 1, 1])])
def test_shapes_are_split_where_workers_would_be_idle(
    workers: int, sizes: list[int], runs: list[Run]
) -> None:
    shapes = module.groups([fingerprint_of(run, "", COMPUTE) for run in runs])
    batches = module.split_batches(shapes, module.prepare_device(COMPUTE), workers)
    assert [len(batch) for batch in batches] == sizes
    assert sorted(s.run.name for batch in batches for s in batch) == sorted(run.name for run in runs)


def test_a_batch_that_is_stopped_goes_on_where_it_was(runs: list[Run]) -> None:
    whole = train_series(runs, COMPUTE, 1, 60.0, history)
    fingerprints = [fingerprint_of(run, repr(run.spec.data), COMPUTE) for run in runs]
    asked = iter([False] * 5 + [True])
    with pytest.raises(Stopped):
        module.train_task(fingerprints[:3], 60.0, history, lambda: next(asked))
    assert [saved_epochs(fingerprint) for fingerprint in fingerprints] == [5, 5, 5, 0, 0]
    assert [len(batch) for batch in module.groups(fingerprints)] == [3, 2]
    assert checkpoint_of(fingerprints[0]).is_file()
    assert train_series(runs, COMPUTE, 1, 60.0, history) == whole
