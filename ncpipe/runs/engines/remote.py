"""Train tasks on machines that may not share the driver's disk (`ncpipe.runs.engines.ray_cluster`).

A worker that sees the driver's folder trains there, into its store. Any other worker has a work directory
below its folder for temporary files: it receives data and returns finished runs as archives. The work
directory is named by a digest of its contents, so a later task on the same machine finds the data there, and
the checkpoints of a stopped task.

An archive is a tar file without folders, owners and times, so equal files give equal bytes.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import secrets
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

from ncpipe.config.specs import data_path
from ncpipe.config.study_files import PIPELINE
from ncpipe.datasets.prepared import read_prepared
from ncpipe.runs.code_digests import study_files
from ncpipe.runs.engines.task import Task, TaskResult
from ncpipe.runs.engines.worker import train_task
from ncpipe.runs.store import has, stored, write_beside
from ncpipe.runs.store_layout import ALONE, begin_store, verify_stored
from ncpipe.system.artifacts import PREPARED, move_folder, reach_disk, remove
from ncpipe.system.console import recorded_lines
from ncpipe.system.errors import InputError

LoadArchive = Callable[[], bytes]


@dataclass(frozen=True)
class Origin:
    """Describes the driver's folder.

    root: its path.
    marker: a file in its store; a worker that sees this file shares the folder.
    study: its study.py and the files that it imports, by path.
    torch: the version of PyTorch, because only equal versions give equal bytes.
    """

    root: str
    marker: str
    study: Mapping[str, bytes]
    torch: str


@contextlib.contextmanager
def origin() -> Iterator[Origin]:
    """Yield the description of the current folder; its marker exists until the block ends."""
    marker = begin_store().absolute() / f".origin-{secrets.token_hex(16)}"
    marker.touch()
    try:
        study = {path.as_posix(): path.read_bytes() for path in _study_code()}
        yield Origin(str(Path.cwd()), str(marker), study, torch.__version__)
    finally:
        marker.unlink(missing_ok=True)


def _study_code() -> list[Path]:
    """Return study.py with the files that it imports, and the dvc.yaml that lists them."""
    files = study_files()
    return [*files, PIPELINE] if files and PIPELINE.is_file() else files


def data_sets_of(task: Task) -> set[str]:
    """Return the names of a task's prepared data sets, below data/prepared."""
    return {data_path(run["experiment"], run["value"]).as_posix() for run in task.runs}


def train_remotely(
    task: Task, source: Origin, data: Mapping[str, LoadArchive]
) -> tuple[TaskResult, dict[str, bytes]]:
    """Train a task on this machine; return its result, and the archives of finished runs by fingerprint.

    There are no archives if this machine shares the driver's store. data: loads the archive of each prepared
    data set; called only if the set is missing here.
    """
    log: list[str] = []
    try:
        with recorded_lines(log.append), _in_workdir(task, source, data) as shared:
            result = dataclasses.replace(train_task(task), log="".join(log))
            if shared:
                return result, {}
            finished = [key for key in task.keys if has(key)]
            archives = {key: pack(stored(key)) for key in finished}
            for key in finished:
                remove(stored(key))
            return result, archives
    except InputError as error:
        return TaskResult(task, "failed", str(error), "".join(log)), {}


@contextlib.contextmanager
def _in_workdir(task: Task, source: Origin, data: Mapping[str, LoadArchive]) -> Iterator[bool]:
    """Change to the folder with the task's data; yield whether that is the driver's folder."""
    if torch.__version__ != source.torch:
        raise InputError(
            f"torch: version {torch.__version__} on a worker and {source.torch} in the sweep; "
            "install the same version on both"
        )
    shared = Path(source.marker).is_file() and Path(source.root).is_dir()
    with contextlib.chdir(source.root if shared else _workdir(task, source)):
        if not shared:
            _prepare_workdir(task, source, data)
        yield shared


def _workdir(task: Task, source: Origin) -> Path:
    """Return this user's folder for tasks with this origin, study and data."""
    study = {path: content.hex() for path, content in source.study.items()}
    name = hashlib.sha256(json.dumps([source.root, source.torch, task.data, study]).encode())
    base = Path(tempfile.gettempdir()) / f"ncpipe-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    if base.is_symlink() or base.stat().st_uid != os.getuid():
        raise InputError(f"{base}: belongs to another user; remove it, or set TMPDIR on this machine")
    workdir = base / name.hexdigest()[:32]
    (workdir / ALONE).mkdir(parents=True, exist_ok=True)
    return workdir


def _prepare_workdir(task: Task, source: Origin, data: Mapping[str, LoadArchive]) -> None:
    """Write the study's code and the missing data sets into the current folder."""
    for path, content in source.study.items():
        if not Path(os.path.normpath(path)).resolve().is_relative_to(Path.cwd()):
            raise InputError(f"{path}: lies outside the study's folder, so it cannot be sent to workers")
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        partial = Path(f"{path}.{secrets.token_hex(8)}.partial")
        partial.write_bytes(content)
        os.replace(partial, path)
    for name in sorted(data_sets_of(task)):
        if not _has_data(PREPARED / name, task.data):
            with contextlib.suppress(OSError):  # another worker was first; other errors show below
                _unpack_as(data[name](), PREPARED / name)
            read_prepared(PREPARED / name)


def _has_data(folder: Path, checksum: str) -> bool:
    with contextlib.suppress(InputError):
        return read_prepared(folder).checksum == checksum
    return False


def pack(folder: Path) -> bytes:
    """Return an archive of a folder's files, sorted by name."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(entry, file)
    return out.getvalue()


def unpack(archive: bytes, folder: Path) -> None:
    """Write an archive's files into a folder, and wait until they are on the disk.

    Raises InputError if the archive is damaged or has a path that leads out of the folder.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for entry in tar:
                relative = PurePosixPath(entry.name)
                content = tar.extractfile(entry) if entry.isreg() else None
                if content is None or relative.is_absolute() or ".." in relative.parts:
                    raise InputError(
                        f"{folder}: its archive has {entry.name}, which is not a file inside the folder"
                    )
                path = folder / relative
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
    except tarfile.TarError as error:
        raise InputError(f"{folder}: its archive is damaged ({error})") from None
    reach_disk([*folder.rglob("*"), folder])


def _unpack_as(archive: bytes, target: Path) -> None:
    """Write an archive to the folder `target`, completely or not at all; other processes may do the same."""
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        unpack(archive, partial)
        move_folder(partial, target)
    finally:
        remove(partial)


def store_archive(key: str, archive: bytes) -> bool:
    """Put a run that was trained elsewhere into the store; return False if the store has it already.

    Raises InputError if any bit differs from what was written there.
    """
    if has(key):
        return False

    def write(folder: Path) -> None:
        unpack(archive, folder)
        verify_stored(folder, key)

    write_beside(stored(key), write)
    return True
