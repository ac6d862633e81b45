"""Run a job of Slurm: python -m ncpipe.runs.engines.slurm_worker data/.jobs/ARRAY/INDEX

The worker trains the tasks in its job's file, one after the other, in the sweep's folder. Slurm sends SIGUSR2
before the time limit, and SIGTERM when it preempts or cancels the job. The worker then saves checkpoints and
writes no result, so the job can be queued again and resume.
"""

import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncpipe.runs.engines.jobs import RESULT, TASKS
from ncpipe.runs.engines.task import Task, TaskResult, from_json
from ncpipe.system.artifacts import publish_file

POLL = 0.05  # seconds between two checks whether training has ended
REQUEUE = ".requeue"
KILOBYTES = 1024 if sys.platform == "darwin" else 1  # ru_maxrss is in bytes there


class Worker:
    """Trains tasks in a thread, while the main thread receives signals."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = list(tasks)
        self.results: list[TaskResult] = []
        self.signal: int | None = None  # the last one received
        self._stop = threading.Event()

    def install_signal_handlers(self) -> None:
        """Stop training at a signal; without this the signal would end the process."""
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def run(self) -> bool:
        """Train until all tasks have ended or a signal arrives; return whether all have ended."""
        thread = threading.Thread(target=self._train)
        thread.start()
        while thread.is_alive():
            thread.join(POLL)
        return len(self.results) == len(self.tasks)

    def _train(self) -> None:
        from ncpipe.runs.engines.worker import train_task  # only now: loads PyTorch, which takes seconds
        from ncpipe.training.loop import Stopped

        for task in self.tasks:
            try:
                self.results.append(train_task(task, self._stop))
            except Stopped:
                return

    def _on_signal(self, number: int, frame: Any) -> None:
        self.signal = number
        self._stop.set()


def main(job: str) -> int:
    """Train the tasks of a job and return the exit code. job: path of its files without their endings."""
    started = time.time()
    tasks = from_json(Path(f"{job}{TASKS}").read_text(encoding="utf-8"))
    before = sum(task.epochs_done() for task in tasks)
    worker = Worker(tasks)
    worker.install_signal_handlers()
    reason = ""
    if not worker.run():
        if worker.signal == signal.SIGTERM:
            return 128 + signal.SIGTERM
        if sum(task.epochs_done() for task in tasks) > before:
            Path(f"{job}{REQUEUE}").touch()
            return 0
        reason = "no epoch was finished within the time limit; make slurm.time longer"
    values = {
        "results": [{"state": result.state, "reason": result.reason} for result in worker.results],
        "reason": reason,
        "seconds": time.time() - started,
        "started": started,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 * KILOBYTES),
        "restarts": int(os.environ.get("SLURM_RESTART_COUNT", 0)),
    }
    with publish_file(Path(f"{job}{RESULT}")) as partial:
        partial.write_text(json.dumps(values), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
