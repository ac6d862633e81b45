"""Many tasks that do not need each other, for this process and as many others as there is work for.

What they give comes in their order, whoever did which. A process that is ended by something else, as where
memory is short, leaves its task to the others; all end at once with this one.
"""

import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

from ncpipe.bounds import free_memory
from ncpipe.runs.processes import Ended, Worker
from ncpipe.study import load_study, own_mistakes

WORTH = 3.0  # seconds of work that a further process is started for, which takes two or three itself
MEMORY_SHARE = 0.7  # of what is free, that further processes of this one's size may take

Task = TypeVar("Task")
Found = TypeVar("Found")


class Hands:
    """This process and others, which are started while there is work for them and end with the block.

    most: processes, this one among them. expected: tasks that there will be in all.
    """

    def __init__(self, most: int, expected: int) -> None:
        self.most, self.left = most, expected
        self.seconds, self.done = 0.0, 0  # of this process's own tasks
        self.workers: list[Worker[bytes, Any]] = []
        self.pool = concurrent.futures.ThreadPoolExecutor(max(1, most - 1))

    def __enter__(self) -> "Hands":
        return self

    def __exit__(self, *_: object) -> None:
        self._end_others()
        self.pool.shutdown()

    def each(self, do: Callable[[Task], Found], tasks: Sequence[Task]) -> Iterator[Found]:
        """What a function of a module gives, or raises, for each task, in their order."""
        todo = deque(enumerate(tasks))
        found: dict[int, Found] = {}
        busy: dict[Worker[bytes, Any], concurrent.futures.Future[None]] = {}
        try:
            for place in range(len(tasks)):
                while place not in found:
                    self._start_another(len(todo))
                    for worker in self.workers:
                        if worker not in busy:
                            busy[worker] = self.pool.submit(self._serve, worker, do, todo, found)
                    for future in busy.values():
                        if future.done():
                            future.result()
                    if not self._do_one(do, todo, found):
                        concurrent.futures.wait(
                            [future for future in busy.values() if not future.done()],
                            return_when=concurrent.futures.FIRST_COMPLETED,
                        )
                yield found.pop(place)
                self.left -= 1
        except BaseException as error:
            if not isinstance(error, Exception):  # as Ctrl-C: nobody waits for a task
                self._end_others()
            raise
        finally:
            todo.clear()
            concurrent.futures.wait(busy.values())

    def _do_one(
        self, do: Callable[[Task], Found], todo: "deque[tuple[int, Task]]", found: dict[int, Found]
    ) -> bool:
        """Whether there was a task left for this process."""
        try:
            place, task = todo.popleft()
        except IndexError:
            return False
        begin = time.monotonic()
        found[place] = do(task)
        self.seconds += time.monotonic() - begin
        self.done += 1
        return True

    def _serve(
        self,
        worker: Worker[bytes, Any],
        do: Callable[[Task], Found],
        todo: "deque[tuple[int, Task]]",
        found: dict[int, Found],
    ) -> None:
        """Have a process do tasks until none is left."""
        while True:
            try:
                place, task = todo.popleft()
            except IndexError:
                return
            try:
                found[place] = worker(pickle.dumps((do, task)), threading.Event())
            except Ended:
                todo.appendleft((place, task))
                self.workers = [other for other in self.workers if other is not worker]
                self.most = 1 + len(self.workers)  # where one was ended, no other one is started
                return

    def _start_another(self, waiting: int) -> None:
        """If the tasks that are left are worth it, as long as this process's own took, and there is room."""
        others = len(self.workers)
        if not waiting or not self.done or 1 + others >= self.most:
            return
        if self.seconds / self.done * self.left < WORTH * (2 + others):
            return
        size = psutil.Process().memory_info().rss
        if (1 + others) * size < MEMORY_SHARE * free_memory():
            self.workers.append(Worker(_do))

    def _end_others(self) -> None:
        for worker in self.workers:
            worker.end()
        self.workers, self.most = [], 1


def _do(job: bytes, stop: Callable[[], bool]) -> Any:
    """In another process: a task, which may be of classes of study.py."""
    if not _watching.is_set():
        _watching.set()
        threading.Thread(target=_end_with_starter, daemon=True).start()
    load_study(Path())
    do, task = pickle.loads(job)
    with own_mistakes():
        return do(task)


_watching = threading.Event()


def _end_with_starter() -> None:
    """In the middle of a task too: what it writes into has perhaps been given to another one since."""
    if (starter := multiprocessing.parent_process()) is not None:
        multiprocessing.connection.wait([starter.sentinel])
        os._exit(1)
