"""Find and remove damaged files of DVC's cache, and their copies among the results.

DVC does not verify the contents of its cache, so it restores a damaged file again and again. It is not
imported here. `ncpipe.commands.repair` calls this for the whole cache.
"""

import contextlib
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from ncpipe.runs.dvc import cache_folder, cached_files
from ncpipe.system.artifacts import md5_of, remove
from ncpipe.system.errors import InputError

DATA = Path("data")
MD5 = re.compile(r"[0-9a-f]{32}(\.dir)?")


@contextlib.contextmanager
def dvc_locked(dvc: Path) -> Iterator[None]:
    """Hold DVC's lock during the block. Raises InputError if another DVC is running."""
    from filelock import FileLock, Timeout

    tmp = dvc / "tmp"
    tmp.mkdir(exist_ok=True)
    try:
        held = FileLock(tmp / "lock", timeout=0).acquire()
    except Timeout:
        raise InputError(f"{tmp / 'lock'}: another DVC is running; wait until it has ended") from None
    with held:  # releases it
        yield


def repair_run_cache(dvc: Path) -> list[str]:
    """Remove empty folders and files of DVC's run cache, at which DVC stops. Returns a line for each.

    DVC itself removes an entry that it cannot read, but leaves its folder empty.
    """
    lines = []
    for folder in sorted((cache_folder(dvc) / "runs").glob("??/*")):
        with contextlib.suppress(OSError):  # another DVC is writing there
            for entry in folder.iterdir():
                if entry.stat().st_size == 0:
                    entry.unlink()
                    lines.append(f"{os.path.relpath(entry)}: empty; removed")
            if not any(folder.iterdir()):
                folder.rmdir()
                lines.append(f"{os.path.relpath(folder)}: empty; removed")
    return lines


def damaged_objects(sizes: Collection[int] | None = None) -> Iterator[Path]:
    """Yield the files of DVC's cache whose MD5 is not the one in their name.

    sizes: check only files of these sizes, and lists of folders, which are small.
    """
    cache = cached_files()
    for path in sorted(cache.glob("??/*")) if cache else ():
        name = path.parent.name + path.name
        checked = sizes is None or path.stat().st_size in sizes or name.endswith(".dir")
        if MD5.fullmatch(name) and checked and md5_of(path) != name.removesuffix(".dir"):
            yield path


def remove_damaged(path: Path) -> str:
    """Remove a damaged file or folder, and the damaged copies of its files in DVC's cache.

    Otherwise DVC would restore them. Returns the end of a sentence about what was removed from the cache.
    """
    files = [path, *path.rglob("*")] if path.is_dir() else [path]
    sizes = {file.stat().st_size for file in files if file.is_file()}
    copies = list(damaged_objects(sizes))
    for copy in copies:
        remove(copy)
    remove(path)
    names = ", ".join(map(os.path.relpath, copies))
    return f", with its damaged copy in DVC's cache ({names})" if copies else ""


def repair_cache() -> list[str]:
    """Remove damaged files from DVC's cache, and their copies among the results; return a line for each."""
    lines = []
    for damaged in list(damaged_objects()):
        size, md5 = damaged.stat().st_size, md5_of(damaged)
        copies = [
            path
            for path in sorted(DATA.rglob("*"))
            if path.is_file() and path.stat().st_size == size and md5_of(path) == md5
        ]
        lines += [f"{path}: copy of a damaged file in DVC's cache; removed" for path in copies]
        lines.append(f"{os.path.relpath(damaged)}: damaged; removed")
        for path in (*copies, damaged):
            remove(path)
    return lines
