"""What jobs cost: data/logs/jobs.csv, a row for each job that has been collected. No stage reads it."""

import contextlib
import csv
import dataclasses
import io
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ncpipe.runs.training_log import DIGITS
from ncpipe.system.artifacts import LOGS
from ncpipe.system.console import duration, recorded_lines

JOB_LOG = LOGS / "jobs.csv"
JOB_LOGS = LOGS / "jobs"  # what jobs printed that have been collected
UNFINISHED = ".runs"  # beside the log of what trains, or was killed: the runs that its row would name


@dataclass(frozen=True)
class JobCost:
    """One job: what it had, took and trained.

    engine, job: who ran it, and its name there. state: how it ended. cores, gpus: that it had. seconds: that
    it ran. waited: seconds in the queue. memory_used, memory_asked: megabytes. requeued: how often it was
    queued again. runs: their number. log: the file with what it printed. digests: of its runs. What nobody
    knows is empty.
    """

    engine: str
    job: str
    state: str
    cores: float
    gpus: float
    seconds: float
    waited: float | None
    memory_used: float | None
    memory_asked: float | None
    requeued: int
    runs: int
    log: str
    digests: str


COLUMNS = [field.name for field in dataclasses.fields(JobCost)]


def digests_of(keys: Iterable[str]) -> str:
    """Return what the log calls some runs."""
    return " ".join(key[:DIGITS] for key in keys)


def write_costs(costs: Sequence[JobCost]) -> None:
    """Add rows in one write: other drivers may write too."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    LOGS.mkdir(parents=True, exist_ok=True)
    with JOB_LOG.open("a", encoding="utf-8", newline="") as file:
        if not file.tell():
            writer.writerow(COLUMNS)
        for cost in costs:
            row = dataclasses.astuple(cost)
            writer.writerow(["" if v is None else f"{v:.6g}" if isinstance(v, float) else v for v in row])
        file.write(text.getvalue())


def read_costs(path: Path = JOB_LOG) -> list[JobCost]:
    """Read all rows; damaged ones are left out."""
    if not path.is_file():
        return []
    found = []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        for row in csv.DictReader(file):
            try:
                found.append(_cost(row))
            except (KeyError, TypeError, ValueError):
                continue
    return found


def _cost(row: dict[str, str]) -> JobCost:
    def known(name: str) -> float | None:
        return float(row[name]) if row[name] else None

    return JobCost(
        row["engine"], row["job"], row["state"], float(row["cores"]), float(row["gpus"]),
        float(row["seconds"]), known("waited"), known("memory_used"), known("memory_asked"),
        int(row["requeued"]), int(row["runs"]), row["log"], row["digests"] or "",
    )  # fmt: skip


@contextlib.contextmanager
def kept_log(engine: str, keys: Sequence[str], cores: int) -> Iterator[None]:
    """Write all lines of the block to a file of data/logs/jobs, so that it can be read later.

    A row of the log says which runs these are; until it is written, a file beside the log does. Where nothing
    can be written, the block runs all the same.
    """
    begin = time.time()
    name = f"{engine}-{begin:.0f}-{os.getpid()}"
    unfinished = JOB_LOGS / f"{name}{UNFINISHED}"
    try:
        JOB_LOGS.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(digests_of(keys), encoding="utf-8")
        file = (JOB_LOGS / f"{name}.log").open("a", encoding="utf-8", buffering=1)
    except OSError:
        yield
        return
    state = "STOPPED"
    with file:
        try:
            with recorded_lines(file.write):
                yield
            state = "COMPLETED"
        finally:
            cost = JobCost(
                engine, name, state, cores, 0, time.time() - begin, None, None, None, 0, len(keys), file.name,
                digests_of(keys),
            )  # fmt: skip
            with contextlib.suppress(OSError):
                write_costs([cost])
                unfinished.unlink()


def unfinished_logs(key: str) -> list[Path]:
    """Return the logs of a run that trains here, or whose training was killed."""
    found = []
    for file in JOB_LOGS.glob(f"*{UNFINISHED}"):
        with contextlib.suppress(OSError):  # removed by now
            if key[:DIGITS] in file.read_text(encoding="utf-8").split():
                found.append(file.with_suffix(".log"))
    return found


def cost_table(costs: Sequence[JobCost]) -> list[tuple[str, ...]]:
    """Return a head and a row for each array of jobs (each engine without arrays), and one for all."""
    head = ("jobs", "count", "runs", "core hours", "GPU hours", "memory used/asked", "waited", "requeued")
    arrays: dict[str, list[JobCost]] = {}
    for cost in costs:
        name = cost.job.rpartition("_")[0] or cost.job if cost.engine == "slurm" else ""
        arrays.setdefault(f"{cost.engine} {name}".strip(), []).append(cost)
    rows = [_row(name, own) for name, own in arrays.items()]
    return [head, *rows, *([_row("all", costs)] if len(rows) > 1 else [])]


def _row(name: str, costs: Sequence[JobCost]) -> tuple[str, ...]:
    waits = sorted(cost.waited for cost in costs if cost.waited is not None)
    return (
        name,
        str(len(costs)),
        str(sum(cost.runs for cost in costs)),
        f"{sum(cost.cores * cost.seconds for cost in costs) / 3600:.2f}",
        f"{sum(cost.gpus * cost.seconds for cost in costs) / 3600:.2f}",
        _memory(costs),
        f"{duration(waits[len(waits) // 2])}, at most {duration(waits[-1])}" if waits else "unknown",
        str(sum(cost.requeued for cost in costs)),
    )


def _memory(costs: Sequence[JobCost]) -> str:
    """The job that used most of what it asked for."""
    used = [cost for cost in costs if cost.memory_used is not None]
    if not used:
        return "unknown"
    most = max(used, key=lambda cost: (cost.memory_used or 0) / (cost.memory_asked or 1e12))
    asked = "no limit" if most.memory_asked is None else f"{most.memory_asked / 1024:.1f} GB"
    return f"{(most.memory_used or 0) / 1024:.1f} of {asked}"


def cost_lines(costs: Sequence[JobCost]) -> list[str]:
    """Return the table as lines of text, columns aligned."""
    rows = cost_table(costs)
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
