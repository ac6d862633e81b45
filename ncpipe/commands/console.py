"""What commands tell the user while they work: lines and bars on standard error."""

import sys
import time

from tqdm import tqdm

SETTLED = 2.0  # seconds after which an estimate of the whole is worth a line


def say(line: str) -> None:
    """One line on standard error."""
    print(line, file=sys.stderr, flush=True)


class EpochProgress:
    """A bar over epochs on a terminal; elsewhere one line with the expected time, if that is long."""

    def __init__(self, name: str, epochs: int) -> None:
        self.name, self.epochs = name, epochs
        self.bar = tqdm(total=epochs, desc=name, unit="epoch", disable=None, leave=False)
        self.start = time.monotonic()
        self.announced = not self.bar.disable

    def __call__(self, epoch: int) -> None:
        self.bar.update(epoch - self.bar.n)
        if self.announced:
            return
        elapsed = self.seconds()
        if elapsed > SETTLED:
            self.announced = True
            remaining = elapsed / epoch * (self.epochs - epoch)
            if remaining > SETTLED:
                say(f"{self.name}: {epoch} of {self.epochs} epochs done, about {duration(remaining)} to go")

    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.start

    def close(self) -> None:
        """Remove the bar."""
        self.bar.close()


def duration(seconds: float) -> str:
    """A time for people: 8 s, 3 min, 2.5 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
