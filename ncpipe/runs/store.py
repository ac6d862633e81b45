"""The store of finished runs: one folder per run, named by its fingerprint (`RunFingerprint.key`).

A run that trains, or that was stopped, has a checkpoint in the store. Nothing refers from the store to a
project, so a run that lies anywhere can be imported. What is taken from the store is, to the bit, what was
written. Deleting the whole store at any moment costs time and nothing else.
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
from ncpipe.runs.dvc import cache_folder, dvc_folder
from ncpipe.runs.dvc_repair import remove_damaged
from ncpipe.runs.fingerprint import RUN_RECORD, RunFingerprint, is_current, verify_run
from ncpipe.runs.store_layout import begin_store, link, materialise, store_folder, verify_stored
from ncpipe.system.artifacts import MANIFEST, PREPARED, RUNS, reach_disk, read_json, remove
from ncpipe.system.console import say
from ncpipe.system.errors import InputError

CHECKPOINT = ".checkpoint"
HEADER = 4096  # bytes: more than the lines before a checkpoint's state
RUN_PATTERNS = ("*/L*/s*", "*/L*/x*/s*")  # folders of runs, below data/runs


def sweep_fingerprints(params: Params, compute: Compute) -> list[RunFingerprint]:
    """Return the fingerprints of the sweep's runs whose data are prepared."""
    fingerprints = []
    checksums: dict[Path, str] = {}
    for run in params.grid():
        with contextlib.suppress(InputError):
            checksum = checksums.get(run.data) or data_checksum(PREPARED / run.data)
            checksums[run.data] = checksum
            fingerprints.append(RunFingerprint(run, checksum, compute))
    return fingerprints


def stored(key: str) -> Path:
    """Return a run's folder in the store, whether it exists or not."""
    return store_folder() / key


def has(key: str) -> bool:
    """Return whether the store has a finished run."""
    return stored(key).is_dir()


def batch_lock(fingerprint: RunFingerprint) -> FileLock:
    """Return the lock that a process holds while it trains runs of this shape.

    The operating system releases it when the process dies.
    """
    folder = begin_store() / "locks"
    folder.mkdir(exist_ok=True)
    return FileLock(folder / f"{fingerprint.batch_key()[:16]}.lock")


def is_materialised(fingerprint: RunFingerprint) -> bool:
    """Return whether data/runs has this run's result, undamaged."""
    folder = RUNS / fingerprint.run.path
    with contextlib.suppress(InputError):
        verify_run(folder)
        return is_current(folder, fingerprint)
    return False


def needs_training(fingerprint: RunFingerprint) -> bool:
    """Return whether neither the store nor data/runs has this run's result. Damage is not looked for."""
    return not has(fingerprint.key()) and not is_current(RUNS / fingerprint.run.path, fingerprint)


def missing_of(fingerprints: Iterable[RunFingerprint]) -> list[RunFingerprint]:
    """Return the runs that have to be trained.

    A run that only data/runs has is imported. A damaged run is reported and removed, in the store, in
    data/runs and in DVC's cache, from which DVC would restore the damage.
    """
    todo = []
    for fingerprint in fingerprints:
        key = fingerprint.key()
        folder, place = stored(key), RUNS / fingerprint.run.path
        if os.path.lexists(folder):
            try:
                verify_stored(folder, key)
            except InputError as error:
                _drop(folder, fingerprint, error)
        if is_current(place, fingerprint):
            try:
                verify_run(place)
                import_run(place)
            except InputError as error:
                _drop(place, fingerprint, error)
        if not has(key):
            todo.append(fingerprint)
    return todo


def take(fingerprint: RunFingerprint) -> bool:
    """Copy a run from the store to data/runs; return False if the store does not have it undamaged."""
    if missing_of([fingerprint]):
        return False
    key = fingerprint.key()
    materialise(stored(key), RUNS / fingerprint.run.path)
    checkpoint_path(key, fingerprint.compute.device).unlink(missing_ok=True)
    return True


def write_beside(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder of the store under a name of this process's own, then rename it.

    Two processes may finish the same run: one that was taken for dead may go on. The first rename wins.
    """
    begin_store()
    own = folder.with_name(f".{folder.name}.{socket.gethostname()}-{os.getpid()}")
    remove(own)
    try:
        write(own)
        os.rename(own, folder)
    except OSError:
        remove(own)
        if not (folder / RUN_RECORD).is_file():  # else the other process was first
            raise
    reach_disk([folder.parent])


def import_runs() -> int:
    """Store every undamaged run of data/runs that the store lacks; return how many there were.

    Such runs came by `dvc pull` or `dvc checkout`. DVC removes a stage's outputs before it runs the stage.
    """
    found = 0
    for place in _run_folders():
        with contextlib.suppress(InputError):
            found += import_run(place)
    return found


def import_run(place: Path) -> bool:
    """Store a run's folder under the fingerprint in its manifest; return False if the store has it.

    Raises InputError, naming the file, if the folder is damaged.
    """
    key = _manifest_key(place)
    if has(key):
        return False
    verify_run(place)
    write_beside(stored(key), lambda own: _copy(place, own))
    return True


def _manifest_key(place: Path) -> str:
    manifest = read_json(place / MANIFEST)
    key = manifest.get("key") if isinstance(manifest, dict) else None
    if not isinstance(key, str) or not key.isalnum():
        raise InputError(f"{place / MANIFEST}: damaged")
    return key


def _copy(place: Path, own: Path) -> None:
    shutil.copytree(place, own, copy_function=link)
    reach_disk([*own.rglob("*"), own])


def _run_folders() -> list[Path]:
    return [place for pattern in RUN_PATTERNS for place in sorted(RUNS.glob(pattern))]


def link_runs_to_dvc_cache() -> None:
    """Call `link_to_dvc_cache` for every run in data/runs."""
    link_to_dvc_cache(_run_folders())


def link_to_dvc_cache(places: Iterable[Path]) -> None:
    """Replace files of stored runs by hard links to DVC's cache, so that they take no space of their own.

    places: the runs in data/runs. A file that DVC removes from its cache later stays in the store. A file is
    left as it is across file systems, and where its contents differ from what DVC's cache has.
    """
    if (dvc := dvc_folder()) is None:
        return
    objects = cache_folder(dvc) / "files" / "md5"
    for place in places:
        with contextlib.suppress(InputError, OSError):
            for file in stored(_manifest_key(place)).rglob("*"):
                if file.is_file() and file.stat().st_mode & 0o200:  # DVC's own files are read-only
                    _link_to_object(file, objects)


def _link_to_object(file: Path, objects: Path) -> None:
    md5 = hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
    known = objects / md5[:2] / md5[2:]
    if known.is_file() and not known.samefile(file) and filecmp.cmp(known, file, shallow=False):
        partial = file.with_name(f".{file.name}.{os.getpid()}")
        reach_disk([known])  # DVC has not: a stored file is on the disk
        os.link(known, partial)
        os.replace(partial, file)


def _drop(folder: Path, fingerprint: RunFingerprint, reason: InputError) -> None:
    more = remove_damaged(folder)
    name = fingerprint.run.name
    say(f"{name}: {reason}; {folder} is removed{more}; the run is restored or trained again")


def checkpoint_of(fingerprint: RunFingerprint) -> Path:
    """Where a run keeps its state while it trains: one for each device that it may be asked for."""
    return checkpoint_path(fingerprint.key(), fingerprint.compute.device)


def checkpoint_path(key: str, device: str) -> Path:
    """Return the same place by the run's fingerprint."""
    return store_folder() / f"{key}-{device}{CHECKPOINT}"


def saved_epochs(fingerprint: RunFingerprint) -> int:
    """Epochs that a run's checkpoint says are done, 0 without one. Whether it is whole is not looked at."""
    return epochs_in(checkpoint_of(fingerprint))


def epochs_in(checkpoint: Path) -> int:
    """Return the epochs that a checkpoint says are done, 0 if there is none."""
    try:
        with checkpoint.open("rb") as file:
            return int(file.readlines(HEADER)[2])
    except (OSError, ValueError, IndexError):
        return 0
