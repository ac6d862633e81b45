"""Runs that one stage trains together, without a folder for each: the further series of a study."""

import concurrent.futures
import contextlib
import functools
import math
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
from ncpipe.runs.batches import Batch, groups, starts_of, worker_count
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.pool import asked_to_stop, executor, uninterrupted
from ncpipe.runs.store import checkpoint_of
from ncpipe.system.artifacts import RAW
from ncpipe.system.errors import InputError
from ncpipe.training.checkpoints import Checkpoints, epochs_done
from ncpipe.training.cost import seconds_per_epoch
from ncpipe.training.device import DTYPES, is_out_of_memory, prepare_device
from ncpipe.training.loop import train_batch
from ncpipe.training.session import Trained

WORTH = 5.0  # seconds of training that a further process is started for, which takes two or three itself
TIMINGS = 3  # of a shape's epoch: beside other work one alone may be several times too long
SLACK = 0.1  # of a worker's share, which a batch may take longer than that

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
    """Train runs of any shapes, those of one shape side by side; what is measured of each, in their order.

    Up to `workers` batches train at a time, each in a process of its own, where they are long enough: what
    measure gives comes from there, and it is a function of a module. Stopped, all go on from checkpoints in
    the store. on_batch is told of a batch that is given out, on_done how many runs one had.
    """
    place = prepare_device(compute)
    fingerprints = [RunFingerprint(run, repr(run.spec.data), compute) for run in runs]
    count, batches = _dealt_out(groups(fingerprints), place, worker_count(compute, place, workers))
    found: dict[str, Found] = {}
    stop = threading.Event() if count == 1 else multiprocessing.get_context("spawn").Event()
    pool = concurrent.futures.ThreadPoolExecutor(1) if count == 1 else executor(count, stop)
    train = functools.partial(_train, stop=stop.is_set) if count == 1 else _train_elsewhere
    futures = {}
    with pool:
        try:
            for batch in batches:
                on_batch([fingerprint.run for fingerprint in batch])
                with uninterrupted():
                    futures[pool.submit(train, _Task(batch, checkpoint_seconds, measure))] = batch
            for future in concurrent.futures.as_completed(futures):
                batch = futures[future]
                found.update(zip((fingerprint.key() for fingerprint in batch), future.result(), strict=True))
                on_done(len(batch))
        except BrokenProcessPool:
            name = fingerprints[0].run.experiment
            raise InputError(f"{name}: a process that trained it was ended; run dvc repro to go on") from None
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    Checkpoints([checkpoint_of(fingerprint) for fingerprint in fingerprints], checkpoint_seconds).remove()
    return [found[fingerprint.key()] for fingerprint in fingerprints]


@dataclass(frozen=True)
class _Task(Generic[Found]):
    """Runs to train side by side, and what is to be measured of them."""

    batch: Batch
    checkpoint_seconds: float
    measure: Callable[[Trained, Compute], Found]


def _train(task: _Task[Found], stop: Callable[[], bool]) -> list[Found]:
    runs, compute = [fingerprint.run for fingerprint in task.batch], task.batch[0].compute
    data = data_of(runs[0].spec.data)
    place = prepare_device(compute)  # each thread has its own settings
    saved = Checkpoints([checkpoint_of(fingerprint) for fingerprint in task.batch], task.checkpoint_seconds)
    starts = starts_of(runs, data)
    with _fitting(task.batch, place):
        trained = train_batch(
            runs, data, place, compute.precision, checkpoints=saved, stop=stop, starts=starts
        )
        return [task.measure(found, compute) for found in trained]


def _train_elsewhere(task: _Task[Found]) -> list[Found]:
    return _train(task, asked_to_stop)


@contextlib.contextmanager
def _fitting(batch: Batch, place: torch.device) -> Iterator[None]:
    """Raise InputError where the block runs out of memory."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            f"{batch[0].run.experiment}: {len(batch)} runs side by side do not fit in the memory of {place}; "
            "take fewer seeds, or make model.width, the depth or the data smaller"
        ) from None


def _dealt_out(shapes: Sequence[Batch], place: torch.device, workers: int) -> tuple[int, list[Batch]]:
    """Return how many batches train at a time, and the batches, the longest first.

    Small steps take the same time however many runs do them, so runs of a shape stay together unless they
    take longer than each worker's share of all.
    """
    if workers == 1:
        return 1, list(shapes)
    seconds = {}
    for index, own in enumerate(shapes):
        run, data, dtype = own[0].run, data_of(own[0].run.spec.data), DTYPES[own[0].compute.precision]
        epochs = run.spec.epochs - epochs_done(checkpoint_of(own[0]))
        with _fitting(own, place):
            timed = [seconds_per_epoch(run, len(own), data, place, dtype) for _ in range(TIMINGS)]
        seconds[index] = epochs * min(timed)
    total = sum(seconds.values()) or 1.0
    count = max(1, min(workers, int(total / WORTH)))
    batches: list[Batch] = []
    for index in sorted(seconds, key=lambda index: -seconds[index]):
        own, parts = shapes[index], math.ceil(seconds[index] * count / total - SLACK)
        batches += [part for at in range(max(1, parts)) if (part := own[at :: max(1, parts)])]
    return min(count, len(batches)), batches
