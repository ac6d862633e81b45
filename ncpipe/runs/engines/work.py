"""What a worker is given and gives back, wherever it is: plain values. Needs no torch."""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ncpipe.config.specs import Run
from ncpipe.runs.fingerprint import Stamp
from ncpipe.runs.store import has

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
        return [index for index, key in enumerate(self.keys) if not has(key)]

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
class Outlook:
    """What an engine would do with work, without doing it.

    pieces: the work of each of its tasks. name: of several pieces. said: lines on where and how they train.
    """

    pieces: Sequence[Sequence[Work]]
    name: str
    said: Sequence[str]


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
