"""Log what training cost, one row per job, in data/logs/jobs.csv, and keep what jobs printed.

A job is a task of Slurm or Ray, or a local sweep. No stage reads the log, because results hold no times.
`ncpipe.runs.training_log` logs batches.
"""

import contextlib
import csv
import dataclasses
import io
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ncpipe.runs.training_log import DIGITS, digests_of
from ncpipe.system.artifacts import LOGS
from ncpipe.system.console import duration, recorded_lines

JOB_LOG = LOGS / "jobs.csv"
JOB_LOGS = LOGS / "jobs"  # the output of collected jobs
UNFINISHED = ".runs"  # ending of a file that names the runs of a job without a row: it trains, or was killed


@dataclass(frozen=True)
class JobCost:
    """Holds one row of the log: the resources and the time of a job, and its runs.

    engine, job: the engine, and the job's name there.
    state: how it ended.
    cores, gpus: allocated to it.
    seconds: wall-clock time. waited: seconds in the queue.
    memory_used, memory_asked: used and requested memory in megabytes.
    requeued: how often it was queued again.
    runs: number of its runs. digests: the beginnings of their fingerprints.
    log: the file with its output.

    None and empty cells stand for what is unknown.
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


def write_costs(costs: Sequence[JobCost]) -> None:
    """Append rows in one write, since other drivers may append too."""
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
    """Return all rows that are not damaged."""
    if not path.is_file():
        return []
    costs = []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        for row in csv.DictReader(file):
            try:
                costs.append(_cost(row))
            except (KeyError, TypeError, ValueError):
                continue
    return costs


def _cost(row: dict[str, str]) -> JobCost:
    def optional(name: str) -> float | None:
        return float(row[name]) if row[name] else None

    return JobCost(
        row["engine"], row["job"], row["state"], float(row["cores"]), float(row["gpus"]),
        float(row["seconds"]), optional("waited"), optional("memory_used"), optional("memory_asked"),
        int(row["requeued"]), int(row["runs"]), row["log"], row["digests"] or "",
    )  # fmt: skip


@contextlib.contextmanager
def recorded_job(engine: str, keys: Sequence[str], cores: int) -> Iterator[None]:
    """Write what the block prints to a file in data/logs/jobs, and add its row to the log at the end.

    Until then a file with the ending UNFINISHED names the runs. If these files cannot be written, the block
    runs without them.
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
    """Return the logs of local sweeps with this run that are training or were killed."""
    logs = []
    for file in JOB_LOGS.glob(f"*{UNFINISHED}"):
        with contextlib.suppress(OSError):  # removed by now
            if key[:DIGITS] in file.read_text(encoding="utf-8").split():
                logs.append(file.with_suffix(".log"))
    return logs


def cost_table(costs: Sequence[JobCost]) -> list[tuple[str, ...]]:
    """Return a header, one row per job array (or engine without arrays), and a total if there are several."""
    head = ("jobs", "count", "runs", "core hours", "GPU hours", "memory used/requested", "waited", "requeued")
    arrays: dict[str, list[JobCost]] = {}
    for cost in costs:
        name = cost.job.rpartition("_")[0] or cost.job if cost.engine == "slurm" else ""
        arrays.setdefault(f"{cost.engine} {name}".strip(), []).append(cost)
    rows = [_row(name, jobs) for name, jobs in arrays.items()]
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
    """Return used and requested memory of the job that used the largest share of its request."""
    used = [cost for cost in costs if cost.memory_used is not None]
    if not used:
        return "unknown"
    most = max(used, key=lambda cost: (cost.memory_used or 0) / (cost.memory_asked or 1e12))
    requested = "no limit" if most.memory_asked is None else f"{most.memory_asked / 1024:.1f} GB"
    return f"{(most.memory_used or 0) / 1024:.1f} of {requested}"
