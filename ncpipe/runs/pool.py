"""Share tasks among processes, which start only if there is enough work for them.

They end with this one, even if it is killed. Only this process receives Ctrl-C.
"""

import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

import psutil

from ncpipe.config.study import load_study, study_errors
from ncpipe.runs.code_digests import files_digest
from ncpipe.system.errors import InputError
from ncpipe.system.machine import free_memory, usable_cores

SECONDS_PER_PROCESS = 3.0  # of work that justify another process, which takes two or three to start
LOOK = 0.5  # seconds that a signal may wait for the thread that waits for tasks
MEMORY_SHARE = 0.7  # of the free memory, for other processes of this one's size

Task = TypeVar("Task")
Result = TypeVar("Result")
_stop: Any = None  # in another process: set when training there should save and end
_state: Any = None  # in another process: epoch and loss of its training


def process_count(wanted: int | None, threads: int) -> int:
    """Return how many processes, or batches, of so many threads work at the same time."""
    return wanted or max(1, usable_cores() // threads)


def share(do: Callable[[Task], Result], tasks: Sequence[Task], most: int = 1) -> Iterator[Result]:
    """Yield `do(task)` for each task in order, or raise its exception. do: a function of a module.

    This process does the tasks until their time tells that others are worth their start; these do the rest.
    most: largest number of processes.
    """
    seconds = 0.0
    for index, task in enumerate(tasks):
        if (count := _worth(seconds / max(index, 1) * (len(tasks) - index), most)) > 1:
            yield from share_among(count, do, tasks[index:])
            return
        begin = time.monotonic()
        result = do(task)
        seconds += time.monotonic() - begin
        yield result


def _worth(seconds: float, most: int) -> int:
    """Return how many processes work of so many seconds is worth, of those that fit into memory."""
    count = min(most, int(seconds / SECONDS_PER_PROCESS))
    if count < 2:
        return 1
    return min(count, int(MEMORY_SHARE * free_memory() / psutil.Process().memory_info().rss))


def share_among(count: int, do: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
    """Yield `do(task)` for each task in order, or raise its exception, by so many other processes."""
    code = files_digest()
    with executor(count) as others:
        try:
            with uninterrupted():  # this starts processes
                futures = [others.submit(_call, code, do, task) for task in tasks]
            for future in futures:
                for done in completed([future]):
                    yield done.result()
        except BrokenProcessPool:
            raise InputError(
                "a process was killed, perhaps for want of memory; set NCPIPE_WORKERS=1 and start again"
            ) from None
        except BaseException as error:
            if not isinstance(error, Exception):  # such as Ctrl-C: do not wait for the tasks
                for process in multiprocessing.active_children():
                    process.terminate()
            others.shutdown(cancel_futures=True)
            raise


def completed(futures: "Iterable[Future[Result]]") -> "Iterator[Future[Result]]":
    """Yield futures as they complete, as `concurrent.futures.as_completed` does, and hear every signal.

    Python would miss a signal that comes just before a wait without a time limit, until another one comes.
    """
    pending = set(futures)
    while pending:
        done, pending = concurrent.futures.wait(pending, LOOK, concurrent.futures.FIRST_COMPLETED)
        yield from done


def executor(count: int, stop: Any = None, state: Any = None) -> ProcessPoolExecutor:
    """Return processes that end with this one.

    stop: an event of `multiprocessing`, for `should_stop`. state: an array of two numbers, for `tell`.
    """
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that no thread releases
    return ProcessPoolExecutor(count, context, _initialise, (stop, state))


def should_stop() -> bool:
    """Return whether training in another process should save its state and end."""
    return _stop is not None and bool(_stop.is_set())


def tell(epoch: int, loss: float) -> None:
    """Tell the first process how far training in another one is."""
    _state[:] = [epoch, loss]


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Block Ctrl-C for processes that start in the block; this process receives it when the block ends."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # otherwise it starts in the block and unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _initialise(stop: Any, state: Any) -> None:
    """Prepare another process, before its first task."""
    global _stop, _state
    _stop, _state = stop, state
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    load_study(Path())  # tasks may contain its classes


def _exit_with_parent() -> None:
    """End this process when its parent ends, even during a task, since another process may use its files."""
    if (parent := multiprocessing.parent_process()) is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _call(code: str, do: Callable[[Task], Result], task: Task) -> Result:
    if files_digest() != code:
        raise InputError("the code was edited since the command began; start it again")
    with study_errors():
        return do(task)
