"""Store finished runs and checkpoints: one folder per run, named by its fingerprint (`RunFingerprint.key`).

The store does not refer to any project, so runs of any project can be imported. Every bit of a run is
verified when it is taken from the store. Deleting the whole store at any time only costs time.
`ncpipe.runs.store_layout` says where the store is; `ncpipe.runs.run_folder` writes a run's folder.
"""

import contextlib
import filecmp
import functools
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from ncpipe.config.params import Params
from ncpipe.config.run import Compute
from ncpipe.datasets.stored import data_checksum
from ncpipe.runs.dvc import cached_files, locked_files
from ncpipe.runs.dvc_repair import remove_damaged
from ncpipe.runs.fingerprint import RUN_RECORD, RunFingerprint, fingerprint_of, is_current, verify_run
from ncpipe.runs.store_layout import (
    begin_store,
    beside,
    link,
    link_cached,
    materialise,
    store_folder,
    verify_stored,
)
from ncpipe.system.artifacts import MANIFEST, METRICS, PREPARED, RUNS, md5_of, reach_disk, read_json, remove
from ncpipe.system.console import plural, say
from ncpipe.system.errors import InputError

CHECKPOINT = ".checkpoint"
HEADER = 4096  # bytes: more than the lines before a checkpoint's state
RUN_PATTERNS = ("L*/s*", "L*/x*/s*")  # folders of runs below data/runs/EXPERIMENT


def sweep_fingerprints(params: Params, compute: Compute) -> list[RunFingerprint]:
    """Return the fingerprints of the sweep's runs whose data are prepared."""
    fingerprints = []
    checksums: dict[Path, str] = {}
    for run in params.grid():
        with contextlib.suppress(InputError):
            checksum = checksums.get(run.data) or data_checksum(PREPARED / run.data)
            checksums[run.data] = checksum
            fingerprints.append(fingerprint_of(run, checksum, compute))
    return fingerprints


def stored(key: str) -> Path:
    """Return the path of a run's folder in the store."""
    return store_folder() / key


def has(key: str) -> bool:
    """Return whether the store has a finished run."""
    return stored(key).is_dir()


def needs_training(fingerprint: RunFingerprint) -> bool:
    """Return whether neither the store nor data/runs has this run's result; does not look for damage."""
    return not has(fingerprint.key()) and not is_current(RUNS / fingerprint.run.path, fingerprint)


def lacking(fingerprints: Iterable[RunFingerprint], besides: Collection[str] = ()) -> list[RunFingerprint]:
    """Return the runs that the store lacks, besides those with these keys; does not look for damage."""
    keys = ((fingerprint, fingerprint.key()) for fingerprint in fingerprints)
    return [fingerprint for fingerprint, key in keys if key not in besides and not has(key)]


def missing_of(fingerprints: Iterable[RunFingerprint]) -> list[RunFingerprint]:
    """Return the runs that the store lacks, after importing those in data/runs.

    A damaged run is reported and removed from the store, from data/runs and from DVC's cache.
    """
    missing = []
    for fingerprint in fingerprints:
        key = fingerprint.key()
        folder, in_runs = stored(key), RUNS / fingerprint.run.path
        if os.path.lexists(folder):
            try:
                verify_stored(folder, key)
            except InputError as error:
                _remove_damaged(folder, fingerprint, error)
        if is_current(in_runs, fingerprint):
            try:
                verify_run(in_runs)
                import_run(in_runs)
            except InputError as error:
                _remove_damaged(in_runs, fingerprint, error)
        if not has(key):
            missing.append(fingerprint)
    return missing


def restore(missing: Sequence[RunFingerprint]) -> list[RunFingerprint]:
    """Store the runs that DVC's cache has as outputs in dvc.lock; return the others.

    DVC would restore them too, but after the stage `fill` has trained them.
    """
    locked, left, absent = locked_files(RUNS) if missing else {}, [], 0
    for fingerprint in missing:
        files = _locked_run(locked, RUNS / fingerprint.run.path)
        try:
            write_beside(stored(fingerprint.key()), functools.partial(_link_run, fingerprint, files))
        except InputError:
            left.append(fingerprint)
            absent += files is not None
    if absent:
        say(
            f"dvc.lock has {absent} of the {plural(len(left), 'run')} to train, and DVC's cache does not; if "
            "a remote does, stop this (Ctrl-C) and run dvc pull"
        )
    return left


def _locked_run(locked: Mapping[Path, Mapping[str, str]], folder: Path) -> dict[str, str] | None:
    """Return the MD5 of a run's files by name, of the output that is its folder or holds it; None if none.

    {}: the cache lacks the output's list of files.
    """
    if (place := next((place for place in (folder, *folder.parents) if place in locked), None)) is None:
        return None
    if place == folder or not locked[place]:
        return dict(locked[place])
    inside = f"{folder.relative_to(place).as_posix()}/"
    files = {name.removeprefix(inside): md5 for name, md5 in locked[place].items() if name.startswith(inside)}
    return files or None


def _link_run(fingerprint: RunFingerprint, files: Mapping[str, str] | None, folder: Path) -> None:
    if not files or not link_cached(files, folder) or not is_current(folder, fingerprint):
        raise InputError(f"{fingerprint.run.name}: not in DVC's cache")
    verify_run(folder)


def take(fingerprint: RunFingerprint) -> bool:
    """Put a run from the store into data/runs; return False if the store does not have it undamaged."""
    if missing_of([fingerprint]):
        return False
    key = fingerprint.key()
    materialise(stored(key), RUNS / fingerprint.run.path)
    with contextlib.suppress(OSError):  # a read-only store, which fails even if there is no checkpoint
        checkpoint_of(fingerprint).unlink(missing_ok=True)
    return True


def write_beside(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder of the store under a temporary name, then rename it.

    Two processes, or threads, may finish the same run, if one of them was believed to be dead. The first
    rename counts. A process that is killed leaves its folder, which `ncpipe clean` removes.
    """
    begin_store()
    partial = beside(folder)
    try:
        write(partial)
        os.rename(partial, folder)
    except BaseException as error:
        remove(partial)
        if not isinstance(error, OSError) or not (folder / RUN_RECORD).is_file():
            raise  # otherwise the other process was first
    reach_disk([folder.parent])


def import_runs() -> None:
    """Store every undamaged run of data/runs that the store lacks.

    `dvc pull` and `dvc checkout` leave such runs, and DVC removes a stage's outputs before it runs the stage.
    Raises InputError for a store of another version, which cannot take them.
    """
    store_folder()
    for folder in _run_folders():
        with contextlib.suppress(InputError):
            import_run(folder)


def remove_unwanted(params: Params) -> None:
    """Remove results of runs and experiments that the sweep no longer has, after storing all runs.

    Stages that depend on the folders above them would otherwise be stale in a fresh clone, which lacks them.
    """
    runs = params.grid()
    wanted = {RUNS / run.path for run in runs} | {PREPARED / run.data for run in runs}
    wanted |= {METRICS / run.experiment for run in runs}
    wanted |= {parent for folder in wanted for parent in folder.parents}
    import_runs()
    folders = [folder for above in (RUNS, METRICS, PREPARED) for folder in above.glob("*")]
    for folder in (*_run_folders(), *folders, *PREPARED.glob("*/x*")):
        if folder not in wanted and folder.is_dir() and not folder.name.startswith("."):
            remove(folder)


def import_run(folder: Path) -> None:
    """Store a run's folder under the fingerprint in its manifest, unless the store has it.

    Raises InputError, with the file's name, if the folder is damaged.
    """
    key = manifest_key(folder)
    if not has(key):
        verify_run(folder)
        write_beside(stored(key), lambda partial: _copy(folder, partial))


def manifest_key(folder: Path) -> str:
    """Return the fingerprint in a run's manifest; raise InputError if that is damaged."""
    manifest = read_json(folder / MANIFEST)
    key = manifest.get("key") if isinstance(manifest, dict) else None
    if not isinstance(key, str) or not key.isalnum():
        raise InputError(f"{folder / MANIFEST}: damaged")
    return key


def _copy(folder: Path, target: Path) -> None:
    shutil.copytree(folder, target, copy_function=link)
    reach_disk([*target.rglob("*"), target])


def _run_folders(experiment: str = "*") -> list[Path]:
    return [folder for pattern in RUN_PATTERNS for folder in sorted(RUNS.glob(f"{experiment}/{pattern}"))]


def link_to_dvc_cache(experiment: str = "*") -> None:
    """Replace files of the stored runs in data/runs by hard links to DVC's cache, which need no extra space.

    experiment: whose runs alone; all by default. Files that DVC later removes from its cache stay in the
    store. Files are kept if the cache is on another file system or has other contents. The time of a run's
    last use stays.
    """
    if (objects := cached_files()) is None:
        return
    for folder in _run_folders(experiment):
        with contextlib.suppress(InputError, OSError):
            run = stored(manifest_key(folder))
            files = [file for file in run.rglob("*") if file.is_file()]
            if loose := [file for file in files if file.stat().st_mode & 0o200]:  # DVC's are read-only
                used = run.stat()
                for file in loose:
                    _link_to_object(file, run, objects)
                os.utime(run, ns=(used.st_atime_ns, used.st_mtime_ns))


def _link_to_object(file: Path, run: Path, objects: Path) -> None:
    md5 = md5_of(file)
    cached = objects / md5[:2] / md5[2:]
    if cached.is_file() and not cached.samefile(file) and filecmp.cmp(cached, file, shallow=False):
        partial = beside(run)  # another process may check the run's folder
        reach_disk([cached])  # DVC does not ensure this
        try:
            os.link(cached, partial)
            os.replace(partial, file)
        finally:  # a rename of one file to itself does nothing
            partial.unlink(missing_ok=True)


def _remove_damaged(folder: Path, fingerprint: RunFingerprint, reason: InputError) -> None:
    copies = remove_damaged(folder)
    name = fingerprint.run.name
    say(f"{name}: {reason}; {folder} was removed{copies}; the run will be restored or trained again")


def checkpoint_of(fingerprint: RunFingerprint) -> Path:
    """Return the path of a run's checkpoint, which is different for each `compute.device`."""
    return store_folder() / f"{fingerprint.key()}-{fingerprint.compute.device}{CHECKPOINT}"


def epochs_of(fingerprints: Iterable[RunFingerprint]) -> int:
    """Count the epochs in the finished runs and the checkpoints of the store."""
    return sum(
        fingerprint.run.spec.epochs if has(fingerprint.key()) else saved_epochs(fingerprint)
        for fingerprint in fingerprints
    )


def saved_epochs(fingerprint: RunFingerprint) -> int:
    """Return the number of epochs in a run's checkpoint, 0 without one; does not look for damage."""
    try:
        with checkpoint_of(fingerprint).open("rb") as file:
            return int(file.readlines(HEADER)[2])
    except (OSError, ValueError, IndexError):
        return 0
