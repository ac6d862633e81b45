"""Runs that one stage trains together, without a folder for each: the further series of a study."""

import concurrent.futures
import functools
import threading
from collections.abc import Callable, Sequence

from ncpipe.artifacts import RAW
from ncpipe.datasets.prepare import prepare
from ncpipe.datasets.prepared import Prepared
from ncpipe.scheduling.batches import starts_of, worker_count
from ncpipe.scheduling.store import checkpoint_of
from ncpipe.specs import Compute, Data, Run
from ncpipe.stamps import Stamp
from ncpipe.training.checkpoints import Checkpoints
from ncpipe.training.device import prepare_device
from ncpipe.training.loop import train_batch
from ncpipe.training.session import Trained


@functools.lru_cache(maxsize=8)
def data_of(spec: Data) -> Prepared:
    """Data that nothing has to fetch: those without inputs, or that are drawn."""
    return prepare(spec, RAW, None, False)


def train_series(
    runs: Sequence[Run],
    compute: Compute,
    workers: int | None,
    checkpoint_seconds: float,
    on_batch: Callable[[Sequence[Run]], None] = lambda batch: None,
) -> list[Trained]:
    """Train runs of any shapes, those of one shape side by side, `workers` batches at a time; in their order.

    Stopped, it goes on from checkpoints in data/.ahead. Each shape's runs are dealt out to all workers, so
    that none waits for another's last shape. on_batch is told of a batch that begins.
    """
    place = prepare_device(compute)
    count = worker_count(compute, place, workers)
    stamps = [Stamp(run, repr(run.spec.data), compute) for run in runs]
    shapes: dict[str, list[int]] = {}
    for index, stamp in enumerate(stamps):
        shapes.setdefault(stamp.batch_key(), []).append(index)
    batches = [part for own in shapes.values() for part in (own[at::count] for at in range(count)) if part]
    found: dict[int, Trained] = {}
    files: list[Checkpoints] = []
    stop = threading.Event()

    def work(batch: list[int]) -> None:
        own = [runs[index] for index in batch]
        data = data_of(own[0].spec.data)
        on_batch(own)
        saved = Checkpoints([checkpoint_of(stamps[index]) for index in batch], checkpoint_seconds)
        files.append(saved)
        prepare_device(compute)  # each thread has its own settings
        starts = starts_of(own, data)
        trained = train_batch(
            own, data, place, compute.precision, checkpoints=saved, stop=stop.is_set, starts=starts
        )
        found.update(zip(batch, trained, strict=True))

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        try:
            for future in concurrent.futures.as_completed([pool.submit(work, batch) for batch in batches]):
                future.result()
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    for saved in files:
        saved.remove()
    return [found[index] for index in range(len(runs))]
