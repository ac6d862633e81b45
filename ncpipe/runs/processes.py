"""Other processes of this program that do its tasks: threads of one take turns in Python, step by step.

A process ends with the one that started it, however that ends, and is asked through a pipe to stop what it
does: an interrupt from the keyboard is that one's alone.
"""

import contextlib
import multiprocessing
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

Task = TypeVar("Task")
Found = TypeVar("Found")
Do = Callable[[Task, Callable[[], bool]], Found]  # a task, and whether it is to stop

LOOK = 0.1  # seconds between two looks at whether a task is to stop


class Ended(Exception):
    """A process was ended by something else before its task was done."""


class Worker(Generic[Task, Found]):
    """A process that does one task after another. do: a function of a module, which goes there by name."""

    def __init__(self, do: Do[Task, Found]) -> None:
        context = multiprocessing.get_context("spawn")  # a fork has locks of threads that it lacks
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, do), daemon=True)
        with _uninterrupted():
            self.process.start()
        other.close()

    def __call__(self, task: Task, stop: threading.Event) -> Found:
        """What `do` gives, or raises, for a task. Raises Ended if the process ends before."""
        try:
            self.connection.send(task)
            asked = False
            while not self.connection.poll(LOOK):
                if stop.is_set() and not asked:
                    self.connection.send(None)
                    asked = True
            good, found = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise Ended(f"a process that trained it was ended ({how})") from None
        if not good:
            raise found
        return found

    def close(self) -> None:
        """Let it end."""
        self.connection.close()
        self.process.join()

    def end(self) -> None:
        """End it at once: what it has not given is lost."""
        self.process.terminate()
        self.process.join()


def _serve(connection: Connection, do: Do[Task, Found]) -> None:
    """Do tasks until the other end is closed, or gone; what is readable during one is a wish to stop it."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            task = connection.recv()
            if task is None:  # to stop what is done already
                continue
            answer: tuple[bool, Found | Exception]
            try:
                answer = True, do(task, connection.poll)
            except Exception as error:
                error.add_note("".join(traceback.format_exception(error)))  # which does not go along
                answer = False, error
            connection.send(answer)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """What starts in the block never hears Ctrl-C; here it comes when the block ends."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # else it starts in the block, and lets signals through at its end
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
