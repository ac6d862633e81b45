"""Log the time of each stage that DVC runs in data/logs/stages.csv, for `ncpipe report --times`."""

import contextlib
import csv
import time
from collections.abc import Iterator

from ncpipe.system.artifacts import LOGS

STAGE_LOG = LOGS / "stages.csv"
HEAD = "stage,item,seconds\n"


@contextlib.contextmanager
def timed(address: str | None) -> Iterator[None]:
    """Log the time of the block if it ends without an error.

    address: the stage's name in DVC, as `train@NAME-2-0`; None if DVC did not start it. Nothing is logged on
    a full disk.
    """
    begin = time.monotonic()
    try:
        yield
    except SystemExit as stop:  # typer ends with this
        if not stop.code:
            write_time(address, time.monotonic() - begin)
        raise
    write_time(address, time.monotonic() - begin)


def write_time(address: str | None, seconds: float) -> None:
    """Append a line to the log."""
    if address is None:
        return
    stage, _, item = address.rpartition(":")[2].partition("@")
    with contextlib.suppress(OSError):
        LOGS.mkdir(parents=True, exist_ok=True)
        with STAGE_LOG.open("a", encoding="utf-8") as file:  # one write, since several stages may append
            file.write(f"{'' if file.tell() else HEAD}{stage},{item},{seconds:.1f}\n")


def stage_times() -> dict[str, float]:
    """Return seconds by stage: the sum over its items of the time of their last run here."""
    if not STAGE_LOG.is_file():
        return {}
    with STAGE_LOG.open(newline="", encoding="utf-8") as file:
        last = {(row["stage"], row["item"]): float(row["seconds"]) for row in csv.DictReader(file)}
    total: dict[str, float] = {}
    for (stage, _), seconds in last.items():
        total[stage] = total.get(stage, 0.0) + seconds
    return total
