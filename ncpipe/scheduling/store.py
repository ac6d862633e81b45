"""The store of runs that were trained before DVC asked for them: data/.ahead/KEY is a whole run folder.

A run in training, or one that was stopped, has a checkpoint there, data/.ahead/KEY.checkpoint. Deleting
the store at any moment costs time and nothing else. What else lies there, an empty folder, one with a
flipped bit, another run's, is dropped when it is asked for.
"""

import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from ncpipe.artifacts import AHEAD, RUNS, remove
from ncpipe.console import say
from ncpipe.dvc_repair import drop_damaged
from ncpipe.errors import InputError
from ncpipe.scheduling.dvc_entries import in_cache
from ncpipe.scheduling.tickets import CHECKPOINT, put_in_place
from ncpipe.stamps import RUN_RECORD, Stamp, check_waiting, check_whole

HEAD = 4096  # bytes: more than the lines before a checkpoint's state


def waits(key: str) -> bool:
    """Whether a finished run is in the store."""
    return (AHEAD / key).is_dir()


def claim(stamp: Stamp) -> bool:
    """Put a waiting run into its place; False if it is not there, or not to the bit what was trained.

    It waits on until it is released: if DVC ends before it has taken the run, the next one removes the place
    and asks again.
    """
    drop_damaged_waiting([stamp])
    if not waits(stamp.key()):
        return False
    put_in_place(stamp.key(), RUNS / stamp.run.path)
    return True


def write_beside(folder: Path, write: Callable[[Path], None]) -> None:
    """Have a run's folder written by this process alone, and renamed: of two that finish one run, one stays.

    A process may be taken for dead, its run given to another, and go on all the same.
    """
    own = folder.with_name(f".{folder.name}.{socket.gethostname()}-{os.getpid()}")
    write(own)
    try:
        os.rename(own, folder)
    except OSError:  # the other one was first
        if not (folder / RUN_RECORD).is_file():
            raise
        remove(own)


def release(stamps: Iterable[Stamp]) -> None:
    """Let go of the runs in their places that DVC has taken; what it failed to take waits on."""
    keys = {RUNS / stamp.run.path: stamp.key() for stamp in stamps}
    for place in in_cache(keys):
        remove(AHEAD / keys[place])


def drop_damaged_waiting(stamps: Iterable[Stamp]) -> None:
    """Drop those of the runs' folders in the store that are not, to the bit, what was trained; say which."""
    for stamp in stamps:
        folder = AHEAD / stamp.key()
        if os.path.lexists(folder):
            try:
                check_waiting(folder, stamp)
            except InputError as error:
                _drop(folder, stamp, error)


def drop_damaged_places(stamps: Iterable[Stamp]) -> None:
    """Drop those of the runs' places that no run was written as, whatever it was asked for; say which."""
    for stamp in stamps:
        folder = RUNS / stamp.run.path
        if os.path.lexists(folder):
            try:
                check_whole(folder)
            except InputError as error:
                _drop(folder, stamp, error)


def _drop(folder: Path, stamp: Stamp, reason: InputError) -> None:
    more = drop_damaged(folder)
    say(f"{stamp.run.name}: {reason}; {folder} is dropped{more}, the run is restored or trained again")


def checkpoint_of(stamp: Stamp) -> Path:
    """Where a run keeps its state while it trains."""
    return AHEAD / f"{stamp.key()}{CHECKPOINT}"


def saved_epochs(stamp: Stamp) -> int:
    """Epochs that a run's checkpoint says are done, 0 without one. Whether it is whole is not looked at."""
    try:
        with checkpoint_of(stamp).open("rb") as file:
            return int(file.readlines(HEAD)[2])
    except (OSError, ValueError, IndexError):
        return 0


def prune(keys: set[str]) -> None:
    """Drop all waiting runs and checkpoints but those of the given keys: something has moved on."""
    for folder in waiting():
        if folder.name not in keys:
            remove(folder)
    for file in [*AHEAD.glob(f"*{CHECKPOINT}"), *AHEAD.glob(f".*{CHECKPOINT}.partial")]:
        if file.name.removeprefix(".").partition(".")[0] not in keys:
            remove(file)


def waiting() -> list[Path]:
    """Folders of the runs that wait."""
    return sorted(path for path in AHEAD.glob("*") if path.is_dir() and not path.name.startswith("."))
