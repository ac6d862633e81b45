"""Ranges of numbers in params.yaml, as annotations of what a record takes.

Every count has an upper end that says why: what lies beyond it is a slip of the pen, and would end somewhere
deep in a library, or never. What a run of allowed numbers takes in memory is estimated before it is built.
"""

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated


@dataclass(frozen=True)
class Bound:
    """Range of a number in params.yaml, carried by `Annotated` and checked by the reader.

    why: what is wrong with numbers above it, in words.
    """

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    why: str = ""

    def admits(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below and math.isfinite(value)

    def __str__(self) -> str:
        parts = []
        if self.low > -math.inf:
            parts.append(f"{'>' if self.open_low else '>='} {_plain(self.low)}")
        if self.high < math.inf:
            parts.append(f"{'<' if self.open_high else '<='} {_plain(self.high)}")
        return " and ".join(parts) or "finite"


def _plain(limit: float) -> str:
    return str(int(limit)) if abs(limit) < 1e15 and limit == int(limit) else f"{limit:g}"


CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def free_memory() -> int:
    """Return the bytes that are free on this machine, and no more than what limits leave beside this process.

    Limits are those of its control groups (a container, a service) and of its job of Slurm.
    """
    import psutil  # only where numbers are about to be computed

    own = psutil.Process().memory_info().rss
    limits = [*_cgroup_limits(), *_job_limit()]
    return max(0, min([psutil.virtual_memory().available, *(limit - own for limit in limits)]))


def _cgroup_limits() -> Iterator[int]:
    """Yield the limits of all groups around this process, in version 1 and 2 of control groups."""
    with contextlib.suppress(OSError):  # not Linux
        for line in OWN_CGROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, name = (
                (CGROUPS / "memory", "memory.limit_in_bytes") if controllers else (CGROUPS, "memory.max")
            )
            place = root / path.lstrip("/")  # in a container it may not be there, but the root is
            for folder in (place, *place.parents):
                if folder.is_relative_to(root):
                    with contextlib.suppress(OSError, ValueError):  # no such file, or `max`: no limit
                        yield int((folder / name).read_text())


def _job_limit() -> Iterator[int]:
    """Yield the memory of the job of Slurm that this is, if it is one; 0 means all of the node's."""
    megabytes, each = os.environ.get("SLURM_MEM_PER_NODE"), os.environ.get("SLURM_MEM_PER_CPU")
    with contextlib.suppress(ValueError):
        limit = int(megabytes or each or 0) * (
            1 if megabytes else int(os.environ.get("SLURM_CPUS_ON_NODE", 1))
        )
        if limit:
            yield limit * 2**20


def usable_cores() -> int:
    """Cores of this machine that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


LARGEST = 3.4028234e38  # of float32, rounded down
NO_FLOAT32 = "float32 holds none that is larger"
DEEP = "a deeper network takes minutes to be laid out, before it trains"
MATRIX = "a square matrix of more takes 4 TB"

Size = Annotated[int, Bound(1, 10**6, why=MATRIX)]  # of what a matrix has as many rows of
Count = Annotated[int, Bound(1, 10**9, why="more do not fit into a machine")]  # of samples
Epochs = Annotated[int, Bound(1, 10**8, why="of a millisecond each, more take longer than a day")]
Draws = Annotated[int, Bound(1, 10**6, why="beyond it nothing changes but the time")]
Depth = Annotated[int, Bound(1, 10_000, why=DEEP)]
Index = Annotated[int, Bound(0, 2**32 - 1)]
Positive = Annotated[float, Bound(0, LARGEST, open_low=True, why=NO_FLOAT32)]
NonNegative = Annotated[float, Bound(0, LARGEST, why=NO_FLOAT32)]
Number = int | float  # as it is written: 64 is no 64.0
Fraction = Annotated[float, Bound(0, 1, open_high=True)]


def key_of(field: str) -> str:
    """Return the key of a field: its name, without the `_` at its end where Python reserves the word."""
    return field.removesuffix("_")
