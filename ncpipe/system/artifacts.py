"""Results on disk: written beside their place and renamed, so that a file that exists is a whole file.

They reach the disk before they are renamed: a power loss leaves the old or the new, and no empty files.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ncpipe.system.errors import InputError, cut

CODE = Path("data/code")
CODE_FILES = CODE / "files.txt"  # digest of all bytes of code; no stage depends on it
GRID = Path("data/grid")
PREPARED = Path("data/prepared")
RUNS = Path("data/runs")
FEATURES = Path("data/features")
METRICS = Path("data/metrics")
RESULTS = Path("data/results")
FIGURES = Path("data/figures")
CLAIMS_FILE = Path("claims.yaml")
CLAIMS = Path("data/claims")
CLAIMS_TABLE = "claims.csv"  # there, and in a published folder
CLAIMS_PAGE = "claims.md"
CLAIMS_POINTS = "panels.csv"  # what panels.png shows
PROVENANCE = "provenance.json"  # in a published folder
REPORT = Path("data/report.html")
RAW = Path("data/raw")
LOGS = Path("data/logs")
JOBS = Path("data/.jobs")  # given to a scheduler and not taken back yet
MANIFEST = "manifest.json"  # in a run's folder: the digests of its other files
TRIED_LINK = re.compile(r"\.[\w-]{22}\.tmp")  # of DVC: tells what kinds of links there are, and goes at once
MOMENT = 0.2  # seconds
LEFT = 3600.0  # seconds; another process may still write what is younger


@contextlib.contextmanager
def publish_folder(target: Path, files_are_on_disk: bool = False) -> Iterator[Path]:
    """Yield an empty folder to write into, that becomes `target` when the block ends without an error.

    The half-written folder lies in `data/.partial` (in `.partial` beside `target`, if no parent is called
    data), outside everything that a stage reads, under a new name: another process may publish the same. What
    killed processes left of the same target is deleted an hour later. files_are_on_disk: whether the block
    flushes its files, so that only the folders' lists of names are to be flushed here.
    """
    parents = () if target.is_absolute() else target.parents
    base = next((parent for parent in parents if parent.name == "data"), target.parent)
    name = "-".join(target.relative_to(base).parts)
    partial = base / ".partial" / f"{name}.{secrets.token_hex(8)}"
    partial.mkdir(parents=True)
    for path in partial.parent.iterdir():
        with contextlib.suppress(OSError):  # another process was faster
            if path.name.rpartition(".")[0] == name and time.time() - path.stat().st_mtime > LEFT:
                remove(path)
    try:
        yield partial
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        _name_file(error, target)
        raise
    written = [path for path in partial.rglob("*") if not files_are_on_disk or path.is_dir()]
    reach_disk([*written, partial])
    move_folder(partial, target)
    if base.name != "data":
        with contextlib.suppress(OSError):  # it has other folders
            partial.parent.rmdir()


def move_folder(source: Path, target: Path) -> None:
    """Rename a whole folder to `target`, in place of whatever is there, also if other processes do so."""
    former = source.with_name(f"{source.name}-former")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        while True:
            remove(former)
            with contextlib.suppress(FileNotFoundError):
                os.rename(target, former)
            try:
                os.replace(source, target)
                break
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another process put its own there
                    raise
    finally:
        if os.path.lexists(target):
            remove(former)
        elif former.exists():  # stopped between the two
            os.rename(former, target)
    reach_disk([target.parent])


def remove(path: Path) -> None:
    """Delete a file, a folder or a link, if there is one.

    A process that ends may still write there, as Python does to __pycache__; then this is tried again.
    """
    tries = 30
    while os.path.lexists(path):
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            tries -= 1
            if not tries or error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise
            time.sleep(0.1)


def remove_tried_links() -> None:
    """Delete the files by which a DVC that was killed then tried out links, in folders that are no output.

    They would stay for good, and count to what later stages depend on. One that is younger than a moment may
    be of a DVC at work. A study names its folders of outputs itself, so all count but a sweep's outputs.
    """
    levels = [folder for below in ("*", "*/L*", "*/L*/x*") for folder in RUNS.glob(below)]
    kept = (RESULTS, FIGURES, CLAIMS, RAW)
    for folder in (*levels, *(folder for folder in RUNS.parent.glob("*") if folder not in kept)):
        for path in folder.glob(".*.tmp"):
            with contextlib.suppress(OSError):  # of another one at work: gone by now
                if TRIED_LINK.fullmatch(path.name) and time.time() - path.lstat().st_mtime > MOMENT:
                    path.unlink()


@contextlib.contextmanager
def publish_file(target: Path) -> Iterator[Path]:
    """Yield a path to write to, that becomes `target` when the block ends without an error."""
    partial = target.with_name(f".{target.name}.partial")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        reach_disk([partial])
        os.replace(partial, target)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        _name_file(error, target)
        raise
    reach_disk([target.parent])


def _name_file(error: BaseException, target: Path) -> None:
    """Say what was being written in an error of a full disk, which names no file."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
        error.filename = str(target)


def reach_disk(paths: Iterable[Path]) -> None:
    """Wait until files, and the lists of names of folders, are on the disk."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_manifest(folder: Path, key: str) -> None:
    """Write down the digest of every file of a folder and the key of what it is the result of."""
    write_json(folder / MANIFEST, _contents(folder, key))


def check_manifest(folder: Path, key: str) -> None:
    """Raise InputError, naming the file, unless a folder is to the bit what was sealed with this key."""
    sealed, actual = read_json(folder / MANIFEST), _contents(folder, key)
    if (folder / MANIFEST).read_bytes() == json_text(actual).encode():
        return
    before = sealed.get("files") if isinstance(sealed, dict) else None
    files: dict[str, Any] = before if isinstance(before, dict) else {}
    for name in sorted({*actual["files"], *files} if files else ()):
        if name not in actual["files"]:
            raise InputError(f"{folder / name}: missing")
        if files.get(name) != actual["files"][name]:
            raise InputError(f"{folder / name}: {'damaged' if name in files else 'not part of it'}")
    raise InputError(f"{folder / MANIFEST}: damaged, or of another result")


def _contents(folder: Path, key: str) -> dict[str, Any]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
    return {"key": key, "files": {path.relative_to(folder).as_posix(): sha256_of(path) for path in paths}}


def write_json(path: Path, value: object) -> None:
    """Write `json_text`."""
    path.write_text(json_text(value), encoding="utf-8")


def json_text(value: object) -> str:
    """Return strict JSON (no NaN: JSON has none), sorted keys, so that equal values give equal bytes."""
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"


def read_json(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"{path}: not found; run the stage that writes it (dvc repro)")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, too many digits or levels
        raise InputError(cut(f"{path}: damaged ({error}); run ncpipe repair {path}")) from None


def digest_of(value: object) -> str:
    """Return the SHA-256 of a value of JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def md5_of(path: Path) -> str:
    """Return the MD5 of a file: its name in DVC's cache, and what sources of data sets publish."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def sha256_of(path: Path) -> str:
    """Return the hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
