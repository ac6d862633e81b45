"""What commands tell the user while they work: lines and bars on standard error."""

import sys
import threading
import time

from tqdm import tqdm

SETTLED = 2.0  # seconds after which an estimate of the whole is worth a line


def say(line: str) -> None:
    """One line on standard error, whole beside those of other threads: print() may write its end apart."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class Progress:
    """How far some runs are: a bar on a terminal; elsewhere a line when a batch ends, if that takes long.

    work: what all runs are expected to take, in any unit; threads add to it as they go.
    """

    def __init__(self, name: str, runs: int, work: float) -> None:
        self.name, self.runs, self.work = name, runs, work
        self.finished = 0
        self.bar = tqdm(
            total=work,
            desc=name,
            disable=None,
            leave=False,
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {postfix}, {elapsed}<{remaining}",
            postfix=self._count(),
        )
        self.start = time.monotonic()
        self._done = 0.0
        self._announced = not self.bar.disable
        self._lock = threading.Lock()

    def add(self, work: float) -> None:
        """Some work is done."""
        with self._lock:
            self._done += work
            self.bar.update(work)
            if not self._announced and self._done > 0 and self.seconds() > SETTLED:
                self._announced = True
                if self._left() > SETTLED:
                    say(f"{self.name}: about {duration(self._left())} to go")

    def finish(self, runs: int) -> None:
        """Some runs are done."""
        with self._lock:
            self.finished += runs
            self.bar.set_postfix_str(self._count())
            if self.bar.disable and self.finished < self.runs and self.seconds() > SETTLED:
                say(f"{self.name}: {self._count()}, about {duration(self._left())} to go")

    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.start

    def close(self) -> None:
        """Remove the bar."""
        self.bar.close()

    def _left(self) -> float:
        return self.seconds() / self._done * max(self.work - self._done, 0.0) if self._done else 0.0

    def _count(self) -> str:
        if not self.finished:
            return f"0 of {self.runs} runs"
        return f"{self.finished} of {self.runs} runs, {60 * self.finished / self.seconds():.3g} a minute"


def duration(seconds: float) -> str:
    """A time for people: 8 s, 3 min, 2.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
