"""Claim runs in the store while they train, so that nobody else trains them; `ncpipe status` reads who does.

claims/TOKEN.json  runs that train together, who trains them, and how far they are; written every two seconds
claims/KEY         a link to the TOKEN.json that claims the run with this fingerprint

A link can be made only once, on any file system, so each run has one claim. The claim of a process that was
killed on this machine is dropped at once; that of another machine, ten minutes after its last renewal by the
clock of the file server. If two processes train a run all the same, they lose time; the first result counts.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.store import has
from ncpipe.runs.store_layout import begin_store, store_folder

FOLDER = "claims"  # in the store
INTERVAL = 2.0  # seconds between two writes while epochs end
RENEWAL = 60.0  # seconds between two renewals while none does
STALE = 600.0  # seconds after which a claim of another machine that is not renewed is dropped


@dataclass
class Claim:
    """Holds runs that one process trains together, and how far they are.

    epoch, epochs: epochs done, and in total.
    began: epochs that were done when the process started; None before. seconds: since then.
    host, process, born: identify the process. job: in which it runs on a cluster, if it does.
    whole: seconds until all batches of the process are done; None if unknown.
    """

    keys: tuple[str, ...]
    epochs: int
    host: str
    process: int
    born: float
    job: str = ""
    epoch: int = 0
    began: int | None = None
    seconds: float = 0.0
    whole: float | None = None

    @property
    def left(self) -> float | None:
        """Return the seconds left at the rate so far; None before the first epoch."""
        if self.began is None or self.epoch <= self.began:
            return None
        return self.seconds / (self.epoch - self.began) * (self.epochs - self.epoch)

    def is_alive(self, age: float) -> bool:
        """Return whether its process still trains. age: seconds since the last renewal."""
        if self.host != socket.gethostname():
            return age < STALE and not (self.job and self.job == job_id())  # else this job ran there before
        try:
            process = psutil.Process(self.process)
            return process.create_time() == self.born and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


class ClaimWriter:
    """Holds the claim of one batch in this process, and tells how far the batch is."""

    def __init__(self, epochs: int) -> None:
        self.folder = begin_store().absolute() / FOLDER
        self.folder.mkdir(exist_ok=True)
        self.file = self.folder / f"{secrets.token_hex(8)}.json"
        born = psutil.Process().create_time()
        self.claim = Claim((), epochs, socket.gethostname(), os.getpid(), born, job_id())
        self.start = self.written = time.monotonic()
        self.released = threading.Event()

    def take(self, keys: Sequence[str]) -> None:
        """Claim those of the runs that the store lacks and that nobody has claimed."""
        claims()  # which drops those of killed processes
        self._write()
        self.claim.keys = tuple(key for key in keys if self._link(key))
        self._write()
        threading.Thread(target=self._renew, daemon=True).start()

    def _link(self, key: str) -> bool:
        link = self.folder / key
        for _ in range(2):
            try:
                link.symlink_to(self.file.name)
            except FileExistsError:
                if link.exists():  # else it is all that a killed process left
                    return False
                link.unlink(missing_ok=True)
            else:
                if has(key):  # by now
                    link.unlink()
                    return False
                return True
        return False

    def beat(self, epoch: int, whole: float | None = None) -> None:
        """Record that `epoch` epochs are done, and that all batches here take `whole` more seconds."""
        now = time.monotonic()
        if self.claim.began is None or epoch < self.claim.began:  # L-BFGS starts each run of a batch at 0
            self.claim.began, self.start = epoch, now
        elif now - self.written < INTERVAL:
            return
        self.written = now
        self.claim.epoch, self.claim.seconds, self.claim.whole = epoch, now - self.start, whole
        with contextlib.suppress(OSError):  # a full disk stops no training
            self._write()

    def release(self) -> None:
        """Remove the claim."""
        self.released.set()
        _remove(self.file, self.claim.keys)

    def _write(self) -> None:
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self.claim)), encoding="utf-8")
        os.replace(partial, self.file)

    def _renew(self) -> None:
        while not self.released.wait(RENEWAL):
            with contextlib.suppress(OSError):
                os.utime(self.file)


@contextlib.contextmanager
def claimed(fingerprints: Sequence[RunFingerprint]) -> Iterator[ClaimWriter]:
    """Claim, until the block ends, those of a batch's runs that the store lacks and nobody else trains."""
    writer = ClaimWriter(fingerprints[0].run.spec.epochs)
    try:
        writer.take([fingerprint.key() for fingerprint in fingerprints])
        yield writer
    finally:
        writer.release()


def claims() -> list[Claim]:
    """Return the claims of all that trains now; drop those of killed processes."""
    folder, alive = store_folder() / FOLDER, []
    for file in sorted(folder.glob("*.json")):
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            claim = Claim(**values | {"keys": tuple(values["keys"])})
            age = _clock(folder) - file.stat().st_mtime
        except (OSError, ValueError, TypeError, KeyError):  # released by now, or damaged
            continue
        if claim.is_alive(age):
            alive.append(claim)
        else:
            _remove(file, claim.keys)
    return alive


def claimed_keys() -> set[str]:
    """Return the fingerprints of all runs that train now."""
    return {key for claim in claims() for key in claim.keys}


def job_id() -> str:
    """Return the name of the job of Slurm that this process is, or an empty text."""
    parts = [os.environ.get(name, "") for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")]
    return "_".join(parts) if all(parts) else ""


def _remove(file: Path, keys: Sequence[str]) -> None:
    """Remove a claim with its links; those of a claim that was made since stay."""
    with contextlib.suppress(OSError):
        for key in keys:
            with contextlib.suppress(FileNotFoundError):
                if os.readlink(link := file.with_name(key)) == file.name:
                    os.unlink(link)
        file.unlink(missing_ok=True)


def _clock(folder: Path) -> float:
    """Return the time by the clock that renewals have."""
    try:
        (folder / ".clock").touch()
        return (folder / ".clock").stat().st_mtime
    except OSError:  # a read-only store
        return time.time()
