"""What a batch in training says of itself, for `ncpipe status`: a small file, written every other second.

It is no result and no part of one: nothing that trains reads it, and where it cannot be written it is left.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import psutil

from ncpipe.runs.fingerprint import Stamp
from ncpipe.system.artifacts import LOGS

PLACE = LOGS / "training"
EVERY = 2.0  # seconds
FORGOTTEN = 600.0  # seconds after which a file of another machine counts as left behind


@dataclass(frozen=True)
class Sign:
    """Runs that train together.

    keys: of their stamps, the first one's names the file. began: epochs that were done when this process took
    them up, `seconds` before it was at `epoch`. host, process, born: who trains, as psutil knows it.
    whole: seconds that all which trains there still takes, these runs and others; None if that is not known.
    """

    keys: tuple[str, ...]
    epoch: int
    epochs: int
    began: int
    seconds: float
    host: str
    process: int
    born: float
    whole: float | None = None

    @property
    def left(self) -> float | None:
        """Seconds to go at the pace so far; None before there is one."""
        if self.epoch <= self.began:
            return None
        return self.seconds / (self.epoch - self.began) * (self.epochs - self.epoch)


class Life:
    """Signs of one batch, from its first epoch on."""

    def __init__(self, stamps: Sequence[Stamp]) -> None:
        self.keys = tuple(stamp.key() for stamp in stamps)
        self.epochs = stamps[0].run.spec.epochs
        self.file = PLACE / f"{self.keys[0]}.json"
        self.born = psutil.Process().create_time()
        self.began: int | None = None
        self.start = self.told = time.monotonic()

    def at(self, epoch: int, whole: float | None = None) -> None:
        """So many epochs are done, and all that trains here still takes so many seconds."""
        now = time.monotonic()
        if self.began is None or epoch < self.began:  # a line search begins anew with each run
            self.began, self.start = epoch, now
        elif now - self.told < EVERY:
            return
        self.told = now
        sign = Sign(
            self.keys, epoch, self.epochs, self.began, now - self.start,
            socket.gethostname(), os.getpid(), self.born, whole,
        )  # fmt: skip
        partial = self.file.with_suffix(".partial")
        with contextlib.suppress(OSError):
            PLACE.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(asdict(sign)), encoding="utf-8")
            os.replace(partial, self.file)

    def ended(self) -> None:
        """However it did."""
        with contextlib.suppress(OSError):
            self.file.unlink(missing_ok=True)


def signs() -> Iterator[Sign]:
    """Of all batches that train now. What a killed process left is removed."""
    for file in sorted(PLACE.glob("*.json")):
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            sign = Sign(**found | {"keys": tuple(found["keys"])})
            age = time.time() - file.stat().st_mtime
        except (OSError, ValueError, TypeError, KeyError):  # gone by now, or damaged
            continue
        if _lives(sign, age):
            yield sign
        else:
            file.unlink(missing_ok=True)


def _lives(sign: Sign, age: float) -> bool:
    if sign.host != socket.gethostname():
        return age < FORGOTTEN
    try:
        return psutil.Process(sign.process).create_time() == sign.born
    except psutil.Error:
        return False
