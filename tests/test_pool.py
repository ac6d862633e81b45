"""Tasks that several processes share: their order, what they raise, and how the processes end."""

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ncpipe.runs import pool
from ncpipe.runs.pool import completed, share
from ncpipe.system.errors import InputError


def who(task: int) -> tuple[int, int]:
    """The task, and the process that did it."""
    time.sleep(0.05 if task % 2 else 0.0)
    return task, os.getpid()


def fails(task: int) -> int:
    if task == 2:
        Path("writing").touch()
        time.sleep(0.5)
        Path("written").touch()
    while task == 1 and not Path("writing").exists():
        time.sleep(0.01)
    if task == 1:
        raise InputError("sweep.seeds: wrong")
    return task


def is_killed(task: int) -> None:
    if task:
        os.kill(os.getpid(), signal.SIGKILL)


def lasts(task: int) -> None:
    if task:
        Path(f"begun{os.getpid()}").touch()
        time.sleep(60)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pool, "SECONDS_PER_PROCESS", 1e-9)
    monkeypatch.setattr(pool, "free_memory", lambda: 1 << 60)
    others = psutil.Process().children()  # of tests before, perhaps ended and not waited for
    yield
    left = [" ".join(child.cmdline()) for child in psutil.Process().children() if child not in others]
    assert all("resource_tracker" in command for command in left)


def test_what_is_given_comes_in_order_and_once() -> None:
    """Red: what ends first comes first; a process for each task."""
    results = list(share(who, range(20), 2))
    assert [task for task, _ in results] == [*range(20)]
    assert results[0][1] == os.getpid()
    assert len({process for _, process in results[1:]} - {os.getpid()}) == 2
    assert list(share(who, [], 2)) == []


def test_what_goes_wrong_elsewhere_is_raised_here() -> None:
    """When nobody writes any more into what may be removed now. Red: a task that is still at work."""
    with pytest.raises(InputError, match=r"sweep\.seeds: wrong"):
        list(share(fails, range(9), 2))
    assert Path("written").exists()


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_process_that_is_killed_is_a_line() -> None:
    """As where memory is short. Red: a stage that waits; BrokenProcessPool."""
    with pytest.raises(InputError, match=r"a process was killed, .*; set NCPIPE_WORKERS=1"):
        list(share(is_killed, range(9), 2))


def interrupt() -> None:
    """Interrupt this process as soon as another one is at a task."""
    while not list(Path().glob("begun*")):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL if "KILLED" in os.environ else signal.SIGINT)


def test_an_interrupt_waits_for_no_task() -> None:
    """Red: Ctrl-C that comes through when the other process has done what it was at."""
    begin, before = time.monotonic(), signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt, daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            list(share(lasts, range(9), 2))
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begin < 55


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_an_interrupt_is_heard_even_if_another_thread_receives_it() -> None:
    """As of one that comes just before the wait begins. Red: a wait without a time limit."""
    end = threading.Event()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it

    def to_this_thread() -> None:
        time.sleep(0.2)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        end.wait(20)

    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        future = threads.submit(to_this_thread)
        try:
            with pytest.raises(KeyboardInterrupt):
                list(completed([future]))
            assert not future.done()
        finally:
            end.set()
            signal.signal(signal.SIGINT, before)


def test_a_process_ends_with_a_starter_that_is_killed() -> None:
    """In the middle of a task: its place may be another one's by then. Red: it ends with the task."""
    program = (
        "import threading, test_pool; from ncpipe.runs import pool; pool.SECONDS_PER_PROCESS = 1e-9\n"
        "threading.Thread(target=test_pool.interrupt, daemon=True).start()\n"
        "list(pool.share(test_pool.lasts, range(9), 2))"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"KILLED": "1", "PYTHONPATH": paths}
    killed = subprocess.run([sys.executable, "-c", program], env=environment, check=False, timeout=300)
    assert killed.returncode == -signal.SIGKILL
    worker = int(next(Path().glob("begun*")).name.removeprefix("begun"))
    for _ in range(600):
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(worker).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.1)
                continue
        return
    pytest.fail("it goes on")


@pytest.mark.parametrize(
    ("most", "seconds", "free", "count"),
    [
        (4, 6.0, 1 << 60, 2),
        (1, 600.0, 1 << 60, 1),  # on a GPU, or if one is asked for
        (2, 5.9, 1 << 60, 1),  # too little work
        (2, 600.0, 1 << 20, 0),  # too little memory
    ],
)
def test_processes_are_started_where_they_are_worth_it(
    most: int, seconds: float, free: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a small study that takes longer than it did."""
    monkeypatch.setattr(pool, "SECONDS_PER_PROCESS", 3.0)
    monkeypatch.setattr(pool, "free_memory", lambda: free)
    assert pool._worth(seconds, most) == count
