"""Define the base class of engines, and run tasks through one.

The driver (`ncpipe.runs.fill`) decides what to train and knows DVC; an engine knows neither. It takes `Task`s
and returns `TaskResult`s (`ncpipe.runs.engines.task`). Results are folders in the store, and every bit of
them is checked before DVC sees them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ncpipe.runs.engines.task import Task, TaskResult
from ncpipe.system.console import say
from ncpipe.system.errors import InputError

MOST_LOSSES = 3  # times in a row that a task may lose its process or machine without progress


class Engine(ABC):
    """Trains tasks into the store: in jobs of Slurm or on a Ray cluster."""

    @abstractmethod
    def submit(self, tasks: Sequence[Task]) -> None:
        """Take tasks, also while `watch` is running. Batches are sized where they train."""

    @abstractmethod
    def watch(self, wait: bool = True) -> Iterator[list[TaskResult]]:
        """Yield the results of tasks as they end; without `wait`, only of those that have ended by now.

        Includes tasks of earlier processes whose results were not collected.
        """

    def cancel(self) -> None:  # noqa: B027
        """End what trains when the driver fails, with its checkpoints saved.

        By default nothing: the tasks end with this process, or continue without it.
        """


def run_tasks(engine: Engine, tasks: Sequence[Task], keep_going: bool, wait: bool = True) -> list[TaskResult]:
    """Train tasks into the store, retry those that may succeed, and return those that failed.

    Without `keep_going`, the first task that failed for good raises InputError. On errors and Ctrl-C the
    engine is cancelled.
    """
    failed: list[TaskResult] = []
    try:
        if tasks:
            engine.submit(tasks)
        for results in engine.watch(wait):
            retried: list[Task] = []  # submitted together
            for result in results:
                parts = tasks_to_retry(result)
                retried += parts
                if parts:
                    say(f"sweep: {_what_happened(result)}; tried again{_how_retried(result)}")
                elif result.state != "done" and result.task.missing():  # a lost task may have finished
                    failed.append(result)
                    if not keep_going:
                        raise InputError(result.reason)
                    if result.reason:  # otherwise the engine has printed it
                        say(f"ncpipe: {result.reason}")
            if retried:
                engine.submit(retried)
    except BaseException:
        engine.cancel()
        raise
    return failed


def tasks_to_retry(result: TaskResult) -> list[Task]:
    """Return the tasks to submit again after a result.

    - failed: each run alone, once.
    - out of memory: two halves, of more than one run.
    - lost: up to three times in a row without progress.
    - preempted: always.
    """
    task, missing = result.task, result.task.missing()
    if result.state in ("done", "refused") or not missing:
        return []
    rest = task.subset(missing)
    if result.state in ("lost", "preempted"):
        if result.state == "preempted" or task.epochs_done() > max(0, task.epochs_before):
            return [replace(rest, tries=0)]
        return [replace(rest, tries=task.tries + 1)] if task.tries < MOST_LOSSES else []
    if len(missing) > 1:
        parts = rest.split(2 if result.state == "memory" else len(missing))
        return [replace(part, tries=task.tries + 1) for part in parts]
    return [replace(rest, tries=1)] if task.tries == 0 and result.state == "failed" else []


def _what_happened(result: TaskResult) -> str:
    """Return in one line how a task ended."""
    verbs = {"memory": "ran out of memory", "lost": "was lost", "preempted": "was preempted"}
    reason = result.reason.strip().partition("\n")[0].removeprefix(f"{result.task.name}: ")
    return f"{result.task.name} {verbs.get(result.state, result.state)}" + (f" ({reason})" if reason else "")


def _how_retried(result: TaskResult) -> str:
    if result.state in ("lost", "preempted"):
        return " from its checkpoints" if result.task.epochs_done() else ""
    if len(result.task.runs) == 1:
        return ""
    return " with half the batch" if result.state == "memory" else ", each run alone"
