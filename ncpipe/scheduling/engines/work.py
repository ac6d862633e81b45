"""What a worker is given and gives back, wherever it is, and how it trains.

A worker needs the library, a folder with the prepared data (and study.py, if the study has one) and a store
of finished runs, data/.ahead in that folder. It imports neither dvc nor typer.
"""

import dataclasses
import itertools
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ncpipe.artifacts import PREPARED
from ncpipe.console import Progress, Unseen
from ncpipe.datasets.prepared import read_prepared
from ncpipe.errors import InputError
from ncpipe.records import read
from ncpipe.scheduling.batches import batches_that_fit, groups, train_batches, worker_count
from ncpipe.scheduling.store import waits
from ncpipe.specs import Compute, Experiment, Run
from ncpipe.stamps import Stamp, data_checksum
from ncpipe.study import load_study, loaded
from ncpipe.training.cost import bytes_per_run, check_memory
from ncpipe.training.device import DTYPES, free_bytes, is_out_of_memory, prepare_device
from ncpipe.training.loop import Stopped

# done; failed: may go well another time; refused: will not, by its runs' own fault; memory: more than there
# is, which ended the process; lost: the process or its machine ended, and nobody knows why.
State = Literal["done", "failed", "refused", "memory", "lost"]


@dataclass(frozen=True)
class Work:
    """Runs of one shape for one worker, as plain values, which JSON and pickle take.

    runs: the fields of each `Run`. keys: of their stamps, by which a worker sees that its code and data are
    those of who asks. data: checksum of the prepared data. compute: the fields of `Compute`.
    checkpoint_seconds: between two checkpoints. workers: batches at a time; None leaves it to the worker.
    tries: how often it was tried before.
    """

    runs: tuple[dict[str, Any], ...]
    keys: tuple[str, ...]
    data: str
    compute: dict[str, Any]
    checkpoint_seconds: float
    workers: int | None
    tries: int = 0

    @property
    def name(self) -> str:
        """Of its first run, and how many there are beside it."""
        first = self.runs[0]
        varied = "" if first["axis"] is None else f" {first['axis']}={first['value']}"
        others = f" and {len(self.runs) - 1} beside it" if len(self.runs) > 1 else ""
        return f"{first['experiment']} L={first['depth']}{varied} seed={first['seed']}{others}"

    def of(self, indices: Sequence[int], tries: int | None = None) -> "Work":
        """Some of its runs."""
        return dataclasses.replace(
            self,
            runs=tuple(self.runs[index] for index in indices),
            keys=tuple(self.keys[index] for index in indices),
            tries=self.tries if tries is None else tries,
        )

    def missing(self) -> list[int]:
        """Those of its runs that the store here does not have."""
        return [index for index, key in enumerate(self.keys) if not waits(key)]

    def in_parts(self, parts: int) -> list["Work"]:
        """The same in so many even parts, or one for each run."""
        count = len(self.runs)
        parts = min(parts, count)
        edges = [count * part // parts for part in range(parts + 1)]
        return [self.of(range(start, end)) for start, end in itertools.pairwise(edges)]


@dataclass(frozen=True)
class Ended:
    """How some work ended. reason: a line, and what its log says last; empty if all is done."""

    work: Work
    state: State
    reason: str = ""


@dataclass(frozen=True)
class Need:
    """Bytes that one run takes on a worker's device, those that are free there, and the device's name."""

    run: int
    free: int
    device: str


def work_of(stamps: Sequence[Stamp], checkpoint_seconds: float, workers: int | None) -> Work:
    """What to tell a worker of runs of one shape."""
    return Work(
        tuple(_plain(stamp.run) for stamp in stamps),
        tuple(stamp.key() for stamp in stamps),
        stamps[0].data,
        dataclasses.asdict(stamps[0].compute),
        checkpoint_seconds,
        workers,
    )


def _plain(run: Run) -> dict[str, Any]:
    return {field.name: getattr(run, field.name) for field in dataclasses.fields(run)} | {
        "spec": dataclasses.asdict(run.spec)
    }


def from_json(values: dict[str, Any]) -> Work:
    """The Work of which these are the fields, as JSON gives them back."""
    return Work(**values | {"runs": tuple(values["runs"]), "keys": tuple(values["keys"])})


def stamps_of(work: Work) -> list[Stamp]:
    """The runs of some work by what lies here; InputError if code or data are other than where it is from."""
    load_study(Path())
    compute = Compute(**work.compute)
    stamps = []
    for plain in work.runs:
        spec = read(Experiment, plain["spec"], f"experiments.{plain['experiment']}", loaded().records)
        run = Run(**plain | {"spec": spec})
        stamps.append(Stamp(run, data_checksum(PREPARED / run.data), compute))
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
    stamp = stamps_of(work)[0]
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
        stamps = [stamp for stamp in stamps_of(work) if not waits(stamp.key())]
        if stamps:
            _train(stamps, work, stop or threading.Event(), progress or Unseen())
    except Stopped:
        raise
    except InputError as error:
        return Ended(work, "refused" if len(work.runs) == 1 else "failed", str(error))
    except Exception as error:
        last = "".join(traceback.format_exception(error)[-2:]).strip()
        return Ended(work, "memory" if is_out_of_memory(error) else "failed", last)
    return Ended(work, "done")


def _train(stamps: list[Stamp], work: Work, stop: threading.Event, progress: Progress | Unseen) -> None:
    compute = stamps[0].compute
    place, dtype = prepare_device(compute), DTYPES[compute.precision]
    run, data = stamps[0].run, read_prepared(PREPARED / stamps[0].run.data)
    check_memory(run, data, place, dtype)
    need, workers = bytes_per_run(run, data, place, dtype), worker_count(compute, place, work.workers)
    found = groups(stamps)
    parts = workers if len(found) < 2 * workers else 1
    batches = [batch for group in found for batch in batches_that_fit(group, need, place, workers, parts)]
    errors = train_batches(
        batches, workers, work.checkpoint_seconds, progress, lambda stamp: 1.0, keep_going=True, stop=stop
    )
    if errors:
        raise errors[0]
