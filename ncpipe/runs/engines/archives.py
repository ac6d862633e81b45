"""Train runs on machines that share no disk with the driver (`ncpipe.runs.engines.ray_cluster`).

A worker has a work directory below its folder for temporary files: it receives data and code, and returns
finished runs as archives. The directory is named by a digest of its contents, so a later task on the same
machine finds the data there, and the checkpoints of a stopped task.

An archive is a tar file without folders, owners and times, so equal files give equal bytes.
"""

import contextlib
import hashlib
import io
import json
import os
import secrets
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch

from ncpipe.config.run import Device
from ncpipe.datasets.prepared import read_prepared
from ncpipe.runs.batches import Batch, groups, split_batch, train_batches
from ncpipe.runs.fill import runs_of_keys
from ncpipe.runs.store import has, stored, write_beside
from ncpipe.runs.store_layout import ALONE, verify_stored
from ncpipe.system.artifacts import PREPARED, move_folder, reach_disk, remove
from ncpipe.system.console import Unseen, recorded_lines
from ncpipe.system.errors import InputError
from ncpipe.training.device import prepare_device

LoadArchive = Callable[[], bytes]


@dataclass(frozen=True)
class Origin:
    """Describes the driver's folder.

    root: its path. files: its params.yaml, and study.py with the files that it imports, by path.
    torch: the version of PyTorch, because only equal versions give equal bytes.
    """

    root: str
    files: Mapping[str, bytes]
    torch: str

    @staticmethod
    def here(files: Mapping[str, bytes]) -> "Origin":
        """Return that of the current folder."""
        return Origin(str(Path.cwd()), files, torch.__version__)


def train_remotely(
    origin: Origin,
    keys: Sequence[str],
    device: Device,
    checkpoint_seconds: float,
    shares: int,
    data: Mapping[str, LoadArchive],
) -> tuple[dict[str, bytes], str, str]:
    """Train runs on this machine; return archives of those that finished, why others did not, and the log.

    shares: how many tasks share the machine's memory. data: loads the archive of each prepared data set.
    """
    log: list[str] = []
    reason = ""
    with recorded_lines(log.append):
        try:
            if torch.__version__ != origin.torch:
                raise InputError(
                    f"torch: version {torch.__version__} on a worker and {origin.torch} in the sweep; "
                    "install the same version on both"
                )
            workdir = _workdir(origin)
        except InputError as error:
            return {}, str(error), ""
        with contextlib.chdir(workdir):
            try:
                _prepare_workdir(origin, data)
                _train(keys, device, checkpoint_seconds, shares)
            except InputError as error:
                reason = str(error)
            finished = [key for key in keys if has(key)]
            archives = {key: pack(stored(key)) for key in finished}
            for key in finished:
                remove(stored(key))
    return archives, reason, "".join(log)


def _train(keys: Sequence[str], device: Device, checkpoint_seconds: float, shares: int) -> None:
    fingerprints = [each for each in runs_of_keys(keys, device) if not has(each.key())]
    batches: list[Batch] = []
    for group in groups(fingerprints):
        place = prepare_device(group[0].compute)
        batches += split_batch(group, place, shares, 1)[0]
    if batches:
        train_batches(batches, 1, checkpoint_seconds, Unseen(), lambda fingerprint: 1.0)


def _workdir(origin: Origin) -> Path:
    """Return this user's folder for tasks with this origin and its files."""
    files = {path: content.hex() for path, content in origin.files.items()}
    name = hashlib.sha256(json.dumps([origin.root, origin.torch, files]).encode())
    base = Path(tempfile.gettempdir()) / f"ncpipe-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    if base.is_symlink() or base.stat().st_uid != os.getuid():
        raise InputError(f"{base}: belongs to another user; remove it, or set TMPDIR on this machine")
    workdir = base / name.hexdigest()[:32]
    (workdir / ALONE).mkdir(parents=True, exist_ok=True)
    return workdir


def _prepare_workdir(origin: Origin, data: Mapping[str, LoadArchive]) -> None:
    """Write the code and the data sets into the current folder, but for data that are there."""
    for path, content in origin.files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        partial = Path(f"{path}.{secrets.token_hex(8)}.partial")
        partial.write_bytes(content)
        os.replace(partial, path)
    for name, load in sorted(data.items()):
        if not _has_archive(PREPARED / name, archive := load()):
            with contextlib.suppress(OSError):  # another worker was first; other errors show below
                _unpack_as(archive, PREPARED / name)
            read_prepared(PREPARED / name)


def _has_archive(folder: Path, archive: bytes) -> bool:
    return folder.is_dir() and pack(folder) == archive


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
