"""What commands tell the user while they work: lines and bars on standard error."""

import math
import re
import sys
import threading
import time
from collections.abc import Callable

from tqdm import tqdm

REFRESH = 0.1  # seconds between two looks at a batch
SETTLED = 2.0  # seconds after which the end of a batch is worth a line


def say(line: str) -> None:
    """Print one line on standard error, above the bar if there is one.

    It is written whole, beside those of other threads: print() may write its end apart.
    """
    with tqdm.external_write_mode(file=sys.stderr):  # takes bars away and puts them back below
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


class Progress:
    """How far some runs are: a bar on a terminal; elsewhere a line when a batch ends, if that takes long.

    runs: all that there are, `finished` of them from the start. work: what those that train are expected to
    take, in any unit, `done` of it before they were stopped; threads add to it as they go.
    """

    def __init__(self, name: str, runs: int, work: float, finished: int = 0, done: float = 0.0) -> None:
        self.name, self.runs, self.work = name, runs, work
        self.finished, self._before = finished, finished
        self._done, self._start_done = done, done
        self._training: dict[str, str] = {}  # what each batch in training is at
        self._shown: dict[str, float] = {}  # when that was last looked at
        self.bar = tqdm(
            total=work,
            initial=done,
            desc=self._state(),
            disable=None,
            leave=False,
            dynamic_ncols=True,
            mininterval=REFRESH,
            bar_format=f"{name}: {{percentage:3.0f}}%|{{bar}}| {{desc}}{{elapsed}}<{{remaining}}",
        )
        self.start = time.monotonic()
        self._lock = threading.Lock()

    def add(self, work: float, batch: str, epoch: str, loss: Callable[[], float]) -> None:
        """Record that a batch has done some work and is at this epoch, as '30 of 1500'.

        loss: its last logged regularised loss. It is asked for only where it is shown: a GPU has to be waited
        for.
        """
        with self._lock:
            self._done += work
            now = self.seconds()
            if not self.bar.disable and now - self._shown.get(batch, -math.inf) > REFRESH:
                self._shown[batch] = now
                self._training[batch] = f"{batch} epoch {epoch}, loss {loss():.3g}"
                self.bar.set_description_str(self._state(), refresh=False)
            self.bar.update(work)

    def finish(self, batch: str, runs: int) -> None:
        """Record that a batch of so many runs is done."""
        with self._lock:
            self.finished += runs
            self._training.pop(batch, None)
            self.bar.set_description_str(self._state())
            if self.bar.disable and self.finished < self.runs and self.seconds() > SETTLED:
                left = self.left() or 0.0  # an estimate, which may have passed while runs still train
                say(f"{self.name}: {self._count()}" + f", about {duration(left)} to go" * (left >= 1.0))

    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.start

    def left(self) -> float | None:
        """Return the seconds to go at the pace so far; None before there is one."""
        done = self._done - self._start_done
        return self.seconds() / done * max(self.work - self._done, 0.0) if done > 0 else None

    def close(self) -> None:
        """Remove the bar."""
        self.bar.close()

    def _count(self) -> str:
        count, done = f"{self.finished} of {self.runs} runs", self.finished - self._before
        return f"{count}, {60 * done / self.seconds():.3g} a minute" if done else count

    def _state(self) -> str:
        """Return the count, and where the batch is that has been training for longest."""
        return "; ".join([self._count(), *list(self._training.values())[:1]]) + ", "


def plural(count: int, noun: str) -> str:
    """Return a number with its noun: 1 run, 2 runs, 3 batches, 4 entries, 5 arrays."""
    if count == 1:
        return f"1 {noun}"
    if re.search("[^aeiou]y$", noun):
        return f"{count} {noun[:-1]}ies"
    return f"{count} {noun}{'es' if noun.endswith('ch') else 's'}"


def duration(seconds: float) -> str:
    """Return a time as people write it: 8 s, 3 min, 2.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
