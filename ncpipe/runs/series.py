"""Runs that one stage trains together, without a folder for each: the further series of a study."""

import concurrent.futures
import contextlib
import functools
import math
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from ncpipe.artifacts import RAW
from ncpipe.datasets.prepare import prepare
from ncpipe.datasets.prepared import Prepared
from ncpipe.errors import InputError
from ncpipe.runs.batches import Batch, groups, starts_of, worker_count
from ncpipe.runs.processes import Ended, Worker
from ncpipe.runs.store import checkpoint_of
from ncpipe.specs import Compute, Data, Run
from ncpipe.stamps import Stamp
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
    """Data that nothing has to fetch: those without inputs, or that are drawn."""
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
    data/.ahead. on_batch is told of a batch that begins, on_done how many runs one had.
    """
    place = prepare_device(compute)
    stamps = [Stamp(run, repr(run.spec.data), compute) for run in runs]
    count, batches = _dealt_out(groups(stamps), place, worker_count(compute, place, workers))
    found: dict[str, Found] = {}
    stop = threading.Event()
    with _hands(count, stop) as hands, concurrent.futures.ThreadPoolExecutor(count) as pool:

        def work(batch: Batch) -> int:
            hand = hands.get()
            try:
                own = [stamp.run for stamp in batch]
                on_batch(own)
                ends = hand(_Task(batch, checkpoint_seconds, measure))
                found.update(zip((stamp.key() for stamp in batch), ends, strict=True))
            except Ended as error:
                raise InputError(f"{own[0].experiment}: {error}; run dvc repro to go on") from None
            finally:
                hands.put(hand)
            return len(batch)

        try:
            for future in concurrent.futures.as_completed([pool.submit(work, batch) for batch in batches]):
                on_done(future.result())
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    Checkpoints([checkpoint_of(stamp) for stamp in stamps], checkpoint_seconds).remove()
    return [found[stamp.key()] for stamp in stamps]


@dataclass(frozen=True)
class _Task(Generic[Found]):
    """Runs to train side by side, and what is to be measured of them."""

    batch: Batch
    checkpoint_seconds: float
    measure: Callable[[Trained, Compute], Found]


def _train(task: _Task[Found], stop: Callable[[], bool]) -> list[Found]:
    runs, compute = [stamp.run for stamp in task.batch], task.batch[0].compute
    data = data_of(runs[0].spec.data)
    place = prepare_device(compute)  # each thread has its own settings
    saved = Checkpoints([checkpoint_of(stamp) for stamp in task.batch], task.checkpoint_seconds)
    starts = starts_of(runs, data)
    with _fitting(task.batch, place):
        trained = train_batch(
            runs, data, place, compute.precision, checkpoints=saved, stop=stop, starts=starts
        )
        return [task.measure(found, compute) for found in trained]


@contextlib.contextmanager
def _fitting(batch: Batch, place: torch.device) -> Iterator[None]:
    """InputError where the block runs out of memory."""
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
    """How many batches are to train at a time, and the batches, the longest first.

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


Hand = Callable[[_Task[Any]], list[Any]]


@contextlib.contextmanager
def _hands(count: int, stop: threading.Event) -> Iterator["queue.SimpleQueue[Hand]"]:
    """Who trains: this process and so many others less one."""
    others: list[Worker[_Task[Any], list[Any]]] = []
    hands: queue.SimpleQueue[Hand] = queue.SimpleQueue()
    hands.put(lambda task: _train(task, stop.is_set))
    try:
        for _ in range(count - 1):
            worker: Worker[_Task[Any], list[Any]] = Worker(_train)
            others.append(worker)
            hands.put(functools.partial(worker, stop=stop))
        yield hands
    finally:
        for worker in others:
            worker.close()
