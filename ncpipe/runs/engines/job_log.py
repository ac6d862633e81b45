"""Keep what jobs printed, in data/logs/jobs: NAME.log, and beside it NAME.runs, which says whose log it is.

A job is a task of Slurm or Ray, or a local sweep. No stage reads these files.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ncpipe.system.artifacts import LOGS, publish_file
from ncpipe.system.console import recorded_lines

JOB_LOGS = LOGS / "jobs"
RUNS = ".runs"


def describe_log(log: Path, heading: str, keys: Iterable[str]) -> None:
    """Write which job has written a log, and the fingerprints of its runs, a line each."""
    with contextlib.suppress(OSError), publish_file(log.with_suffix(RUNS)) as partial:
        partial.write_text("\n".join([heading, *keys]), encoding="utf-8")


def logs_of(key: str) -> Iterator[tuple[str, Path]]:
    """Yield the heading and the path of each log with this run."""
    for file in JOB_LOGS.glob(f"*{RUNS}"):
        with contextlib.suppress(OSError, ValueError):
            heading, *keys = file.read_text(encoding="utf-8").splitlines()
            if key in keys:
                yield heading, file.with_suffix(".log")


@contextlib.contextmanager
def recorded_job(engine: str, keys: Sequence[str]) -> Iterator[None]:
    """Write what the block prints to a log. If that cannot be written, the block runs without it."""
    log = JOB_LOGS / f"{engine}-{time.time():.0f}-{os.getpid()}.log"
    try:
        JOB_LOGS.mkdir(parents=True, exist_ok=True)
        file = log.open("a", encoding="utf-8", buffering=1)
    except OSError:
        yield
        return
    describe_log(log, f"{engine} (training, or killed)", keys)
    state = "STOPPED"
    with file:
        try:
            with recorded_lines(file.write):
                yield
            state = "COMPLETED"
        finally:
            describe_log(log, f"{engine} {log.stem} ({state})", keys)
