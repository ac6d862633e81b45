"""Find the store of runs, and put a run from there into data/runs. `ncpipe.runs.store` has everything else.

The store is below DVC's cache directory, so everything that shares a cache shares the store: studies, clones
and DVC experiments, including `--temp` and the queue. This module imports only the standard library, for
`ncpipe.runs.fast_path`.
"""

import contextlib
import functools
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from ncpipe.runs.dvc import cache_folder, cached_files, dvc_folder
from ncpipe.system.artifacts import check_manifest, md5_of, publish_folder, reach_disk
from ncpipe.system.errors import InputError

NAME = "ncpipe"  # below DVC's cache directory; `dvc gc` leaves it alone
ALONE = Path("data/.store")  # the store in a folder without DVC
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
            f"{folder}: has version {version[:20]!r}, but this ncpipe reads version {VERSION}; "
            "use the ncpipe that wrote it, or another cache (dvc cache dir)"
        )
    return folder


def begin_store() -> Path:
    """Return the store; create it if it does not exist. Raises OSError where that fails."""
    folder = store_folder()
    if not (folder / VERSION_FILE).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        # Other processes may create the store at the same time.
        partial = beside(folder / VERSION_FILE)
        try:
            partial.write_text(f"{VERSION}\n", encoding="utf-8")
            os.replace(partial, folder / VERSION_FILE)
        finally:
            partial.unlink(missing_ok=True)
    return folder


def beside(path: Path) -> Path:
    """Return a new temporary name beside a path of the store, which `ncpipe clean` knows."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")


def verify_stored(folder: Path, key: str) -> None:
    """Raise InputError if any bit of a stored folder differs from the run with this fingerprint."""
    if any(path.is_symlink() for path in (folder, *folder.rglob("*"))):
        raise InputError(f"{folder}: has a symbolic link; a run has only files")
    check_manifest(folder, key)


def materialise(folder: Path, target: Path) -> None:
    """Put a stored run into data/runs, by hard links if both are on one file system.

    The contents of stored files are on the disk already, so only the folder must be synced. The stored
    folder's modification time records the run's last use, for `ncpipe clean`.
    """
    with publish_folder(target, files_are_on_disk=True) as partial:
        shutil.copytree(folder, partial, copy_function=link, dirs_exist_ok=True)
    with contextlib.suppress(OSError):  # a read-only store
        os.utime(folder)


def link(source: "str | os.PathLike[str]", target: "str | os.PathLike[str]") -> None:
    """Create a hard link to a file, or a copy if that is not possible. Follows a symbolic link."""
    try:
        os.link(os.path.realpath(source) if os.path.islink(source) else source, target)
    except OSError:
        shutil.copyfile(source, target)
        reach_disk([Path(target)])


def link_cached(files: Mapping[str, str], folder: Path) -> bool:
    """Put files, given by their MD5, from DVC's cache into a folder; return False if the cache lacks one.

    A damaged file is removed, or DVC would put it in the place of the same file made again.
    """
    if (cache := cached_files()) is None:
        return False
    paths = {name: cache / md5[:2] / md5[2:] for name, md5 in files.items()}
    for name, path in paths.items():
        if not path.is_file():
            return False
        if md5_of(path) != files[name]:
            path.unlink(missing_ok=True)
            return False
    for name, path in paths.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        link(path, folder / name)
    return True
