"""What each batch took, in a log that no stage reads: results have no times, and are the same anywhere."""

import contextlib
import csv
from collections.abc import Mapping, Sequence
from typing import Any

from ncpipe.config.specs import Run
from ncpipe.runs.fingerprint import Stamp, seal_key
from ncpipe.system.artifacts import LOGS

BATCH_LOG = LOGS / "batches.csv"
HEAD = "experiment,depth,runs,device,seconds,ended,digests\n"
FINISHED = "finished"
STOPPED = "stopped"
DIGITS = 16  # of a run's digest


def log_time(stamps: Sequence[Stamp], device: str, seconds: float, ended: str) -> None:
    """Add a batch, named after its first run. seconds: wall-clock; ended: FINISHED or STOPPED.

    digests: what the runs' folders are sealed with, by which `training_times` knows the results that are
    still there. A log with other columns, of another version, is begun anew.
    """
    run = stamps[0].run
    digests = " ".join(stamp.key()[:DIGITS] for stamp in stamps)
    row = f"{run.experiment},{run.depth},{len(stamps)},{device},{seconds:.2f},{ended},{digests}\n"
    LOGS.mkdir(parents=True, exist_ok=True)
    with BATCH_LOG.open("a+", encoding="utf-8", errors="replace", newline="\n") as file:
        file.seek(0)
        if (first := file.readline()) not in ("", HEAD):
            file.truncate(0)
        file.write(row if first == HEAD else HEAD + row)  # one write: others write too


def training_times(made: Mapping[str, Run], threads: int) -> dict[str, Any]:
    """Hours that the batches took which trained these runs, by experiment, added up.

    made: digest of a run's folder (`digest_in_log`) -> the run. A batch counts with the first of its runs
    that is among them; one that trained what has been replaced since does not. threads: of each batch, so
    hours x threads are core hours of a machine with nothing else to do. stopped: how often a batch was
    stopped and taken up again. What a killed process did is not in the log.
    """
    text = BATCH_LOG.read_text(encoding="utf-8", errors="replace") if BATCH_LOG.is_file() else HEAD
    batches: dict[str, list[tuple[float, str]]] = {}
    for row in csv.DictReader(text.splitlines()):
        own = [made[digest] for digest in (row.get("digests") or "").split() if digest in made]
        if own:
            with contextlib.suppress(ValueError):  # damaged
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
    """What the log calls a run by its run.json."""
    return seal_key(record)[:DIGITS]
