"""Claim runs in the store while they train, so that nobody else trains them; `ncpipe status` reads who does.

claims/NUMBER-MACHINE-PROCESS-BORN-JOB  a claim: its name says whose, its text how far that is, for `status`
claims/KEY                              a link to the claim that has the run with this fingerprint
claims/KEY.NUMBER                       a link to the claim that alone may replace an ended claim's link KEY

A link can be made only once, on any file system, so each run has one claim. A claim of this machine ends with
its process; that of another machine, and anything else that lies there, ten minutes after its last renewal by
the clock of the file server. If two processes train a run all the same, they lose time; the first result
counts.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import psutil

from ncpipe.config.bounds import Bound, Epochs, NonNegative
from ncpipe.config.records import read
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.store import has
from ncpipe.runs.store_layout import begin_store, store_folder
from ncpipe.system.artifacts import remove

FOLDER = "claims"  # in the store
KEY = re.compile(r"[0-9a-f]{64}")
LINK = re.compile(rf"{KEY.pattern}(\.[0-9a-f]+)*")
NUMBER = 16  # digits of a claim's
CLAIM = re.compile(r"[0-9a-f]{16}-([0-9a-f]*)-(\d{1,10})-(\d{1,20})-(\w*)")
INTERVAL = 2.0  # seconds between two writes while epochs end
RENEWAL = 60.0  # seconds between two renewals while none does
STALE = 600.0  # seconds after which a claim of another machine that is not renewed is dropped

Done = Annotated[int, Bound(0, 10**8)]  # epochs


@dataclass
class Claim:
    """Holds runs that one process trains together, and how far they are.

    keys: of the runs. epoch, epochs: epochs done, and in total. host, process: of the machine that trains.
    left: seconds until these runs are done; whole: until all batches of the process are; None if unknown.
    """

    keys: tuple[str, ...]
    epochs: Epochs
    host: str
    process: int
    epoch: Done = 0
    left: NonNegative | None = None
    whole: NonNegative | None = None


class ClaimWriter:
    """Holds the claim of one batch in this process, and tells how far the batch is."""

    def __init__(self, epochs: int) -> None:
        self.folder = begin_store().absolute() / FOLDER
        self.folder.mkdir(exist_ok=True)
        self.claim = Claim((), epochs, socket.gethostname(), os.getpid())
        number, born = secrets.token_hex(NUMBER // 2), _born(self.claim.process) or 0
        self.file = self.folder / f"{number}-{machine()}-{self.claim.process}-{born}-{job_id()}"
        self.began: int | None = None  # epochs that were done when training started
        self.start = self.written = time.monotonic()
        self.released = threading.Event()

    def take(self, keys: Sequence[str]) -> None:
        """Claim those of the runs that the store lacks and that nobody has claimed."""
        self._write()
        self._drop_ended()
        for key in keys:
            if self._link(key):
                if has(key):  # by now
                    (self.folder / key).unlink()
                else:
                    self.claim.keys = (*self.claim.keys, key)
        threading.Thread(target=self._renew, daemon=True).start()

    def _link(self, name: str) -> bool:
        """Make a link to this claim, also in place of an ended one's; return False if another claim has it.

        Whoever could make the link `name.NUMBER` alone may replace a link to the ended claim of this number,
        if that is still there. No two claims have one number.
        """
        link = self.folder / name
        with contextlib.suppress(FileExistsError):
            link.symlink_to(self.file.name)
            return True
        holder = _claim_at(link)
        if holder is None:  # released by now
            return self._link(name)
        right = link.with_name(f"{name}.{holder.name[:NUMBER]}")
        if _is_alive(holder, _clock(self.folder)) or not self._link(right.name):
            return False
        if _claim_at(link) != holder:
            right.unlink()
            return False
        shutil.rmtree(link, ignore_errors=True)  # a folder, which no link replaces
        os.replace(right, link)
        return True

    def _drop_ended(self) -> None:
        """Remove what has ended, since nobody may ask for its runs again."""
        now = _clock(self.folder)
        for claim, paths in _by_claim(self.folder).items():
            with contextlib.suppress(OSError):  # another user's
                for path in paths if not _is_alive(claim, now) else ():
                    if not LINK.fullmatch(path.name):
                        remove(path)
                    elif self._link(path.name):
                        path.unlink()

    def beat(self, epoch: int, whole: float | None = None) -> None:
        """Record that `epoch` epochs are done, and that all batches here take `whole` more seconds."""
        now = time.monotonic()
        if self.began is None:
            self.began, self.start = epoch, now
        elif now - self.written < INTERVAL:
            return
        self.written = now
        if epoch > self.began:
            self.claim.left = (now - self.start) / (epoch - self.began) * (self.claim.epochs - epoch)
        self.claim.epoch, self.claim.whole = epoch, whole
        with contextlib.suppress(OSError):  # a full disk stops no training
            self._write()

    def release(self) -> None:
        """Remove the claim."""
        self.released.set()
        with contextlib.suppress(OSError):  # a link that stays has no claim
            for link in (self.folder / key for key in self.claim.keys):
                if _claim_at(link) == self.file:  # else this claim was believed to have ended
                    link.unlink()
        with contextlib.suppress(OSError):
            self.file.unlink()

    def _write(self) -> None:
        partial = self.folder.with_name(f".{self.file.name}")  # in the store, where `ncpipe clean` finds it
        try:
            partial.write_text(json.dumps(asdict(self.claim)), encoding="utf-8")
            os.replace(partial, self.file)
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise

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
    """Return how far all that trains now is, but for what cannot be read."""
    records = []
    for file, keys in _claimed_runs().items():
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
            if CLAIM.fullmatch(file.name):
                records.append(read(Claim, json.loads(file.read_bytes()) | {"keys": keys}))
    return records


def claimed_keys() -> set[str]:
    """Return the fingerprints of all runs that train now."""
    return {key for keys in _claimed_runs().values() for key in keys}


def job_id() -> str:
    """Return the name of the job of Slurm, and its task, that this process is, or an empty text."""
    parts = [os.environ.get(name, "") for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")]
    return "_".join([*parts, os.environ.get("SLURM_PROCID", "0")]) if all(parts) else ""


@functools.cache
def machine() -> str:
    """Return a digest of the boot and PID namespace, in which a number is one process; empty if unknown."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8") + os.readlink("/proc/self/ns/pid")
    except OSError:
        if sys.platform == "linux":
            return ""
        name = socket.gethostname()
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def _born(process: int) -> int | None:
    """Return when a process began, by a clock that nobody sets; None if there is none, or it has ended."""
    try:
        if sys.platform != "linux":
            other = psutil.Process(process)
            return None if other.status() == psutil.STATUS_ZOMBIE else int(1000 * other.create_time())
        state, *numbers = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        return None if state in (b"Z", b"X") else int(numbers[18])  # ticks since the boot
    except (OSError, psutil.Error):
        return None


def _is_alive(claim: Path, now: float) -> bool:
    """Return whether what has a link still counts."""
    try:
        status = claim.lstat()
    except FileNotFoundError:
        return False
    match = CLAIM.fullmatch(claim.name)
    place, process, born, job = match.groups() if match else ("", "", "", "")
    if place and place == machine() and status.st_uid == os.getuid():  # else its process may be hidden
        return _born(int(process)) == int(born)
    # A clock that was set makes an age negative. If the job is this one, it ran on another machine before.
    return abs(now - status.st_mtime) < STALE and not (job and job == job_id())


def _claimed_runs() -> dict[Path, list[str]]:
    """Return the fingerprints of the runs that each claim has now."""
    folder = store_folder() / FOLDER
    if not folder.is_dir():
        return {}
    now = _clock(folder)
    return {
        claim: sorted(path.name for path in paths if KEY.fullmatch(path.name))
        for claim, paths in sorted(_by_claim(folder).items())
        if _is_alive(claim, now)
    }


def _by_claim(folder: Path) -> dict[Path, list[Path]]:
    """Return what lies there by the claim that it is or links to."""
    paths: dict[Path, list[Path]] = {}
    for path in folder.iterdir():
        if claim := _claim_at(path):
            paths.setdefault(claim, []).append(path)
    return paths


def _claim_at(path: Path) -> Path | None:
    """Return the claim that a path links to, or the path if it is no such link; None if nothing is there."""
    try:
        name = os.readlink(path)
    except FileNotFoundError:
        return None
    except OSError:
        return path
    return path.with_name(name) if CLAIM.fullmatch(name) else path


def _clock(folder: Path) -> float:
    """Return the time by the clock that renewals have."""
    try:
        os.utime(folder)
        return folder.stat().st_mtime
    except OSError:  # a read-only store
        return time.time()
