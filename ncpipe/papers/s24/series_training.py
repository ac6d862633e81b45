"""Train the further series of a study in one stage, without a folder for each run.

`ncpipe.runs.batches` trains the runs of a sweep.
"""

import concurrent.futures
import functools
import multiprocessing
import threading
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import torch

from ncpipe.config.experiment import Data
from ncpipe.config.reading import at_start
from ncpipe.config.run import Compute, Run
from ncpipe.datasets.prepare import prepare
from ncpipe.datasets.prepared import Prepared
from ncpipe.runs.batches import Batch, groups, parts_of_each, worker_count
from ncpipe.runs.fingerprint import check_code, fingerprint_of
from ncpipe.runs.pool import completed, executor, should_stop, uninterrupted
from ncpipe.runs.store import checkpoint_of
from ncpipe.system.artifacts import RAW
from ncpipe.system.errors import InputError
from ncpipe.training.checkpoints import Checkpoints
from ncpipe.training.device import prepare_device
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
    on_done: Callable[[int], object] = lambda runs: None,
) -> list[Found]:
    """Train runs of any shapes, those of one shape side by side, and return what `measure` returns for each.

    Up to `workers` batches train at a time, each in its own process; `measure` must therefore be a function
    at the top of a module. After an interruption all runs resume from checkpoints in the store. on_done:
    called with the number of runs of a finished batch.
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
    asked = stop.is_set if count == 1 else should_stop
    with pool:
        try:
            with uninterrupted():
                futures = {
                    pool.submit(train_task, batch, checkpoint_seconds, measure, asked): batch
                    for batch in batches
                }
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


def train_task(
    batch: Batch,
    checkpoint_seconds: float,
    measure: Callable[[Trained, Compute], Found],
    stop: Callable[[], bool],
) -> list[Found]:
    """Train the runs of a batch from their checkpoints; return what `measure` returns for each."""
    check_code(batch[0], at_start())  # in a process of its own, which has read it anew
    runs, compute = [fingerprint.run for fingerprint in batch], batch[0].compute
    data = data_of(runs[0].spec.data)
    device = prepare_device(compute)  # each thread has its own settings
    saved = Checkpoints([checkpoint_of(fingerprint) for fingerprint in batch], checkpoint_seconds)
    starts = starts_of(runs, data)
    trained = train_batch(runs, data, device, compute.precision, checkpoints=saved, stop=stop, starts=starts)
    return [measure(found, compute) for found in trained]


def split_batches(shapes: Sequence[Batch], device: torch.device, workers: int) -> list[Batch]:
    """Return the batches, those with most work first; each shape in parts if some worker would be idle."""
    parts = parts_of_each(shapes, workers, device)
    batches = [part for own in shapes for at in range(parts) if (part := own[at::parts])]
    return sorted(batches, key=lambda own: -len(own) * own[0].run.depth * own[0].run.spec.epochs)
