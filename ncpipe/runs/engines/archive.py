"""Pack folders into archives: prepared data that a worker lacks, and finished runs that it returns.

An archive is a tar file without folders, owners and times, so equal files give equal bytes.
`ncpipe.runs.engines.remote` decides what is sent.
"""

import io
import tarfile
import uuid
from pathlib import Path, PurePosixPath

from ncpipe.runs.store import has, stored, write_beside
from ncpipe.runs.store_layout import verify_stored
from ncpipe.system.artifacts import move_folder, reach_disk, remove
from ncpipe.system.errors import InputError


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
    """Write an archive's files into a folder.

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


def unpack_as(archive: bytes, target: Path) -> None:
    """Write an archive to the folder `target`, completely or not at all; other processes may do the same."""
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    partial.mkdir(parents=True)
    try:
        unpack(archive, partial)
        reach_disk([*partial.rglob("*"), partial])
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
        reach_disk([*folder.rglob("*"), folder])

    write_beside(stored(key), write)
    return True
