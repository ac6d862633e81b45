"""Log what training took and why runs failed, in data/logs.

No stage reads these files: results hold no times, so that they have the same bytes on any machine.
"""

import contextlib
import csv
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ncpipe.config.specs import Run
from ncpipe.runs.fingerprint import RunFingerprint, key_of_record
from ncpipe.system.artifacts import LOGS

BATCH_LOG = LOGS / "batches.csv"
HEAD = "experiment,depth,runs,device,seconds,ended,digests\n"
FINISHED = "finished"
STOPPED = "stopped"
DIGITS = 16  # of a run's fingerprint


def log_time(fingerprints: Sequence[RunFingerprint], device: str, seconds: float, ended: str) -> None:
    """Append a row for a batch, named after its first run.

    seconds: wall-clock time. ended: FINISHED or STOPPED. The column digests holds the runs' fingerprints, by
    which `training_times` finds the results that still exist. A log of another version is replaced.
    """
    run = fingerprints[0].run
    digests = " ".join(fingerprint.key()[:DIGITS] for fingerprint in fingerprints)
    row = f"{run.experiment},{run.depth},{len(fingerprints)},{device},{seconds:.2f},{ended},{digests}\n"
    LOGS.mkdir(parents=True, exist_ok=True)
    with BATCH_LOG.open("a+", encoding="utf-8", errors="replace", newline="\n") as file:
        file.seek(0)
        if (first := file.readline()) not in ("", HEAD):
            file.truncate(0)
        file.write(row if first == HEAD else HEAD + row)  # one write: other processes append too


def training_times(made: Mapping[str, Run], threads: int) -> dict[str, Any]:
    """Return the hours that training these runs took, by experiment.

    made: `digest_in_log` of a run's record -> the run. A batch counts towards the experiment of its first run
    among them; a batch whose runs have all been replaced does not count. threads: of each batch, so that
    hours x threads are core hours on an idle machine. stopped: how often a batch was stopped and resumed. The
    log does not contain the time of a process that was killed.
    """
    text = BATCH_LOG.read_text(encoding="utf-8", errors="replace") if BATCH_LOG.is_file() else HEAD
    batches: dict[str, list[tuple[float, str]]] = {}
    for row in csv.DictReader(text.splitlines()):
        own = [made[digest] for digest in (row.get("digests") or "").split() if digest in made]
        if own:
            with contextlib.suppress(ValueError):  # a damaged row
                batch = float(row["seconds"]), row["ended"]
                batches.setdefault(own[0].experiment, []).append(batch)
    return {
        name: {
            "batch_hours": round(sum(seconds for seconds, _ in own) / 3600, 2),
            "threads": threads,
            "batches": sum(ended == FINISHED for _, ended in own),
            "stopped": sum(ended != FINISHED for _, ended in own),
        }
        for name, own in sorted(batches.items())
    }


def digest_in_log(record: dict[str, Any]) -> str:
    """Return the name of a run in the log, from its run.json."""
    return key_of_record(record)[:DIGITS]


def failure_log(run: Run) -> Path:
    """Return the file that says why a run failed."""
    return LOGS / f"failed-{'-'.join(run.path.parts)}.log"


@contextlib.contextmanager
def log_failures(runs: Iterable[Run], stopped: type[Exception]) -> Iterator[None]:
    """Write an error of the block to the log of each run; if there is none, remove the runs' older logs.

    stopped: the exception that means "stopped on request", which is no failure. A log that cannot be written,
    as on a full disk, is skipped: the error itself is raised in any case.
    """
    runs = list(runs)
    try:
        yield
    except stopped:
        raise
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        for run in runs:
            with contextlib.suppress(OSError):
                LOGS.mkdir(parents=True, exist_ok=True)
                failure_log(run).write_text(f"{run.name}: {error}\n\n{text}", encoding="utf-8")
        raise
    for run in runs:
        failure_log(run).unlink(missing_ok=True)
