"""Run a job of Slurm: python -m ncpipe.runs.engines.slurm_job data/.jobs/ARRAY

Each job of an array is a `fill` of the array's runs: it claims batch by batch until none is left. Slurm sends
SIGUSR2 before the time limit, and SIGTERM when it preempts or cancels the job. The job then saves checkpoints
and releases its claims; before the time limit it also asks, by its exit code, to be queued again.
"""

import signal
import sys
import threading
from pathlib import Path
from typing import Any

from ncpipe.runs.engines.arrays import read_array
from ncpipe.runs.engines.slurm_commands import REQUEUE
from ncpipe.system.console import say
from ncpipe.system.errors import InputError


def main(folder: Path) -> int:
    """Train runs of the array in a folder until none is left or Slurm ends the job; return an exit code.

    `ncpipe sweep --cancel` removes the folder, perhaps while the job starts.
    """
    stop, signals = threading.Event(), list[int]()

    def on_signal(number: int, frame: Any) -> None:  # without a handler the signal would end the process
        signals.append(number)
        stop.set()

    for number in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, on_signal)
    try:
        return _train(folder, stop, signals)
    except Exception as error:
        if not folder.is_dir():
            say(f"ncpipe: {folder} is gone, as its array was cancelled")
            return 128 + signal.SIGTERM
        if not isinstance(error, OSError):
            raise
        say(f"ncpipe: {error}")
        return 1


def _train(folder: Path, stop: threading.Event, signals: list[int]) -> int:
    from ncpipe.runs.engines.options import Settings
    from ncpipe.runs.fill import fill, runs_of_keys  # only now: loads PyTorch, which takes seconds
    from ncpipe.runs.store import epochs_of
    from ncpipe.training.checkpoints import Stopped

    array = read_array(folder)
    jobs = 2**array.losses * array.jobs  # smaller batches after each loss
    fingerprints, before = [], 0
    try:
        fingerprints = runs_of_keys(array.keys, array.device)
        before = epochs_of(fingerprints)
        settings = Settings(
            fingerprints[0].compute, array.workers, array.checkpoint_seconds, True, len(fingerprints), "job",
            jobs,
        )  # fmt: skip
        return 1 if fill(fingerprints, settings, wait=False, stop=stop) else 0
    except InputError as error:
        say(f"ncpipe: {error}")
        return 1
    except Stopped:
        if signals[-1] == signal.SIGTERM:
            return 128 + signal.SIGTERM
        if epochs_of(fingerprints) > before:
            return REQUEUE
        say("ncpipe: no epoch was finished within the time limit; make slurm.time longer")
        return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
