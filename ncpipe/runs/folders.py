"""Where finished runs are stored, and how one gets into its place. The standard library alone.

The store lies below DVC's cache directory, so that studies, DVC's experiments (`--temp` and the queue too)
and clones that share a cache share it: a folder for each run, named by its fingerprint.
"""

import contextlib
import functools
import os
import shutil
import threading
from pathlib import Path

from ncpipe.runs.dvc_repair import cache_folder, dvc_folder
from ncpipe.system.artifacts import check_seal, publish_folder
from ncpipe.system.errors import InputError

NAME = "ncpipe"  # below DVC's cache directory; `dvc gc` leaves it alone
ALONE = Path("data/.store")  # in a folder without DVC
VERSION_FILE = "version.txt"
VERSION = "1"


def store_folder() -> Path:
    """Return the store of the project that one stands in. InputError if another version wrote it."""
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
            f"{folder}: a store of version {version[:20]!r}, and this is ncpipe's for version {VERSION}; "
            "take the same ncpipe, or another cache (dvc cache dir)"
        )
    return folder


def begin_store() -> Path:
    """Return the store, which is there afterwards. OSError where it cannot be made."""
    folder = store_folder()
    if not (folder / VERSION_FILE).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".{VERSION_FILE}.{os.getpid()}-{threading.get_ident()}"  # of many who begin it
        partial.write_text(f"{VERSION}\n", encoding="utf-8")
        os.replace(partial, folder / VERSION_FILE)
    return folder


def check_stored(folder: Path, key: str) -> None:
    """Raise InputError unless a stored folder is, to the bit, the run that was sealed with this key."""
    if any(path.is_symlink() for path in (folder, *folder.rglob("*"))):
        raise InputError(f"{folder}: a link, where runs are folders of files")
    check_seal(folder, key)


def put_in_place(folder: Path, place: Path) -> None:
    """Make a stored run the content of its place, and note that it was used.

    Both are then the same files on the disk, where one file system holds both.
    """
    with publish_folder(place) as partial:
        shutil.copytree(folder, partial, copy_function=link, dirs_exist_ok=True)
    with contextlib.suppress(OSError):  # a store that one may only read
        os.utime(folder)


def link(source: "str | os.PathLike[str]", target: "str | os.PathLike[str]") -> None:
    """Make a second name for a file, or a copy where that cannot be; of a link, for what it leads to."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copyfile(source, target)
