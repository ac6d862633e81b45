"""The sweep's other batches, for workers that are idle while the run trains that DVC asked for.

What they finish waits in the store like any run that was trained before it was asked for; what they have
begun when they are stopped is left in checkpoints, from which its own stage goes on, to the same bytes.
"""

import concurrent.futures
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable

import psutil
from filelock import Timeout

from ncpipe.console import say
from ncpipe.scheduling.pending import batch_lock, is_missing
from ncpipe.stamps import Stamp
from ncpipe.training.loop import Stopped

LONGEST = 10.0  # seconds that a stage goes on for after its own run, if DVC may not ask for the others

Batch = list[Stamp]
Train = Callable[[Batch, threading.Event], None]  # until they are done or it is set, then Stopped


class Ahead:
    """Batches of other shapes than the one that trains, each taken by one worker at most.

    own: the batch key whose lock the caller holds. batches_of: splits runs of one shape into batches that can
    train at once. Shapes that another process trains are passed over, and so is what fails: its own stage
    will say why. whole: DVC will ask for all of them, so nothing is won by stopping before they are done.
    """

    def __init__(
        self,
        groups: Iterable[Batch],
        own: str,
        batches_of: Callable[[Batch], Iterable[Batch]],
        train: Train,
        whole: bool,
    ) -> None:
        self.groups, self.own, self.batches_of, self.train = deque(groups), own, batches_of, train
        self.enough = threading.Event()
        # Loading PyTorch took as long: of runs that are shorter than that, a stage trains many.
        loading = time.time() - psutil.Process().create_time()
        self.linger = None if whole else min(LONGEST, loading)

    def work(self) -> None:
        """What an idle worker does, until there is nothing left or it has been enough."""
        while not self.enough.is_set():
            try:
                group = self.groups.popleft()
            except IndexError:
                return
            try:
                self._train_group(group)
            except (Stopped, Timeout):
                pass
            except Exception as error:
                say(f"train ahead {group[0].run.name}: left to its own stage ({error})")

    def wait(self, idle: Collection[concurrent.futures.Future[None]]) -> None:
        """Called when the runs that were asked for are done: let the workers go on, to the end if `whole`."""
        concurrent.futures.wait(idle, timeout=self.linger)
        self.enough.set()

    def _train_group(self, group: Batch) -> None:
        if group[0].batch_key() == self.own:
            self._train_missing(group)
            return
        with batch_lock(group[0]).acquire(timeout=0):
            self._train_missing([stamp for stamp in group if is_missing(stamp)])

    def _train_missing(self, group: Batch) -> None:
        for batch in self.batches_of(group) if group else ():
            if self.enough.is_set():
                return
            self.train(batch, self.enough)
