"""What git tracks, read once.

Before DVC registers an output it asks whether git tracks it, and reads git's whole index for that each time:
a fifth of the time that the runs of a sweep take to be registered.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from dvc.utils import relpath
from scmrepo.git.backend import dulwich

QUESTION = "is_tracked"  # of scmrepo 3


@contextlib.contextmanager
def git_index_read_once() -> Iterator[None]:
    """As long as the index is the same file, it is read no more."""
    backend = getattr(dulwich, "DulwichBackend", None)
    ask = getattr(backend, QUESTION, None)
    if backend is None or ask is None:  # another version: then as it does
        yield
        return
    known: dict[str, tuple[Any, set[str]]] = {}

    def is_tracked(self: Any, path: str) -> bool:
        try:
            file = self.repo.index_path()
            state = _state(file)
            if known.get(file, (None,))[0] != state:
                known[file] = state, _names(self.repo.open_index())
        except OSError:  # there is none yet
            return bool(ask(self, path))
        return PurePosixPath(relpath(path, self.root_dir)).as_posix() in known[file][1]

    setattr(backend, QUESTION, is_tracked)
    try:
        yield
    finally:
        setattr(backend, QUESTION, ask)


def _state(file: str) -> tuple[int, int, int]:
    """Other numbers for another index: git writes one beside it and renames that."""
    found = os.stat(file)
    return found.st_ino, found.st_size, found.st_mtime_ns


def _names(index: Any) -> set[str]:
    """Of files, and of the folders that they are in."""
    files = [PurePosixPath(name.decode("utf-8", "surrogateescape")) for name in index]
    return {str(each) for file in files for each in (file, *file.parents)} - {"."}
