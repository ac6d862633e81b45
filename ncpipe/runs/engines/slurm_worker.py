"""Run a job of Slurm: python -m ncpipe.runs.engines.slurm_worker data/.jobs/ARRAY/INDEX

The worker trains the tasks in its job's file, one after the other, in the sweep's folder. Slurm sends SIGUSR2
before the time limit, and SIGTERM when it preempts or cancels the job. The worker then saves checkpoints and
writes no result, so the job can be queued again and resume.
"""

import contextlib
import json
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncpipe.runs.engines.jobs import RESULT, TASKS
from ncpipe.runs.engines.task import Task, TaskResult, from_json
from ncpipe.system.artifacts import publish_file

REQUEUE = ".requeue"


def main(job: str) -> int:
    """Train the tasks of a job and return the exit code. job: path of its files without their endings."""
    stop = threading.Event()
    signals: list[int] = []

    def on_signal(number: int, frame: Any) -> None:  # without a handler the signal would end the process
        signals.append(number)
        stop.set()

    for number in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, on_signal)
    tasks = from_json(Path(f"{job}{TASKS}").read_text(encoding="utf-8"))
    before = sum(task.epochs_done() for task in tasks)
    results = _train(tasks, stop)
    reason = ""
    if len(results) < len(tasks):
        if signals[-1] == signal.SIGTERM:
            return 128 + signal.SIGTERM
        if sum(task.epochs_done() for task in tasks) > before:
            Path(f"{job}{REQUEUE}").touch()
            return 0
        reason = "no epoch was finished within the time limit; make slurm.time longer"
    values = {
        "results": [{"state": result.state, "reason": result.reason} for result in results],
        "reason": reason,
    }
    with publish_file(Path(f"{job}{RESULT}")) as partial:
        partial.write_text(json.dumps(values), encoding="utf-8")
    return 0


def _train(tasks: Sequence[Task], stop: threading.Event) -> list[TaskResult]:
    """Train tasks until all have ended or `stop` is set; return the results of those that have ended.

    Batches train in threads of their own, so this thread receives signals while it waits for them.
    """
    from ncpipe.runs.engines.worker import train_task  # only now: loads PyTorch, which takes seconds
    from ncpipe.training.checkpoints import Stopped

    results: list[TaskResult] = []
    with contextlib.suppress(Stopped):
        for task in tasks:
            results.append(train_task(task, stop))
    return results


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
