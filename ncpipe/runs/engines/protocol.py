"""What an engine does, and how the driver runs tasks by one.

The driver decides what is to be trained; engines know nothing of DVC. They take `Task`s and give
`TaskResult`s (`ncpipe.runs.engines.task`); the results are folders in the store, which are checked to the bit
before DVC sees them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from ncpipe.runs.engines.task import Task, TaskResult
from ncpipe.system.console import say
from ncpipe.system.errors import InputError

LOST = 3  # times that a task is tried again whose process or machine ended, without progress in between


class Engine(Protocol):
    """Trains tasks somewhere.

    tries_again: whether another try may succeed where the first failed. outlives: whether its jobs continue
    when the driver ends.
    """

    tries_again: bool
    outlives: bool

    def submit(self, tasks: Sequence[Task]) -> None:
        """Take tasks, also while `watch` is under way. Batches are sized where they train."""

    def watch(self, wait: bool = True) -> Iterator[list[TaskResult]]:
        """Yield the results of tasks as they end; without `wait` only of those that have ended by now.

        Tasks that an earlier process submitted, and whose results it has not seen, are among them.
        """

    def collect(self, result: TaskResult) -> None:
        """Make sure that the finished runs of a task are in the store here."""

    def cancel(self) -> None:
        """End all that waits or trains; what trains saves its checkpoints where it can."""

    def more_memory(self, task: Task) -> Task | None:
        """Return the same task with more memory; None where no more can be asked for."""


def run_tasks(engine: Engine, tasks: Sequence[Task], keep_going: bool, wait: bool = True) -> list[TaskResult]:
    """Train tasks into the store by an engine, and what may yet succeed once more; return what failed.

    Unless `keep_going`, the first that fails for good is an InputError. On that and on Ctrl-C what trains is
    cancelled, unless the engine's jobs outlive the driver.
    """
    failed: list[TaskResult] = []
    try:
        if tasks:
            engine.submit(tasks)
        for results in engine.watch(wait):
            for result in results:
                engine.collect(result)
            again: list[Task] = []  # of one look, submitted together
            for result in results:
                more = next_try(result, engine) if engine.tries_again else []
                again += more
                if more:
                    say(f"sweep: {_line(result)}; tried again{_how(result, more)}")
                elif result.state != "done" and result.task.missing():  # a lost task may have been finished
                    failed.append(result)
                    if not keep_going:
                        raise InputError(result.reason)
                    say(f"ncpipe: {result.reason}")
            if again:
                engine.submit(again)
    except BaseException:
        if not engine.outlives:
            engine.cancel()
        raise
    return failed


def next_try(result: TaskResult, engine: Engine) -> list[Task]:
    """Return what to try once more.

    Of a failed batch each run alone, once; halves of what took too much memory, and a single run with more
    memory; what was lost, up to three times in a row without progress; what was preempted, always.
    """
    task, missing = result.task, result.task.missing()
    if result.state in ("done", "refused") or not missing:
        return []
    rest = task.of(missing)
    if result.state in ("lost", "preempted"):
        if result.state == "preempted" or task.epochs_done() > max(0, task.epochs_before):
            return [replace(rest, tries=0)]
        return [replace(rest, tries=task.tries + 1)] if task.tries < LOST else []
    if len(missing) > 1:
        again = rest.in_parts(2 if result.state == "memory" else len(missing))
        return [replace(part, tries=task.tries + 1) for part in again]
    if result.state == "memory":
        more = engine.more_memory(rest)
        return [] if more is None else [more]
    return [replace(rest, tries=1)] if task.tries == 0 else []


def _line(result: TaskResult) -> str:
    """What happened, in one line."""
    how = {"memory": "ran out of memory", "lost": "was lost", "preempted": "was preempted"}
    first = result.reason.strip().partition("\n")[0].removeprefix(f"{result.task.name}: ")
    return f"{result.task.name} {how.get(result.state, result.state)}" + (f" ({first})" if first else "")


def _how(result: TaskResult, again: Sequence[Task]) -> str:
    if result.state in ("lost", "preempted"):
        return " from its checkpoints" if result.task.epochs_done() else ""
    if len(result.task.runs) == 1:
        return " with more memory" if result.state == "memory" else ""
    return " with half the batch" if result.state == "memory" else ", each run alone"
