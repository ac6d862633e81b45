"""The store of runs that were trained before DVC asked for them: data/.ahead/KEY is a whole run folder.

Deleting the store at any moment costs time and nothing else.
"""

import os
import shutil
from pathlib import Path

from ncpipe.artifacts import AHEAD


def claim(key: str, target: Path) -> bool:
    """Move a waiting run to its place; False if it is not there."""
    if not (AHEAD / key).is_dir():
        return False
    if target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(AHEAD / key, target)
    return True


def prune(keys: set[str]) -> None:
    """Drop every waiting run but those of the given keys: parameters, data or code have moved on."""
    for folder in waiting():
        if folder.name not in keys:
            shutil.rmtree(folder, ignore_errors=True)


def waiting() -> list[Path]:
    """Folders of the runs that wait."""
    return sorted(path for path in AHEAD.glob("*") if path.is_dir() and not path.name.startswith("."))


def size_of_store() -> str:
    """Number and size of the waiting runs, for people: `3 runs (1.2 MB)`."""
    folders = waiting()
    size = sum(file.stat().st_size for folder in folders for file in folder.rglob("*") if file.is_file())
    return f"{len(folders)} runs ({size / 1e6:.1f} MB)"
