"""What a job of Slurm runs: python -m ncpipe.runs.engines.slurm_worker data/.jobs/ARRAY/INDEX

It trains the tasks of its file, one after the other, in the folder of the sweep. Before the time limit Slurm
sends SIGUSR2, and SIGTERM when it preempts or cancels the job: checkpoints are saved, and no result is
written, so that the job may start again and continue from them.
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

LOOK = 0.05  # seconds between two looks at the training
AGAIN = ".again"
KILOBYTES = 1024 if sys.platform == "darwin" else 1  # ru_maxrss is in bytes there


class Worker:
    """Trains tasks in a thread, while the main thread hears signals."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = list(tasks)
        self.results: list[TaskResult] = []
        self.signal: int | None = None  # the last one that came
        self._stop = threading.Event()

    def listen(self) -> None:
        """Note signals from now on; without this they would end the process."""
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._hear)

    def run(self) -> bool:
        """Train until all is done or a signal comes; return whether all was done."""
        thread = threading.Thread(target=self._train)
        thread.start()
        while thread.is_alive():
            thread.join(LOOK)
        return len(self.results) == len(self.tasks)

    def _train(self) -> None:
        from ncpipe.runs.engines.worker import train_task  # only now: loads PyTorch, which takes seconds
        from ncpipe.training.loop import Stopped

        for task in self.tasks:
            try:
                self.results.append(train_task(task, self._stop))
            except Stopped:
                return

    def _hear(self, number: int, frame: Any) -> None:
        self.signal = number
        self._stop.set()


def main(job: str) -> int:
    """Train the tasks of a job. job: its files, less their endings. Returns the exit code."""
    begun = time.time()
    tasks = from_json(Path(f"{job}{TASKS}").read_text(encoding="utf-8"))
    before = sum(task.epochs_done() for task in tasks)
    worker = Worker(tasks)
    worker.listen()
    reason = ""
    if not worker.run():
        if worker.signal == signal.SIGTERM:
            return 128 + signal.SIGTERM
        if sum(task.epochs_done() for task in tasks) > before:
            Path(f"{job}{AGAIN}").touch()
            return 0
        reason = "no epoch was finished within the time limit; make slurm.time longer"
    values = {
        "results": [{"state": result.state, "reason": result.reason} for result in worker.results],
        "reason": reason,
        "seconds": time.time() - begun,
        "begun": begun,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 * KILOBYTES),
        "restarts": int(os.environ.get("SLURM_RESTART_COUNT", 0)),
    }
    with publish_file(Path(f"{job}{RESULT}")) as partial:
        partial.write_text(json.dumps(values), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
