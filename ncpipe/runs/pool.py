"""Processes that share tasks with this one: the standard library's pool, started while there is work for it.

Nothing outlives this process, however it ends, and an interrupt from the keyboard is this one's alone.
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
from ncpipe.config.study import load_study, own_mistakes

WORTH = 3.0  # seconds of work that a further process is started for, which takes two or three itself
TURNS = 2  # tasks that each process has, so that it need not wait for the next
MEMORY_SHARE = 0.7  # of what is free, that further processes of this one's size may take

Task = TypeVar("Task")
Found = TypeVar("Found")
_stop: Any = None  # in a process of a pool: set when what trains there is to save and end


class Pool:
    """This process and others, which are started while there is work for them and end with the block.

    most: processes, this one among them. expected: tasks that there will be in all.
    """

    def __init__(self, most: int, expected: int) -> None:
        self.most, self.left = most, expected
        self.seconds, self.done = 0.0, 0  # of this process's own tasks
        self.others: ProcessPoolExecutor | None = None
        self.count = 0  # of others

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        if self.others is not None:
            self.others.shutdown()

    def each(self, do: Callable[[Task], Found], tasks: Sequence[Task]) -> Iterator[Found]:
        """What a function of a module gives, or raises, for each task, in their order.

        What a process was at that something else has ended is done by this one.
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
            if not isinstance(error, Exception):  # as Ctrl-C: nobody waits for a task
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
            self.most = 1  # where one was ended, no other one is started
            todo.appendleft(place)

    def _submit(self, do: Callable[[Task], Found], task: Task) -> "Future[Found]":
        assert self.others is not None
        with uninterrupted():  # processes are started here
            return self.others.submit(_call, do, task)

    def _in_flight(self, waiting: int) -> int:
        """How many tasks other processes are to have, which are started once there is work for them: as long
        as this process's own tasks took."""
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
    """Processes that end with this one. stop: an event of `multiprocessing` that tasks may ask for."""
    context = multiprocessing.get_context("spawn")  # a fork has locks of threads that it lacks
    return ProcessPoolExecutor(count, context, _begin, (stop,))


def asked_to_stop() -> bool:
    """Whether what trains in a process of a pool is to save and end."""
    return _stop is not None and bool(_stop.is_set())


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """What starts in the block never hears Ctrl-C; here it comes when the block ends."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # else it starts in the block, and lets signals through at its end
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(stop: Any) -> None:
    """In another process, first of all."""
    global _stop
    _stop = stop
    threading.Thread(target=_end_with_starter, daemon=True).start()
    load_study(Path())  # whose classes tasks may be of


def _end_with_starter() -> None:
    """In the middle of a task too: what it writes into has perhaps been given to another one since."""
    if (starter := multiprocessing.parent_process()) is not None:
        multiprocessing.connection.wait([starter.sentinel])
        os._exit(1)


def _call(do: Callable[[Task], Found], task: Task) -> Found:
    with own_mistakes():
        return do(task)
