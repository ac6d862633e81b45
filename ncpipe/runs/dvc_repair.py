"""Repair files that DVC left incomplete when it was killed, and remove damaged files from its cache.

DVC writes dvc.lock and `.dvc/tmp/rwlock` in place. If it is killed in that moment, the next DVC stops at the
broken file. DVC does not verify the contents of its cache, so it restores a damaged file again and again.
This module changes only these files, damaged results and their damaged copies. It does not import DVC.
`ncpipe.commands.repair` calls it.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from ncpipe.runs.dvc import LOCK, cache_folder, dvc_folder
from ncpipe.system.artifacts import publish_file, remove
from ncpipe.system.errors import InputError

BROKEN_LOCK = "dvc.lock.broken"  # in .dvc/tmp: the file that was replaced
DATA = Path("data")
MD5 = re.compile(r"[0-9a-f]{32}(\.dir)?")
CONFLICT = b"<<<<<<<"
WAIT = 3.0  # seconds, as DVC waits for a lock


@contextlib.contextmanager
def dvc_locked(dvc: Path) -> Iterator[None]:
    """Hold DVC's lock during the block. Raises InputError if another DVC is running."""
    from filelock import FileLock, Timeout

    tmp = dvc / "tmp"
    tmp.mkdir(exist_ok=True)
    lock = FileLock(tmp / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"{tmp / 'lock'}: another DVC is running; wait until it has ended") from None
    try:
        yield
    finally:
        lock.release()


def repair_rwlock(dvc: Path) -> list[str]:
    """Remove DVC's table of readers and writers if it is broken or names only processes that have ended.

    DVC itself ignores processes that no longer exist. But it counts a zombie, and a later process with the
    same number, as running. Returns a line if the file is removed.
    """
    from filelock import FileLock, Timeout

    file = dvc / "tmp" / "rwlock"
    if _rwlock_state(file) in ("fine", "in use"):
        return []
    try:
        with FileLock(file.with_name("rwlock.lock"), timeout=WAIT):
            state = _rwlock_state(file)
            if state in ("fine", "in use"):
                return []
            file.unlink()
    except Timeout:
        return []
    reason = "broken" if state == "broken" else "of a DVC that has ended"
    return [f"{_relative(file)}: {reason}; removed"]


def rwlock_in_use(dvc: Path) -> bool:
    """Return whether DVC's table of readers and writers names a running process, as during a stage."""
    return _rwlock_state(dvc / "tmp" / "rwlock") == "in use"


def _rwlock_state(file: Path) -> str:
    """Return "fine" (also if missing), "in use", "broken" or "dead"."""
    try:
        table, written = json.loads(file.read_bytes()), file.stat().st_mtime
        entries = [entry for readers in table.get("read", {}).values() for entry in readers]
        entries += table.get("write", {}).values()
        numbers = {int(entry["pid"]) for entry in entries}
    except FileNotFoundError:
        return "fine"
    except ValueError:
        return "broken"
    except (KeyError, TypeError, AttributeError):  # written by another version of DVC
        return "fine"
    if not numbers:
        return "fine"
    return "in use" if any(_is_running(number, written) for number in numbers) else "dead"


def _is_running(number: int, written: float) -> bool:
    """Return whether the process that had this number at the time `written` is still running."""
    import psutil

    try:
        process = psutil.Process(number)
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= written + 1
    except psutil.NoSuchProcess:
        return False


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
                    lines.append(f"{_relative(entry)}: empty; removed")
            if not any(folder.iterdir()):
                folder.rmdir()
                lines.append(f"{_relative(folder)}: empty; removed")
    return lines


def repair_lock_file(dvc: Path) -> list[str]:
    """Replace a broken dvc.lock by the last committed one, or remove it. Returns a line if it was broken.

    Later results are in DVC's run cache, so nothing trains again. The broken file is kept in .dvc/tmp.
    """
    if not LOCK.exists() or not is_broken(LOCK.read_bytes()):
        return []
    if conflict := has_conflict():
        return [conflict]
    (dvc / "tmp").mkdir(exist_ok=True)
    shutil.copyfile(LOCK, dvc / "tmp" / BROKEN_LOCK)
    committed = _committed()
    if committed is None:
        LOCK.unlink()
        return [f"{LOCK}: broken; removed (its results are in DVC's run cache)"]
    with publish_file(LOCK) as partial:
        partial.write_bytes(committed)
    return [f"{LOCK}: broken; replaced by the committed one (later results are in DVC's run cache)"]


def has_conflict() -> str:
    """Return a line that names a merge conflict in dvc.lock, which only the user can resolve; '' without."""
    if LOCK.exists() and CONFLICT in (content := LOCK.read_bytes()) and is_broken(content):
        return f"{LOCK}: has a merge conflict; resolve it, see git status"
    return ""


def is_broken(content: bytes) -> bool:
    """Return whether a dvc.lock does not have DVC's format, as after DVC was killed while it wrote it."""
    import yaml

    try:
        tree = yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return not (tree["schema"] == "2.0" and all(map(_is_entry, tree.get("stages", {}).values())))
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError):
        return True


def _is_entry(entry: Any) -> bool:
    files = [*entry.get("deps", []), *entry.get("outs", [])]
    params = all(isinstance(values, dict) for values in entry.get("params", {}).values())
    return isinstance(entry["cmd"], str | list) and params and all(map(_is_file, files))


def _is_file(file: Any) -> bool:
    texts = [file["path"], *(file[key] for key in ("hash", "md5") if key in file)]
    counts = [file[key] for key in ("size", "nfiles") if key in file]
    kind = file.get("hash", "etag")  # DVC's own check accepts any word here, and DVC fails later
    hashed = kind == "etag" or (kind == "md5" and MD5.fullmatch(file["md5"]) is not None)
    return (
        hashed
        and all(isinstance(text, str) for text in texts)
        and all(type(count) is int for count in counts)
    )


def _committed() -> bytes | None:
    """Return the dvc.lock of git's HEAD; None if there is none, or a broken one."""
    import subprocess

    with contextlib.suppress(OSError):
        done = subprocess.run(["git", "show", f"HEAD:./{LOCK}"], capture_output=True, check=False)
        if done.returncode == 0 and not is_broken(done.stdout):
            return done.stdout
    return None


def damaged_objects(dvc: Path, sizes: Collection[int] | None = None) -> Iterator[Path]:
    """Yield the files of DVC's cache whose MD5 is not the one in their name.

    sizes: check only files of these sizes, and lists of folders, which are small.
    """
    for path in sorted((cache_folder(dvc) / "files" / "md5").glob("??/*")):
        name = path.parent.name + path.name
        checked = sizes is None or path.stat().st_size in sizes or name.endswith(".dir")
        if MD5.fullmatch(name) and checked and _md5(path) != name.removesuffix(".dir"):
            yield path


def remove_damaged(path: Path) -> str:
    """Remove a damaged file or folder, and the damaged copies of its files in DVC's cache.

    Otherwise DVC would restore them. Returns the end of a sentence about what was removed from the cache.
    """
    files = [path, *path.rglob("*")] if path.is_dir() else [path]
    sizes = {file.stat().st_size for file in files if file.is_file()}
    copies = [] if (dvc := dvc_folder()) is None else list(damaged_objects(dvc, sizes))
    for copy in copies:
        remove(copy)
    remove(path)
    names = ", ".join(map(_relative, copies))
    return f", with its damaged copy in DVC's cache ({names})" if copies else ""


def repair_cache(dvc: Path) -> list[str]:
    """Remove damaged files from DVC's cache, and their copies among the results; return a line for each."""
    lines = []
    for damaged in list(damaged_objects(dvc)):
        size, md5 = damaged.stat().st_size, _md5(damaged)
        copies = [
            path
            for path in sorted(DATA.rglob("*"))
            if path.is_file() and path.stat().st_size == size and _md5(path) == md5
        ]
        lines += [f"{path}: copy of a damaged file in DVC's cache; removed" for path in copies]
        lines.append(f"{_relative(damaged)}: damaged; removed")
        for path in (*copies, damaged):
            remove(path)
    return lines


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _relative(path: Path) -> str:
    """Return a path relative to the current folder."""
    return os.path.relpath(path)
