"""Tasks that several processes share: their order, what they raise, and how the processes end."""

import concurrent.futures
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
from ncpipe.runs.pool import WorkerPool, completed
from ncpipe.system.errors import InputError

STARTER = os.getpid()


def who(task: int) -> tuple[int, int]:
    """The task, and the process that did it; here none is done before another one does some."""
    if task == -1 or os.getpid() != int(os.environ["STARTER"]):
        Path("begun").touch()
    while task != -1 and not Path("begun").exists():
        time.sleep(0.01)
    return task, os.getpid()


def fails_elsewhere(task: int) -> int:
    if task == 3:
        raise InputError("sweep.seeds: wrong")
    return who(task)[0]


def fails_here(task: int) -> None:
    """As soon as another process is in the middle of one."""
    if os.getpid() != int(os.environ["STARTER"]):
        Path("writing").touch()
        time.sleep(0.5)
        Path("written").touch()
        return
    while not Path("writing").exists():
        time.sleep(0.01)
    raise InputError("sweep.seeds: wrong")


def is_killed_elsewhere(task: int) -> tuple[int, int]:
    if os.getpid() != int(os.environ["STARTER"]):
        Path("begun").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return who(task)


def takes_a_moment(task: int) -> tuple[int, int]:
    time.sleep(0.05)
    return who(task)


def lasts_elsewhere(task: int) -> int:
    if os.getpid() != int(os.environ["STARTER"]):
        Path("begun").write_text(str(os.getpid()))
        time.sleep(60)
    while task and not (Path("begun").exists() and Path("begun").read_text()):
        time.sleep(0.01)
    if task and "KILLED" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    if task:
        raise KeyboardInterrupt
    return task


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STARTER", str(os.getpid()))
    monkeypatch.setattr(pool, "SECONDS_PER_PROCESS", 0.0)
    others = psutil.Process().children()  # of tests before, perhaps ended and not waited for
    yield
    left = [" ".join(child.cmdline()) for child in psutil.Process().children() if child not in others]
    assert all("resource_tracker" in command for command in left)


def test_what_is_given_comes_in_order_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next tasks go to the same processes. Red: what ends first comes first; a process for each."""
    with WorkerPool(2) as shared:
        first = list(shared.map(who, [-1, *range(20)]))
        assert [task for task, _ in first] == [-1, *range(20)]
        again = list(shared.map(who, range(20)))
        assert [task for task, _ in again] == list(range(20))
        assert list(shared.map(who, [])) == []
    assert {process for _, process in (*first, *again)} > {os.getpid()}
    assert len({process for _, process in (*first, *again)}) == 2


def test_what_goes_wrong_elsewhere_is_raised_here_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a task of those that failed which the next ones are given in place of their own."""
    with WorkerPool(2) as shared:
        list(shared.map(who, [-1, 0, 1]))
        with pytest.raises(InputError, match=r"sweep\.seeds: wrong"):
            list(shared.map(fails_elsewhere, range(20)))
        with pytest.raises(InputError, match=r"sweep\.seeds: wrong"):
            list(shared.map(fails_here, range(4)))
        assert Path("written").exists()  # nobody writes any more into what may be removed now
        assert list(map(first_of, shared.map(who, range(5)))) == list(range(5))


def first_of(found: tuple[int, int]) -> int:
    return found[0]


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_task_of_a_process_that_is_killed_is_done_all_the_same() -> None:
    """As where memory is short; and no other one is started. Red: a task that is lost, a stage that waits."""
    with WorkerPool(3) as shared:
        found = list(shared.map(is_killed_elsewhere, [-1, *range(10)]))
        assert shared.most == 1
    assert found == [(task, os.getpid()) for task in [-1, *range(10)]]


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_process_that_is_killed_between_two_tasks_takes_none_with_it() -> None:
    """While the caller is at a result, so the next task is what finds it dead. Red: BrokenProcessPool."""
    found, killed = [], 0
    with WorkerPool(2) as shared:
        for task, process in shared.map(takes_a_moment, [-1, *range(100)]):
            found.append(task)
            if process != os.getpid() and not killed:
                killed = process
                time.sleep(0.5)  # by now it has done all that it was given
                os.kill(killed, signal.SIGKILL)
                time.sleep(0.5)
        assert (bool(killed), shared.most) == (True, 1)
    assert found == [-1, *range(100)]


def test_an_interrupt_waits_for_no_task() -> None:
    """Red: Ctrl-C that comes through when the other process has done what it was at."""
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), WorkerPool(2) as shared:
        list(shared.map(lasts_elsewhere, range(10)))
    assert time.monotonic() - begin < 30
    assert not psutil.pid_exists(int(Path("begun").read_text()))


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_an_interrupt_is_heard_even_if_another_thread_receives_it() -> None:
    """As of one that comes just before the wait begins. Red: a wait without a time limit."""
    end = threading.Event()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it

    def interrupt() -> None:
        time.sleep(0.2)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        end.wait(20)

    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        future = threads.submit(interrupt)
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
        "import os; os.environ['STARTER'] = str(os.getpid())\n"
        "from ncpipe.runs import pool; import test_pool; pool.SECONDS_PER_PROCESS = 0.0\n"
        "with pool.WorkerPool(2) as shared: list(shared.map(test_pool.lasts_elsewhere, range(9)))"
    )
    environment = os.environ | {"KILLED": "1", "PYTHONPATH": str(Path(__file__).parent)}
    killed = subprocess.run([sys.executable, "-c", program], env=environment, check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    worker = int(Path("begun").read_text())
    for _ in range(100):
        if not psutil.pid_exists(worker) or psutil.Process(worker).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.1)
    pytest.fail("it goes on")


@pytest.mark.parametrize(
    ("most", "seconds", "left", "free", "started"),
    [
        (2, 1.0, 6, 1 << 60, True),
        (1, 1.0, 600, 1 << 60, False),  # on a GPU, or if one is asked for
        (2, 1.0, 5, 1 << 60, False),  # too little work
        (2, 0.1, 59, 1 << 60, False),
        (2, 0.1, 60, 1 << 60, True),
        (2, 1.0, 600, 1 << 20, False),  # too little memory
    ],
)
def test_a_process_is_started_where_it_is_worth_it(
    most: int, seconds: float, left: int, free: int, started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a small study that takes longer than it did."""
    monkeypatch.setattr(pool, "SECONDS_PER_PROCESS", 3.0)
    monkeypatch.setattr(pool, "free_memory", lambda: free)
    monkeypatch.setattr(pool, "executor", lambda count: "another" * count)
    shared = WorkerPool(most)
    shared.left, shared.done, shared.seconds = left, 2, 2 * seconds
    assert bool(shared._in_flight(left)) == started
    assert shared.others == ("another" if started else None)
    shared.others = None
