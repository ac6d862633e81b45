"""What each batch took, in a log that no stage reads: results have no times, and are the same anywhere."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ncpipe.artifacts import BATCH_LOG, LOGS
from ncpipe.specs import Run
from ncpipe.stamps import Stamp, seal_key, sealed_with

FINISHED = "finished"
STOPPED = "stopped"
COLUMNS = ["experiment", "depth", "runs", "device", "seconds", "ended", "digests"]
DIGITS = 16  # of a run's digest


def log_time(stamps: Sequence[Stamp], device: str, seconds: float, ended: str) -> None:
    """Add a batch, named after its first run. seconds: wall-clock; ended: FINISHED or STOPPED.

    digests: what the runs' folders are sealed with, by which `training_times` knows the results that are
    still there. A log with other columns, of another version, is begun anew.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    path, run = LOGS / BATCH_LOG, stamps[0].run
    digests = " ".join(sealed_with(stamp)[:DIGITS] for stamp in stamps)
    row = [run.experiment, run.depth, len(stamps), device, f"{seconds:.2f}", ended, digests]
    head = _line(COLUMNS)
    if not path.is_file() or not path.read_text(encoding="utf-8", errors="replace").startswith(head):
        path.write_text(head, encoding="utf-8", newline="\n")
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(_line(row))  # in one piece: others write too


def training_times(made: Mapping[str, Run], threads: int) -> dict[str, Any]:
    """Hours that the batches took which trained these runs, by experiment, added up.

    made: digest of a run's folder (`digest_in_log`) -> the run. A batch counts with the first of its runs
    that is among them; one that trained what has been replaced since does not. threads: of each batch, so
    hours x threads are core hours of a machine with nothing else to do. stopped: how often a batch was
    stopped and taken up again. What a killed process did is not in the log.
    """
    path = LOGS / BATCH_LOG
    if not path.is_file():
        return {}
    times: dict[str, dict[str, Any]] = {}
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        for row in csv.DictReader(file):
            own = [made[digest] for digest in (row.get("digests") or "").split() if digest in made]
            seconds = _seconds(row.get("seconds"))
            if not own or math.isnan(seconds):
                continue
            said = times.setdefault(
                own[0].experiment, {"batch_hours": 0.0, "threads": threads, "batches": 0, "stopped": 0}
            )
            said["batch_hours"] += seconds / 3600
            said["batches" if row["ended"] == FINISHED else "stopped"] += 1
    return {
        name: times[name] | {"batch_hours": round(times[name]["batch_hours"], 2)} for name in sorted(times)
    }


def digest_in_log(record: dict[str, Any]) -> str:
    """What the log calls a run by its run.json."""
    return seal_key(record)[:DIGITS]


def _seconds(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def _line(values: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()
