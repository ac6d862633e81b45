"""What each stage took that DVC ran, in data/logs/stages.csv: only pages that are asked for times read it."""

import contextlib
import csv
import time
from collections.abc import Iterator

from ncpipe.system.artifacts import LOGS

STAGE_LOG = LOGS / "stages.csv"
HEAD = "stage,item,seconds\n"


@contextlib.contextmanager
def timed(address: str | None) -> Iterator[None]:
    """Log the time that the block took, if it ends without an error.

    address: DVC's, as `train@NAME-2-0`; None where DVC did not start it. On a full disk nothing is logged.
    """
    begin = time.monotonic()
    try:
        yield
    except SystemExit as stop:  # how typer ends
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
        with STAGE_LOG.open("a", encoding="utf-8") as file:  # one write: stages may end side by side
            file.write(f"{'' if file.tell() else HEAD}{stage},{item},{seconds:.1f}\n")


def stage_times() -> dict[str, float]:
    """Return seconds by stage: the sum over its items of the time that each took when it last ran here."""
    if not STAGE_LOG.is_file():
        return {}
    with STAGE_LOG.open(newline="", encoding="utf-8") as file:
        last = {(row["stage"], row["item"]): float(row["seconds"]) for row in csv.DictReader(file)}
    total: dict[str, float] = {}
    for (stage, _), seconds in last.items():
        total[stage] = total.get(stage, 0.0) + seconds
    return total
