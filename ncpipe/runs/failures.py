"""Why runs could not be trained: a log for each in data/logs, until it trains."""

import contextlib
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from ncpipe.config.specs import Run
from ncpipe.system.artifacts import LOGS


def log_of(run: Run) -> Path:
    """Where it is said why a run failed."""
    return LOGS / f"failed-{'-'.join(run.path.parts)}.log"


@contextlib.contextmanager
def logged(runs: Iterable[Run], stopped: type[Exception]) -> Iterator[None]:
    """What goes wrong in the block is written down for each of the runs; if nothing does, older logs go.

    stopped: what is raised where nothing is wrong, and the runs go on from their checkpoints another time.
    What a full disk keeps from being written is said on the terminal all the same.
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
                log_of(run).write_text(f"{run.name}: {error}\n\n{text}", encoding="utf-8")
        raise
    for run in runs:
        log_of(run).unlink(missing_ok=True)
