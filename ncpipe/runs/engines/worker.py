"""How work is trained, wherever a worker is. It imports neither dvc nor typer.

A worker stands in a folder with the prepared data (and study.py, if the study has one), and puts finished
runs into the store there.
"""

import threading
import traceback
from dataclasses import dataclass
from pathlib import Path

from ncpipe.config.records import read
from ncpipe.config.specs import Compute, Experiment, Run
from ncpipe.config.study import load_study, loaded
from ncpipe.datasets.prepared import read_prepared
from ncpipe.runs.batches import batches_that_fit, groups, parts_of_each, train_batches, worker_count
from ncpipe.runs.engines.work import Ended, Work
from ncpipe.runs.fingerprint import Stamp, stamps_of
from ncpipe.runs.store import has
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.console import Progress, Unseen
from ncpipe.system.errors import InputError
from ncpipe.training.cost import bytes_per_run, check_memory
from ncpipe.training.device import DTYPES, free_bytes, is_out_of_memory, prepare_device
from ncpipe.training.loop import Stopped


@dataclass(frozen=True)
class Need:
    """Bytes that one run takes on a worker's device, those that are free there, and the device's name."""

    run: int
    free: int
    device: str


def stamps_of_work(work: Work) -> list[Stamp]:
    """The runs of some work by what lies here; InputError if code or data are other than where it is from."""
    load_study(Path())
    compute = Compute(**work.compute)
    runs = []
    for plain in work.runs:
        spec = read(Experiment, plain["spec"], f"experiments.{plain['experiment']}", loaded().records)
        runs.append(Run(**plain | {"spec": spec}))
    stamps = stamps_of(runs, compute)
    for stamp, key in zip(stamps, work.keys, strict=True):
        if stamp.data != work.data:
            raise InputError(f"{PREPARED / stamp.run.data}: other data than the sweep was planned for")
        if stamp.key() != key:
            raise InputError(
                f"{stamp.run.name}: the code of ncpipe here is not that by which the sweep was planned; "
                "give workers the same"
            )
    return stamps


def need_of(work: Work) -> Need:
    """Memory that the runs take each, asked on the device that would train them."""
    stamp = stamps_of_work(work)[0]
    place, dtype = prepare_device(stamp.compute), DTYPES[stamp.compute.precision]
    data = read_prepared(PREPARED / stamp.run.data)
    return Need(bytes_per_run(stamp.run, data, place, dtype), free_bytes(place), str(place))


def train_work(
    work: Work, stop: threading.Event | None = None, progress: Progress | Unseen | None = None
) -> Ended:
    """Train those of the runs that the store does not have, in batches that fit into this device's memory.

    What goes wrong is told and not raised. Stopped is, once `stop` is set and the checkpoints are written.
    """
    try:
        stamps = [stamp for stamp in stamps_of_work(work) if not has(stamp.key())]
        if stamps:
            _train(stamps, work, stop or threading.Event(), progress or Unseen())
    except Stopped:
        raise
    except InputError as error:
        return Ended(work, "refused" if len(work.runs) == 1 else "failed", str(error))
    except Exception as error:
        reason = "".join(traceback.format_exception_only(error)).strip()
        return Ended(work, "memory" if is_out_of_memory(error) else "failed", reason)
    return Ended(work, "done")


def _train(stamps: list[Stamp], work: Work, stop: threading.Event, progress: Progress | Unseen) -> None:
    compute = stamps[0].compute
    place, dtype = prepare_device(compute), DTYPES[compute.precision]
    run, data = stamps[0].run, read_prepared(PREPARED / stamps[0].run.data)
    check_memory(run, data, place, dtype)
    need, workers = bytes_per_run(run, data, place, dtype), worker_count(compute, place, work.workers)
    found = groups(stamps)
    parts = parts_of_each(found, workers)
    batches = [batch for group in found for batch in batches_that_fit(group, need, place, workers, parts)]
    errors = train_batches(
        batches,
        workers,
        work.checkpoint_seconds,
        progress,
        lambda stamp: 1.0,
        keep_going=True,
        stop=stop,
    )
    if errors:
        raise errors[0]
