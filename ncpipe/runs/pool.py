"""Share tasks between this process and others, which start only where there is enough work for them.

The other processes end with this one, however it ends. Only this process receives Ctrl-C.
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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

import psutil

from ncpipe.config.bounds import free_memory
from ncpipe.config.study import load_study, study_errors

WORTH = 3.0  # seconds of work that justify a further process, which takes two or three to start
TURNS = 2  # tasks queued for each process, so that it need not wait for the next
MEMORY_SHARE = 0.7  # of the free memory, for further processes of this one's size

Task = TypeVar("Task")
Found = TypeVar("Found")
_stop: Any = None  # in a process of a pool: set when training there should save and end


class WorkerPool:
    """Runs tasks in this process and in others, which end with the block.

    most: processes, this one included. expected: number of tasks in all.
    """

    def __init__(self, most: int, expected: int) -> None:
        self.most, self.left = most, expected
        self.seconds, self.done = 0.0, 0  # of this process's own tasks
        self.others: ProcessPoolExecutor | None = None
        self.count = 0  # of others

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        if self.others is not None:
            self.others.shutdown()

    def map(self, do: Callable[[Task], Found], tasks: Sequence[Task]) -> Iterator[Found]:
        """Yield `do(task)` for each task in order, or raise what it raises. do: a function of a module.

        If another process dies, this one does its tasks again.
        """
        todo = deque(range(len(tasks)))
        given: dict[Future[Found], int] = {}
        found: dict[int, Found] = {}
        try:
            for place in range(len(tasks)):
                while place not in found:
                    while len(given) < self._in_flight(len(todo)):
                        next_one = todo.popleft()
                        given[self._submit(do, tasks[next_one])] = next_one
                    if todo:
                        own = todo.popleft()
                        found[own] = self._do(do, tasks[own])
                    else:
                        concurrent.futures.wait(given, return_when=concurrent.futures.FIRST_COMPLETED)
                    for future in [future for future in given if future.done()]:
                        self._collect(future, given.pop(future), todo, found)
                yield found.pop(place)
                self.left -= 1
        except BaseException as error:
            if not isinstance(error, Exception):  # such as Ctrl-C: do not wait for the tasks
                for process in multiprocessing.active_children():
                    process.terminate()
            raise
        finally:
            concurrent.futures.wait(given)

    def _do(self, do: Callable[[Task], Found], task: Task) -> Found:
        begin = time.monotonic()
        found = do(task)
        self.seconds += time.monotonic() - begin
        self.done += 1
        return found

    def _collect(
        self, future: "Future[Found]", place: int, todo: "deque[int]", found: dict[int, Found]
    ) -> None:
        try:
            found[place] = future.result()
        except BrokenProcessPool:
            self.most = 1  # a process was killed: start no other
            todo.appendleft(place)

    def _submit(self, do: Callable[[Task], Found], task: Task) -> "Future[Found]":
        assert self.others is not None
        with uninterrupted():  # this starts processes
            return self.others.submit(_call, do, task)

    def _in_flight(self, waiting: int) -> int:
        """Return how many tasks other processes should have; start them once there is enough work.

        The estimate of the work is the time that this process's own tasks took.
        """
        if self.most > 1 and self.others is None and self.done:
            room = int(MEMORY_SHARE * free_memory() / psutil.Process().memory_info().rss)
            worth = int(self.seconds / self.done * self.left / WORTH) if WORTH else self.most
            self.count = min(self.most, worth, room + 1) - 1
            if self.count > 0:
                self.others = executor(self.count)
        if self.others is None or self.most == 1 or not waiting:
            return 0
        return TURNS * self.count


def executor(count: int, stop: Any = None) -> ProcessPoolExecutor:
    """Return processes that end with this one. stop: an event of `multiprocessing`, for `asked_to_stop`."""
    context = multiprocessing.get_context("spawn")  # a fork copies locks that no thread would release
    return ProcessPoolExecutor(count, context, _begin, (stop,))


def asked_to_stop() -> bool:
    """Return whether training in a process of a pool should save its state and end."""
    return _stop is not None and bool(_stop.is_set())


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Start processes in the block that ignore Ctrl-C; this process receives it when the block ends."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # else it starts in the block and unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(stop: Any) -> None:
    """Prepare another process, before its first task."""
    global _stop
    _stop = stop
    threading.Thread(target=_end_with_starter, daemon=True).start()
    load_study(Path())  # tasks may contain its classes


def _end_with_starter() -> None:
    """End this process when its starter ends, also within a task: another may have taken over its files."""
    if (starter := multiprocessing.parent_process()) is not None:
        multiprocessing.connection.wait([starter.sentinel])
        os._exit(1)


def _call(do: Callable[[Task], Found], task: Task) -> Found:
    with study_errors():
        return do(task)
