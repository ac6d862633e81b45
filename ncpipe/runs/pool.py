"""Share tasks between this process and others, which start only if there is enough work for them.

The other processes end with this one, even if it is killed. Only this process receives Ctrl-C.
"""

import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

import psutil

from ncpipe.config.study import load_study, study_errors
from ncpipe.system.machine import free_memory

SECONDS_PER_PROCESS = 3.0  # of work that justify another process, which takes two or three to start
QUEUED = 2  # tasks for each process, so that it does not wait for the next one
LOOK = 0.5  # seconds that a signal may wait for the thread that waits for tasks
MEMORY_SHARE = 0.7  # of the free memory, for other processes of this one's size

Task = TypeVar("Task")
Result = TypeVar("Result")
_stop: Any = None  # in another process: set when training there should save and end
_told: Any = None  # in another process: what it tells of its training, epoch and loss


class WorkerPool:
    """Runs tasks in this process and in others, which end with the block.

    most: largest number of processes, including this one.
    """

    def __init__(self, most: int) -> None:
        self.most, self.left = most, 0
        self.seconds, self.done = 0.0, 0  # of tasks in this process
        self.others: ProcessPoolExecutor | None = None
        self.count = 0  # of other processes

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        if self.others is not None:
            self.others.shutdown()

    def map(self, do: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        """Yield `do(task)` for each task in order, or raise its exception. do: a function of a module.

        If another process dies, this one repeats its tasks.
        """
        self.left = len(tasks)
        todo = deque(range(len(tasks)))
        submitted: dict[Future[Result], int] = {}
        results: dict[int, Result] = {}
        try:
            for index in range(len(tasks)):
                while index not in results:
                    while len(submitted) < self._in_flight(len(todo)):
                        if (future := self._submit(do, tasks[todo[0]])) is not None:
                            submitted[future] = todo.popleft()
                    if todo:
                        here = todo.popleft()
                        results[here] = self._do(do, tasks[here])
                    else:
                        concurrent.futures.wait(submitted, LOOK, concurrent.futures.FIRST_COMPLETED)
                    for future in [future for future in submitted if future.done()]:
                        self._collect(future, submitted.pop(future), todo, results)
                yield results.pop(index)
                self.left -= 1
        except BaseException as error:
            if not isinstance(error, Exception):  # such as Ctrl-C: do not wait for the tasks
                for process in multiprocessing.active_children():
                    process.terminate()
            raise
        finally:
            concurrent.futures.wait(submitted)

    def _do(self, do: Callable[[Task], Result], task: Task) -> Result:
        start = time.monotonic()
        result = do(task)
        self.seconds += time.monotonic() - start
        self.done += 1
        return result

    def _collect(
        self, future: "Future[Result]", index: int, todo: "deque[int]", results: dict[int, Result]
    ) -> None:
        try:
            results[index] = future.result()
        except BrokenProcessPool:
            self.most = 1  # a process was killed: start no other
            todo.appendleft(index)

    def _submit(self, do: Callable[[Task], Result], task: Task) -> "Future[Result] | None":
        """Give a task to another process; return None if one was killed, after which none takes any."""
        assert self.others is not None
        with uninterrupted():  # this starts processes
            try:
                return self.others.submit(_call, do, task)
            except BrokenProcessPool:
                self.most = 1
                return None

    def _in_flight(self, waiting: int) -> int:
        """Return how many tasks other processes should have; start processes if there is enough work.

        The work is estimated from the time of this process's tasks.
        """
        if self.most > 1 and self.others is None and self.done:
            fit = 1 + int(MEMORY_SHARE * free_memory() / psutil.Process().memory_info().rss)
            seconds = self.seconds / self.done * self.left
            worth = int(seconds / SECONDS_PER_PROCESS) if SECONDS_PER_PROCESS else self.most
            self.count = min(self.most, worth, fit) - 1
            if self.count > 0:
                self.others = executor(self.count)
        if self.others is None or self.most == 1 or not waiting:
            return 0
        return QUEUED * self.count


def completed(futures: "Iterable[Future[Result]]") -> "Iterator[Future[Result]]":
    """Yield futures as they complete, as `concurrent.futures.as_completed` does, and hear every signal.

    Python would miss a signal that comes just before a wait without a time limit, until another one comes.
    """
    pending = set(futures)
    while pending:
        done, pending = concurrent.futures.wait(pending, LOOK, concurrent.futures.FIRST_COMPLETED)
        yield from done


def executor(count: int, stop: Any = None, told: Any = None) -> ProcessPoolExecutor:
    """Return processes that end with this one.

    stop: an event of `multiprocessing`, for `should_stop`. told: an array of two numbers, for `tell`.
    """
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that no thread releases
    return ProcessPoolExecutor(count, context, _initialise, (stop, told))


def should_stop() -> bool:
    """Return whether training in another process should save its state and end."""
    return _stop is not None and bool(_stop.is_set())


def tell(epoch: int, loss: float) -> None:
    """Tell the first process how far training in another one is."""
    _told[:] = [epoch, loss]


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Block Ctrl-C for processes that start in the block; this process receives it when the block ends."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # otherwise it starts in the block and unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _initialise(stop: Any, told: Any) -> None:
    """Prepare another process, before its first task."""
    global _stop, _told
    _stop, _told = stop, told
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    load_study(Path())  # tasks may contain its classes


def _exit_with_parent() -> None:
    """End this process when its parent ends, even during a task, since another process may use its files."""
    if (parent := multiprocessing.parent_process()) is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _call(do: Callable[[Task], Result], task: Task) -> Result:
    with study_errors():
        return do(task)
