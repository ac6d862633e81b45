"""Read each file of code once, so that what runs is what is digested, however late it is imported.

Modules of the package and of a study are imported from the bytes of this process's reading
(`ncpipe.config.study_reads`), so an edit while a command runs concerns the next command alone. A file that
the study's code opens itself is read when that code likes. A reading keeps the inode, size and times of such
files, by which `check` finds one that was changed, even if it was put back.
"""

import contextlib
import hashlib
import linecache
import os
from collections.abc import Hashable, Mapping
from importlib.machinery import SourceFileLoader
from importlib.util import decode_source
from pathlib import Path
from typing import Any

from ncpipe.system.errors import InputError

PACKAGE = "ncpipe"
ROOT = Path(__file__).resolve().parents[2]  # the folder that has the package
Marks = dict[Path, list[tuple[int, ...]]]  # by file, folder and link


class Reading:
    """Has the files of code and the listed files as they were first read.

    digests: what `ncpipe.runs.code_digests` has computed of them. package: its files, by name.
    """

    def __init__(
        self, contents: Mapping[Path, bytes] | None = None, package: Mapping[str, Path] | None = None
    ) -> None:
        self._contents = dict(contents or {})
        self._marks: dict[Path, Marks] = {}
        self._listed: dict[Path, dict[str, str]] = {}
        self.digests: dict[Hashable, str] = {}
        self.package = dict(package or {})

    def content(self, path: Path) -> bytes:
        """Return the bytes of a file of code."""
        path = Path(os.path.abspath(path))  # of a link, whatever it leads to later
        if path not in self._contents:
            self._contents.setdefault(path, path.read_bytes())  # the first one, of two threads
        return self._contents[path]

    def listed(self, path: Path) -> dict[str, str]:
        """Return the SHA-256 of a listed file, or of each file in a listed folder, by path; mark them."""
        self.mark(path)
        if (absolute := path.absolute()) not in self._listed:
            self._listed[absolute] = {file.as_posix(): self._digest(file) for file in files_in(path)}
        return self._listed[absolute]

    def _digest(self, path: Path) -> str:
        content = self._contents.get(Path(os.path.abspath(path)))
        if content is not None:  # a module that was imported
            return hashlib.sha256(content).hexdigest()
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def mark(self, path: Path) -> None:
        """Remember the state of a file, or of a folder with all that it has, for `check`."""
        if (absolute := path.absolute()) not in self._marks:
            self._marks[absolute] = _marks(absolute)

    def check(self) -> None:
        """Raise InputError if a listed file may have changed since it was marked, also if it was put back."""
        for path, before in self._marks.items():
            now = _marks(path)
            for file in sorted({*before, *now}):
                if before.get(file) != now.get(file):
                    raise InputError(
                        f"{os.path.relpath(file)}: was changed, or only touched, while the command ran, so "
                        "what may have read it is discarded; start it again"
                    )

    def without_edited(self, folder: Path) -> "Reading":
        """Return a reading without the files of a study's folder if one of them was edited; else this one."""
        of_study = {
            path: content
            for path, content in self._contents.items()
            if path.is_relative_to(folder) and path.relative_to(folder).parts[0] != PACKAGE
        }
        if all(path.is_file() and path.read_bytes() == content for path, content in of_study.items()):
            return self
        others = {path: content for path, content in self._contents.items() if path not in of_study}
        return Reading(others, self.package)


def files_in(path: Path) -> list[Path]:
    """Return a file itself, or the files of a folder without those that Python keeps for itself."""
    within = path.rglob("*") if path.is_dir() else [path]
    return sorted(file for file in within if file.is_file() and "__pycache__" not in file.parts)


def _marks(path: Path) -> Marks:
    """Return device, inode, size and times of an absolute path, all below it, and the links on the way there.

    Every write, rename and new link sets the time of the last change (ctime), and nothing sets it back.
    """
    links = [parent for parent in path.parents if parent.is_symlink()]
    within = path.rglob("*") if path.is_dir() else ()
    marks: Marks = {}
    for file in (*links, path, *(file for file in within if "__pycache__" not in file.parts)):
        with contextlib.suppress(OSError):  # gone, which is a change too
            states = [file.lstat()] if file in links else [file.lstat(), file.stat()]
            marks[file] = [(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in states]
    return marks


_at_start = Reading()


def at_start() -> Reading:
    """Return the reading of this process: of the code that it runs."""
    return _at_start


def read_again(folder: Path) -> None:
    """Begin another reading if code in a study's folder was edited; it keeps all that lies elsewhere."""
    global _at_start
    _at_start = _at_start.without_edited(folder)


class AsRead(SourceFileLoader):
    """Imports a module from the bytes of the reading.

    It takes no bytecode, whose key is a file's size and its time in seconds.
    """

    def get_data(self, path: str) -> bytes:
        content = at_start().content(Path(path))
        show_lines(path, content)
        return content

    def path_stats(self, path: str) -> Any:
        raise OSError(path)


def show_lines(path: str, content: bytes) -> None:
    """Have tracebacks, and what compiles a function's source, see a file as it was read."""
    lines = decode_source(content).splitlines(keepends=True)
    linecache.cache[path] = len(content), None, lines, path
