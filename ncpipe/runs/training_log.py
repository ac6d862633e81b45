"""Log the time of training and the errors of failed runs, in data/logs.

No stage reads these files: results hold no times, so that they have the same bytes on any machine.
"""

import contextlib
import csv
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ncpipe.config.run import Run
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.system.artifacts import LOGS

BATCH_LOG = LOGS / "batches.csv"
HEAD = "experiment,depth,runs,device,seconds,ended,digests\n"
FINISHED = "finished"
STOPPED = "stopped"
DIGITS = 16  # of a run's fingerprint, as logs write it
_WRITING = threading.Lock()  # batches of one process end in threads


def log_time(fingerprints: Sequence[RunFingerprint], device: str, seconds: float, ended: str) -> None:
    """Append a row for a batch, with experiment and depth of its first run.

    seconds: wall-clock time. ended: FINISHED or STOPPED. The column digests has the runs' fingerprints, by
    which `training_times` finds the batches of present results. A log of another version is replaced.
    """
    run = fingerprints[0].run
    digests = " ".join(fingerprint.key()[:DIGITS] for fingerprint in fingerprints)
    row = f"{run.experiment},{run.depth},{len(fingerprints)},{device},{seconds:.2f},{ended},{digests}\n"
    LOGS.mkdir(parents=True, exist_ok=True)
    with _WRITING, BATCH_LOG.open("a+", encoding="utf-8", errors="replace", newline="\n") as file:
        file.seek(0)
        if (first := file.readline()) not in ("", HEAD):
            file.truncate(0)
        file.write(row if first == HEAD else HEAD + row)  # one write: other processes append too


def training_times(runs: Mapping[str, Run], threads: int) -> dict[str, Any]:
    """Return the hours that training these runs took, by experiment.

    runs: by the first DIGITS of their fingerprints. A batch counts for the experiment of its first run among
    them; a batch without any of them does not count. threads: of each batch, so that hours x threads are core
    hours on an idle machine. The returned `stopped` is how often a batch was stopped and resumed. The log
    does not have the time of processes that were killed.
    """
    text = BATCH_LOG.read_text(encoding="utf-8", errors="replace") if BATCH_LOG.is_file() else HEAD
    batches: dict[str, list[tuple[float, str]]] = {}
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # of the digests of a large batch
    for row in csv.DictReader(text.splitlines()):
        in_batch = [runs[digest] for digest in (row.get("digests") or "").split() if digest in runs]
        if in_batch:
            with contextlib.suppress(ValueError):  # a damaged row
                batch = float(row["seconds"]), row["ended"]
                batches.setdefault(in_batch[0].experiment, []).append(batch)
    return {
        name: {
            "batch_hours": round(sum(seconds for seconds, _ in rows) / 3600, 2),
            "threads": threads,
            "batches": sum(ended == FINISHED for _, ended in rows),
            "stopped": sum(ended != FINISHED for _, ended in rows),
        }
        for name, rows in sorted(batches.items())
    }


def failure_log(run: Run) -> Path:
    """Return the path of the log with the error of a failed run."""
    return LOGS / f"failed-{'-'.join(run.path.parts)}.log"


def log_failure(fingerprints: Iterable[RunFingerprint], error: Exception) -> None:
    """Write an error to each run's log; skip logs that cannot be written, as on a full disk."""
    text = "".join(traceback.format_exception(error))
    for run in (fingerprint.run for fingerprint in fingerprints):
        with contextlib.suppress(OSError):
            LOGS.mkdir(parents=True, exist_ok=True)
            failure_log(run).write_text(f"{run.name}: {error}\n\n{text}", encoding="utf-8")
