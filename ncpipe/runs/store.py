"""The store of finished runs: a sealed folder for each, by its fingerprint (`Stamp.key`).

A run in training, or one that was stopped, has a checkpoint there. Nothing else leads from the store to a
project: any run that is found anywhere can be taken up, and what is taken is, to the bit, what was sealed.
Deleting all of it at any moment costs time and nothing else.
"""

import contextlib
import filecmp
import hashlib
import os
import shutil
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from filelock import FileLock

from ncpipe.config.params import Params
from ncpipe.config.specs import Compute
from ncpipe.datasets.stored import data_checksum
from ncpipe.runs.dvc_repair import cache_folder, drop_damaged, dvc_folder
from ncpipe.runs.fingerprint import RUN_RECORD, Stamp, check_whole, is_current
from ncpipe.runs.folders import begin_store, check_stored, link, put_in_place, store_folder
from ncpipe.system.artifacts import PREPARED, RUNS, SEAL, reach_disk, read_json, remove
from ncpipe.system.console import say
from ncpipe.system.errors import InputError

CHECKPOINT = ".checkpoint"
HEAD = 4096  # bytes: more than the lines before a checkpoint's state
PLACES = ("*/L*/s*", "*/L*/x*/s*")  # of runs, below their folder


def sweep_stamps(params: Params, compute: Compute) -> list[Stamp]:
    """The stamps of the sweep's runs, less those whose data are not prepared yet."""
    stamps = []
    checksums: dict[Path, str] = {}
    for run in params.grid():
        with contextlib.suppress(InputError):
            checksum = checksums.get(run.data) or data_checksum(PREPARED / run.data)
            checksums[run.data] = checksum
            stamps.append(Stamp(run, checksum, compute))
    return stamps


def stored(key: str) -> Path:
    """A run's folder in the store, whether it is there or not."""
    return store_folder() / key


def has(key: str) -> bool:
    """Whether a finished run is in the store."""
    return stored(key).is_dir()


def batch_lock(stamp: Stamp) -> FileLock:
    """Held by who trains runs of this shape. The system frees it if its holder dies."""
    folder = begin_store() / "locks"
    folder.mkdir(exist_ok=True)
    return FileLock(folder / f"{stamp.batch_key()[:16]}.lock")


def is_placed(stamp: Stamp) -> bool:
    """Whether a run's result is in its place, to the bit what was trained."""
    folder = RUNS / stamp.run.path
    with contextlib.suppress(InputError):
        check_whole(folder)
        return is_current(folder, stamp)
    return False


def is_missing(stamp: Stamp) -> bool:
    """Whether a run has its result neither in its place nor in the store."""
    return not has(stamp.key()) and not is_current(RUNS / stamp.run.path, stamp)


def missing_of(stamps: Iterable[Stamp]) -> list[Stamp]:
    """Those of the runs that have to be trained.

    A run that lies in its place alone is taken up. What lies in the store or in its place and is not whole is
    dropped, with a line and with DVC's copy of it, from which it would be restored as damaged as it is.
    """
    todo = []
    for stamp in stamps:
        folder, place = stored(stamp.key()), RUNS / stamp.run.path
        if os.path.lexists(folder):
            try:
                check_stored(folder, stamp.key())
            except InputError as error:
                _drop(folder, stamp, error)
        if is_current(place, stamp):
            try:
                check_whole(place)
                adopt(place)
            except InputError as error:
                _drop(place, stamp, error)
        if not has(stamp.key()):
            todo.append(stamp)
    return todo


def take(stamp: Stamp) -> bool:
    """Put a stored run into its place; False if it is not there, or not to the bit what was trained."""
    if missing_of([stamp]):
        return False
    put_in_place(stored(stamp.key()), RUNS / stamp.run.path)
    checkpoint_of(stamp).unlink(missing_ok=True)
    return True


def write_beside(folder: Path, write: Callable[[Path], None]) -> None:
    """Have a run's folder written by this process alone, and renamed: of two that finish one run, one stays.

    A process may be taken for dead, its run given to another, and go on all the same.
    """
    begin_store()
    own = folder.with_name(f".{folder.name}.{socket.gethostname()}-{os.getpid()}")
    remove(own)
    try:
        write(own)
        os.rename(own, folder)
    except OSError:
        remove(own)
        if not (folder / RUN_RECORD).is_file():  # else the other one was first
            raise
    reach_disk([folder.parent])


def adopt_places() -> int:
    """Take up every whole run in data/runs that is not in the store; how many there were.

    Such came by `dvc pull`, or by a checkout. Before DVC runs a stage it removes what that has made.
    """
    found = 0
    for place in (place for below in PLACES for place in sorted(RUNS.glob(below))):
        with contextlib.suppress(InputError):
            found += adopt(place)
    return found


def share_all() -> None:
    """`share`, of every run that lies in data/runs."""
    share(place for below in PLACES for place in RUNS.glob(below))


def adopt(place: Path) -> bool:
    """Store a run that lies in its place, as what it says it is; False if it is stored already.

    InputError, naming the file, if it is not to the bit what some run was written as.
    """
    seal = read_json(place / SEAL)
    key = seal.get("key") if isinstance(seal, dict) else None
    if not isinstance(key, str) or not key.isalnum():
        raise InputError(f"{place / SEAL}: damaged")
    if has(key):
        return False
    check_whole(place)
    write_beside(stored(key), lambda own: _copied(place, own))
    return True


def _copied(place: Path, own: Path) -> None:
    shutil.copytree(place, own, copy_function=link)
    reach_disk([*own.rglob("*"), own])


def share(places: Iterable[Path]) -> None:
    """Let stored runs take no room of their own: where DVC's cache has a file, the store has a name for it.

    places: of the runs. A file that DVC then removes from its cache stays in the store. Nothing is done
    across file systems, or where a file is another one than its name says.
    """
    if (dvc := dvc_folder()) is None:
        return
    objects = cache_folder(dvc) / "files" / "md5"
    for place in places:
        with contextlib.suppress(InputError, OSError, KeyError, TypeError):
            folder = stored(read_json(place / SEAL)["key"])
            for file in folder.rglob("*"):
                if (
                    file.is_file() and file.stat().st_mode & 0o200
                ):  # DVC takes the right to write from its own
                    _share(file, objects)


def _share(file: Path, objects: Path) -> None:
    md5 = hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
    known = objects / md5[:2] / md5[2:]
    if known.is_file() and not known.samefile(file) and filecmp.cmp(known, file, shallow=False):
        partial = file.with_name(f".{file.name}.{os.getpid()}")
        os.link(known, partial)
        os.replace(partial, file)


def _drop(folder: Path, stamp: Stamp, reason: InputError) -> None:
    more = drop_damaged(folder)
    say(f"{stamp.run.name}: {reason}; {folder} is dropped{more}, the run is restored or trained again")


def checkpoint_of(stamp: Stamp) -> Path:
    """Where a run keeps its state while it trains: one for each device that it may be asked for."""
    return checkpoint_path(stamp.key(), stamp.compute.device)


def checkpoint_path(key: str, device: str) -> Path:
    """Return the same place by the run's fingerprint."""
    return store_folder() / f"{key}-{device}{CHECKPOINT}"


def saved_epochs(stamp: Stamp) -> int:
    """Epochs that a run's checkpoint says are done, 0 without one. Whether it is whole is not looked at."""
    return epochs_in(checkpoint_of(stamp))


def epochs_in(checkpoint: Path) -> int:
    """Return the epochs that a checkpoint says are done, 0 if there is none."""
    try:
        with checkpoint.open("rb") as file:
            return int(file.readlines(HEAD)[2])
    except (OSError, ValueError, IndexError):
        return 0
