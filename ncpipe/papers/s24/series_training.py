"""Train the further series of a study in one stage, without a folder for each run.

`ncpipe.runs.batches` trains the runs of a sweep.
"""

import concurrent.futures
import contextlib
import functools
import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from ncpipe.config.specs import Compute, Data, Run
from ncpipe.datasets.prepare import prepare
from ncpipe.datasets.prepared import Prepared
from ncpipe.runs.batches import Batch, groups, parts_of_each, worker_count
from ncpipe.runs.fingerprint import fingerprint_of
from ncpipe.runs.pool import completed, executor, should_stop, uninterrupted
from ncpipe.runs.store import checkpoint_of
from ncpipe.system.artifacts import RAW
from ncpipe.system.errors import InputError
from ncpipe.training.checkpoints import Checkpoints
from ncpipe.training.device import is_out_of_memory, prepare_device
from ncpipe.training.loop import train_batch
from ncpipe.training.session import Trained
from ncpipe.training.starts import starts_of

Found = TypeVar("Found")


@functools.lru_cache(maxsize=8)
def data_of(spec: Data) -> Prepared:
    """Return data that need no fetching: those without inputs, or generated ones."""
    return prepare(spec, RAW, None, False)


def train_series(
    runs: Sequence[Run],
    compute: Compute,
    workers: int | None,
    checkpoint_seconds: float,
    measure: Callable[[Trained, Compute], Found],
    on_batch: Callable[[Sequence[Run]], None] = lambda batch: None,
    on_done: Callable[[int], object] = lambda runs: None,
) -> list[Found]:
    """Train runs of any shapes, those of one shape side by side, and return what `measure` returns for each.

    Up to `workers` batches train at a time, each in its own process; `measure` must therefore be a function
    at the top of a module. After an interruption all runs resume
    from checkpoints in the store. on_batch: called with the runs of a batch when it starts. on_done: called
    with the number of runs of a finished batch.
    """
    device = prepare_device(compute)
    fingerprints = [fingerprint_of(run, repr(run.spec.data), compute) for run in runs]
    if device.type != "cpu":
        workers = workers or 1  # processes would share a GPU, each with libraries of its own in its memory
    batches = split_batches(groups(fingerprints), device, worker_count(compute, device, workers))
    count = min(len(batches), worker_count(compute, device, workers))
    found: dict[str, Found] = {}
    stop = threading.Event() if count == 1 else multiprocessing.get_context("spawn").Event()
    pool = concurrent.futures.ThreadPoolExecutor(1) if count == 1 else executor(count, stop)
    train = functools.partial(train_task, stop=stop.is_set) if count == 1 else _train_elsewhere
    futures = {}
    with pool:
        try:
            for batch in batches:
                on_batch([fingerprint.run for fingerprint in batch])
                with uninterrupted():
                    futures[pool.submit(train, SeriesTask(batch, checkpoint_seconds, measure))] = batch
            for future in completed(futures):
                batch = futures[future]
                found.update(zip((fingerprint.key() for fingerprint in batch), future.result(), strict=True))
                on_done(len(batch))
        except BrokenProcessPool:
            name = fingerprints[0].run.experiment
            raise InputError(f"{name}: a training process was killed; run dvc repro to resume") from None
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    Checkpoints([checkpoint_of(fingerprint) for fingerprint in fingerprints], checkpoint_seconds).remove()
    return [found[fingerprint.key()] for fingerprint in fingerprints]


@dataclass(frozen=True)
class SeriesTask(Generic[Found]):
    """Runs to train side by side, and the function that measures them."""

    batch: Batch
    checkpoint_seconds: float
    measure: Callable[[Trained, Compute], Found]


def train_task(task: SeriesTask[Found], stop: Callable[[], bool]) -> list[Found]:
    """Train the runs of a task from their checkpoints; return what its function measures of each."""
    runs, compute = [fingerprint.run for fingerprint in task.batch], task.batch[0].compute
    data = data_of(runs[0].spec.data)
    device = prepare_device(compute)  # each thread has its own settings
    saved = Checkpoints([checkpoint_of(fingerprint) for fingerprint in task.batch], task.checkpoint_seconds)
    starts = starts_of(runs, data)
    with _reporting_memory(task.batch, device):
        trained = train_batch(
            runs, data, device, compute.precision, checkpoints=saved, stop=stop, starts=starts
        )
        return [task.measure(found, compute) for found in trained]


def _train_elsewhere(task: SeriesTask[Found]) -> list[Found]:
    return train_task(task, should_stop)


@contextlib.contextmanager
def _reporting_memory(batch: Batch, device: torch.device) -> Iterator[None]:
    """Raise InputError where the block runs out of memory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            f"{batch[0].run.experiment}: {len(batch)} runs side by side do not fit in the memory of "
            f"{device}; take fewer seeds, or make model.width, the depth or the data smaller"
        ) from None


def split_batches(shapes: Sequence[Batch], device: torch.device, workers: int) -> list[Batch]:
    """Return the batches, those with most work first; each shape in parts if some worker would be idle."""
    parts = parts_of_each(shapes, workers, device)
    batches = [part for own in shapes for at in range(parts) if (part := own[at::parts])]
    return sorted(batches, key=lambda own: -len(own) * own[0].run.depth * own[0].run.spec.epochs)
