"""Where the store of runs lies, and how a run gets from there into data/runs.

The store lies below DVC's cache directory, so that all who share a cache share it: studies, clones and DVC's
experiments, `--temp` and the queue included. Only the standard library is imported, for `fast_path`.
"""

import contextlib
import functools
import os
import shutil
import threading
from pathlib import Path

from ncpipe.runs.dvc import cache_folder, dvc_folder
from ncpipe.system.artifacts import check_manifest, publish_folder, reach_disk
from ncpipe.system.errors import InputError

NAME = "ncpipe"  # below DVC's cache directory; `dvc gc` leaves it alone
ALONE = Path("data/.store")  # in a folder without DVC
VERSION_FILE = "version.txt"
VERSION = "1"


def store_folder() -> Path:
    """Return the store of the current folder's project. Raises InputError if another version wrote it."""
    return _store(os.getcwd())


@functools.lru_cache(maxsize=8)
def _store(here: str) -> Path:
    dvc = dvc_folder()
    folder = ALONE if dvc is None else cache_folder(dvc) / NAME
    try:
        version = (folder / VERSION_FILE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return folder
    if version != VERSION:
        raise InputError(
            f"{folder}: a store of version {version[:20]!r}, this ncpipe reads version {VERSION}; "
            "use the ncpipe that wrote it, or another cache (dvc cache dir)"
        )
    return folder


def begin_store() -> Path:
    """Return the store; create it if it does not exist. Raises OSError where that fails."""
    folder = store_folder()
    if not (folder / VERSION_FILE).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        partial = (
            folder / f".{VERSION_FILE}.{os.getpid()}-{threading.get_ident()}"
        )  # others may create it now
        partial.write_text(f"{VERSION}\n", encoding="utf-8")
        os.replace(partial, folder / VERSION_FILE)
    return folder


def verify_stored(folder: Path, key: str) -> None:
    """Raise InputError unless a stored folder is, to the bit, the run with this fingerprint."""
    if any(path.is_symlink() for path in (folder, *folder.rglob("*"))):
        raise InputError(f"{folder}: has a symbolic link; a run is a folder of files")
    check_manifest(folder, key)


def materialise(folder: Path, place: Path) -> None:
    """Put a stored run into its place in data/runs, by hard links where one file system holds both.

    A stored file is on the disk, and so is another name of it once the folder with the name is. The stored
    folder's time of change records when the run was used last, for `ncpipe clean`.
    """
    with publish_folder(place, files_are_on_disk=True) as partial:
        shutil.copytree(folder, partial, copy_function=link, dirs_exist_ok=True)
    with contextlib.suppress(OSError):  # a read-only store
        os.utime(folder)


def link(source: "str | os.PathLike[str]", target: "str | os.PathLike[str]") -> None:
    """Hard-link a file; where that is not possible copy it to the disk. A symbolic link is followed."""
    try:
        os.link(os.path.realpath(source) if os.path.islink(source) else source, target)
    except OSError:
        shutil.copyfile(source, target)
        reach_disk([Path(target)])
