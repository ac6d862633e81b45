"""Archives: data that a worker lacks, and runs that it gives back, as bytes.

An archive is a tar of a folder's files alone. Its bytes depend on their names and contents alone.
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
    """Return an archive of a folder's files, in the order of their names, without owners and times."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(entry, file)
    return out.getvalue()


def unpack(archive: bytes, folder: Path) -> None:
    """Write an archive's files into a folder. InputError if it is damaged or has files of other folders."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            for entry in tar:
                place = PurePosixPath(entry.name)
                content = tar.extractfile(entry) if entry.isreg() else None
                if content is None or place.is_absolute() or ".." in place.parts:
                    raise InputError(f"{folder}: its archive has {entry.name}, which is no file of a folder")
                path = folder / place
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
    except tarfile.TarError as error:
        raise InputError(f"{folder}: its archive is damaged ({error})") from None


def unpack_as(archive: bytes, target: Path) -> None:
    """Write an archive as `target`, whole or not at all, while others may be writing the same."""
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    partial.mkdir(parents=True)
    try:
        unpack(archive, partial)
        reach_disk([*partial.rglob("*"), partial])
        move_folder(partial, target)
    finally:
        remove(partial)


def receive(key: str, archive: bytes) -> bool:
    """Put a run that was trained elsewhere into the store; False if it is there already.

    InputError if it is not to the bit what was written there: it is checked before it has its name.
    """
    if has(key):
        return False

    def write(folder: Path) -> None:
        unpack(archive, folder)
        verify_stored(folder, key)
        reach_disk([*folder.rglob("*"), folder])

    write_beside(stored(key), write)
    return True
