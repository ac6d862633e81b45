"""Mend what DVC leaves behind when it is stopped while it writes, and damage in its cache.

DVC writes dvc.lock and `.dvc/tmp/rwlock` in place, so a stop in that moment leaves a torn file at which the
next DVC ends. It trusts the contents of its cache by their names, so a flipped bit there is restored again
and again. This module touches these files, damaged results and their damaged copies, and nothing else. It
works on files and imports nothing of DVC.
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

TORN = "dvc.lock.torn"  # in .dvc/tmp: the file that was replaced
DATA = Path("data")
MD5 = re.compile(r"[0-9a-f]{32}(\.dir)?")
CONFLICT = b"<<<<<<<"
WAIT = 3.0  # seconds, as DVC waits for a lock


@contextlib.contextmanager
def dvc_held_off(dvc: Path) -> Iterator[None]:
    """Hold DVC's own lock while the block lasts. Raises InputError if another DVC is at work."""
    from filelock import FileLock, Timeout

    tmp = dvc / "tmp"
    tmp.mkdir(exist_ok=True)
    lock = FileLock(tmp / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"{tmp / 'lock'}: another DVC is at work; wait until it has ended") from None
    try:
        yield
    finally:
        lock.release()


def mend_rwlock(dvc: Path) -> list[str]:
    """Remove DVC's note of who reads and writes what, if it is torn or names only processes that have ended.

    DVC itself passes over a process that has left no trace. But it takes for alive one that nobody has waited
    for, and a later process of the same number. Returns a line if the note is removed.
    """
    from filelock import FileLock, Timeout

    file = dvc / "tmp" / "rwlock"
    if _rwlock_state(file) in ("fine", "in use"):
        return []
    try:
        with FileLock(file.with_name("rwlock.lock"), timeout=WAIT):  # nobody is writing it now
            state = _rwlock_state(file)
            if state in ("fine", "in use"):
                return []
            file.unlink()
    except Timeout:
        return []
    why = "torn" if state == "torn" else "of a DVC that has ended"
    return [f"{_shown(file)}: {why}; removed"]


def rwlock_in_use(dvc: Path) -> bool:
    """Return whether DVC's note names a process that is still running, as while a stage of its runs."""
    return _rwlock_state(dvc / "tmp" / "rwlock") == "in use"


def _rwlock_state(file: Path) -> str:
    """Return "fine" (or missing), "in use", "torn" or "dead"."""
    try:
        note, written = json.loads(file.read_bytes()), file.stat().st_mtime
        named = [entry for of in note.get("read", {}).values() for entry in of]
        named += note.get("write", {}).values()
        numbers = {int(entry["pid"]) for entry in named}
    except FileNotFoundError:
        return "fine"
    except ValueError:
        return "torn"
    except (KeyError, TypeError, AttributeError):  # of another version of DVC
        return "fine"
    if not numbers:
        return "fine"
    return "in use" if any(_runs(number, written) for number in numbers) else "dead"


def _runs(number: int, written: float) -> bool:
    """Return whether the process that had this number when something was written still runs."""
    import psutil

    try:
        process = psutil.Process(number)
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= written + 1
    except psutil.NoSuchProcess:
        return False


def mend_run_cache(dvc: Path) -> list[str]:
    """Remove empty folders and empty files of DVC's run cache, at which DVC stops. Returns a line for each.

    DVC removes an entry that it cannot read by itself, and leaves its folder empty.
    """
    lines = []
    for folder in sorted((cache_folder(dvc) / "runs").glob("??/*")):
        with contextlib.suppress(OSError):  # another DVC is at work there
            for entry in folder.iterdir():
                if entry.stat().st_size == 0:
                    entry.unlink()
                    lines.append(f"{_shown(entry)}: empty; removed")
            if not any(folder.iterdir()):
                folder.rmdir()
                lines.append(f"{_shown(folder)}: empty; removed")
    return lines


def mend_lock_file(dvc: Path) -> list[str]:
    """Replace a torn dvc.lock by the last committed one, or remove it where none is. Returns a line if so.

    What the committed file does not list was run here, so DVC's run cache has it: nothing trains again. The
    torn file is kept in .dvc/tmp.
    """
    if not LOCK.exists() or not is_torn(content := LOCK.read_bytes()):
        return []
    if CONFLICT in content:
        return [f"{LOCK}: has both sides of a merge, which only you can end; see git status"]
    (dvc / "tmp").mkdir(exist_ok=True)
    shutil.copyfile(LOCK, dvc / "tmp" / TORN)
    committed = _committed()
    if committed is None:
        LOCK.unlink()
        return [f"{LOCK}: torn; removed, DVC's run cache has what it listed"]
    with publish_file(LOCK) as partial:
        partial.write_bytes(committed)
    return [f"{LOCK}: torn; the committed one is back, DVC's run cache has what is newer"]


def is_torn(content: bytes) -> bool:
    """Return whether a dvc.lock is other than DVC writes one, as after a stop while it was written."""
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
    kind = file.get("hash", "etag")  # DVC's own check takes any word here, and fails at it later
    hashed = kind == "etag" or (kind == "md5" and MD5.fullmatch(file["md5"]) is not None)
    return (
        hashed and all(isinstance(each, str) for each in texts) and all(type(each) is int for each in counts)
    )


def _committed() -> bytes | None:
    """Return the dvc.lock of git's HEAD, if there is a whole one."""
    import subprocess

    with contextlib.suppress(OSError):
        done = subprocess.run(["git", "show", f"HEAD:./{LOCK}"], capture_output=True, check=False)
        if done.returncode == 0 and not is_torn(done.stdout):
            return done.stdout
    return None


def damaged_objects(dvc: Path, sizes: Collection[int] | None = None) -> Iterator[Path]:
    """Yield the files of DVC's cache whose contents are not those that their names say.

    sizes: look only at files of these sizes, and at lists of folders, which are small.
    """
    for path in sorted((cache_folder(dvc) / "files" / "md5").glob("??/*")):
        name = path.parent.name + path.name
        looked_at = sizes is None or path.stat().st_size in sizes or name.endswith(".dir")
        if MD5.fullmatch(name) and looked_at and _md5(path) != name.removesuffix(".dir"):
            yield path


def drop_damaged(path: Path) -> str:
    """Remove a damaged result, a file or a folder, and the damaged copies of its files in DVC's cache.

    DVC would restore them to its place again. Returns what was removed of the cache, as the end of a clause.
    """
    files = [path, *path.rglob("*")] if path.is_dir() else [path]
    sizes = {file.stat().st_size for file in files if file.is_file()}
    removed = [] if (dvc := dvc_folder()) is None else list(damaged_objects(dvc, sizes))
    for found in removed:
        remove(found)
    remove(path)
    names = ", ".join(map(_shown, removed))
    return f", and so is its damaged copy in DVC's cache ({names})" if removed else ""


def mend_cache(dvc: Path) -> list[str]:
    """Remove the damaged files of DVC's cache, and their copies among the results; a line for each."""
    lines = []
    for found in list(damaged_objects(dvc)):
        size, wrong = found.stat().st_size, _md5(found)
        copies = [
            path
            for path in sorted(DATA.rglob("*"))
            if path.is_file() and path.stat().st_size == size and _md5(path) == wrong
        ]
        lines += [f"{path}: a copy of what is damaged in DVC's cache; removed" for path in copies]
        lines.append(f"{_shown(found)}: damaged; removed")
        for path in (*copies, found):
            remove(path)
    return lines


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _shown(path: Path) -> str:
    """Return a path as it is seen from here."""
    return os.path.relpath(path)
