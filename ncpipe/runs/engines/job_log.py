"""Keep what training printed in data/logs/jobs: NAME.log, and NAME.runs, which says whose log it is.

No stage reads these files.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ncpipe.runs.run_claims import job_id
from ncpipe.system.artifacts import LOGS, publish_file
from ncpipe.system.console import recorded_lines

JOB_LOGS = LOGS / "jobs"
RUNS = ".runs"
_open: list[tuple[Path, str, list[str]]] = []  # logs of this process, their headings and runs


def describe_log(log: Path, heading: str, keys: Iterable[str]) -> None:
    """Write which job has written a log, and the fingerprints of its runs, a line each."""
    with contextlib.suppress(OSError), publish_file(log.with_suffix(RUNS)) as partial:
        partial.write_text("\n".join([heading, *keys]), encoding="utf-8")


def log_runs(keys: Iterable[str]) -> None:
    """Record that runs begin to train in this process."""
    for log, heading, known in _open:
        known += keys
        describe_log(log, heading, known)


def logs_of(key: str) -> Iterator[tuple[str, Path]]:
    """Yield the heading and the path of each log with this run."""
    for file in JOB_LOGS.glob(f"*{RUNS}"):
        with contextlib.suppress(OSError, ValueError):
            heading, *keys = file.read_text(encoding="utf-8").splitlines()
            if key in keys:
                yield heading, file.with_suffix(".log")


@contextlib.contextmanager
def recorded_job(name: str) -> Iterator[None]:
    """Write what the block prints to a log. If that cannot be written, the block runs without it."""
    name = f"slurm {job}" if (job := job_id()) else name
    log = JOB_LOGS / f"{name.replace(' ', '-').replace('=', '')}-{time.time():.0f}-{os.getpid()}.log"
    try:
        JOB_LOGS.mkdir(parents=True, exist_ok=True)
        file = log.open("a", encoding="utf-8", buffering=1)
    except OSError:
        yield
        return
    keys: list[str] = []
    _open.append((log, f"{name} (training, or killed)", keys))
    state = "STOPPED"
    with file:
        try:
            with recorded_lines(file.write):
                yield
            state = "COMPLETED"
        finally:
            _open.pop()
            describe_log(log, f"{name} ({state})", keys)
