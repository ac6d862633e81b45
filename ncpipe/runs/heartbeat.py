"""Report the progress of a batch in training in a small file, written every two seconds.

`ncpipe.commands.status` reads it. Training never reads it, and continues if it cannot be written.
"""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import psutil

from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.system.artifacts import LOGS

FOLDER = LOGS / "training"
INTERVAL = 2.0  # seconds between two writes
STALE = 600.0  # seconds after which the heartbeat of another machine is ignored


@dataclass(frozen=True)
class Heartbeat:
    """Holds the progress of runs that train together.

    keys: the runs' fingerprints; the first one names the file.
    epoch, epochs: epochs done, and in total.
    began: epochs that were done when this process started. seconds: since then.
    host, process, born: identify the process.
    whole: seconds until all batches of this process are done; None if unknown.
    loss: of an own loop's last row.
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
    loss: float | None = None

    @property
    def left(self) -> float | None:
        """Return the seconds left at the rate so far; None before the first epoch."""
        if self.epoch <= self.began:
            return None
        return self.seconds / (self.epoch - self.began) * (self.epochs - self.epoch)


class HeartbeatWriter:
    """Writes the heartbeat of one batch, from its first epoch until `stop`."""

    def __init__(self, fingerprints: Sequence[RunFingerprint]) -> None:
        self.keys = tuple(fingerprint.key() for fingerprint in fingerprints)
        self.epochs = fingerprints[0].run.spec.epochs
        self.file = FOLDER / f"{self.keys[0]}.json"
        self.born = psutil.Process().create_time()
        self.began: int | None = None
        self.start = self.written = time.monotonic()

    def beat(self, epoch: int, whole: float | None = None, loss: float | None = None) -> None:
        """Record that `epoch` epochs are done, and that all batches here take `whole` more seconds."""
        now = time.monotonic()
        if self.began is None or epoch < self.began:  # L-BFGS starts each run of a batch at 0
            self.began, self.start = epoch, now
        elif now - self.written < INTERVAL:
            return
        self.written = now
        heartbeat = Heartbeat(
            self.keys, epoch, self.epochs, self.began, now - self.start,
            socket.gethostname(), os.getpid(), self.born, whole, loss,
        )  # fmt: skip
        partial = self.file.with_suffix(".partial")
        with contextlib.suppress(OSError):
            FOLDER.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(asdict(heartbeat)), encoding="utf-8")
            os.replace(partial, self.file)

    def stop(self) -> None:
        """Remove the heartbeat."""
        with contextlib.suppress(OSError):
            self.file.unlink(missing_ok=True)


def heartbeats() -> Iterator[Heartbeat]:
    """Yield the heartbeat of each batch that trains now; remove those of killed processes."""
    for file in sorted(FOLDER.glob("*.json")):
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            heartbeat = Heartbeat(**values | {"keys": tuple(values["keys"])})
            age = time.time() - file.stat().st_mtime
        except (OSError, ValueError, TypeError, KeyError):  # removed by now, or damaged
            continue
        if _is_alive(heartbeat, age):
            yield heartbeat
        else:
            file.unlink(missing_ok=True)


def _is_alive(heartbeat: Heartbeat, age: float) -> bool:
    if heartbeat.host != socket.gethostname():
        return age < STALE
    try:
        return psutil.Process(heartbeat.process).create_time() == heartbeat.born
    except psutil.Error:
        return False
