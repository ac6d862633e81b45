"""Other processes that do tasks: what they give, raise, and how they end."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from ncpipe.errors import InputError
from ncpipe.runs.processes import Ended, Worker


class Asked(Exception):
    """To stop."""


def do(task: str, stop: Callable[[], bool]) -> tuple[str, int]:
    """What a task is called says what it does."""
    if task == "wrong":
        raise InputError("sweep.seeds: wrong")
    if task == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    while task == "long":
        if stop():
            raise Asked
        time.sleep(0.01)
    return task, os.getpid()


@pytest.fixture(scope="module")
def lasting() -> Iterator[Worker[str, tuple[str, int]]]:
    started: Worker[str, tuple[str, int]] = Worker(do)
    yield started
    started.close()


@pytest.fixture
def worker() -> Iterator[Worker[str, tuple[str, int]]]:
    started: Worker[str, tuple[str, int]] = Worker(do)
    yield started
    started.close()


def test_a_process_of_its_own_does_one_task_after_another(lasting: Worker[str, tuple[str, int]]) -> None:
    go = threading.Event()
    first, second = lasting("a", go), lasting("b", go)
    assert (first[0], second[0]) == ("a", "b")
    assert first[1] == second[1] == lasting.process.pid != os.getpid()


def test_a_task_stops_when_it_is_asked_to_and_the_next_one_begins(
    lasting: Worker[str, tuple[str, int]],
) -> None:
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    with pytest.raises(Asked):
        lasting("long", stop)
    assert lasting("b", threading.Event())[0] == "b"


def test_what_a_task_raises_is_raised_here_with_where_it_was(lasting: Worker[str, tuple[str, int]]) -> None:
    with pytest.raises(InputError) as error:
        lasting("wrong", threading.Event())
    assert str(error.value) == "sweep.seeds: wrong"
    assert "in do" in error.value.__notes__[0]


def test_a_process_that_is_killed_is_no_silence(worker: Worker[str, tuple[str, int]]) -> None:
    with pytest.raises(Ended, match=r"was ended \(signal 9\)"):
        worker("die", threading.Event())


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_is_for_the_one_that_started_it(lasting: Worker[str, tuple[str, int]]) -> None:
    """A terminal sends it to both; the one that started it says when to stop."""
    lasting("a", threading.Event())
    os.kill(lasting.process.pid or 0, signal.SIGINT)
    time.sleep(0.3)
    assert lasting("b", threading.Event())[0] == "b"


def test_it_ends_with_the_one_that_started_it(worker: Worker[str, tuple[str, int]]) -> None:
    """Whose end of the pipe is then closed, in the middle of a task too."""
    worker("a", threading.Event())
    process = psutil.Process(worker.process.pid)
    worker.connection.send("long")
    time.sleep(0.2)
    assert process.is_running()
    worker.connection.close()
    process.wait(timeout=600)
