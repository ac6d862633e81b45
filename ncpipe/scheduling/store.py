"""The store of runs that were trained before DVC asked for them: data/.ahead/KEY is a whole run folder.

A run in training, or one that was stopped, has a checkpoint there, data/.ahead/KEY.checkpoint. Deleting
the store at any moment costs time and nothing else.
"""

import os
import shutil
from pathlib import Path

from ncpipe.artifacts import AHEAD
from ncpipe.stamps import Stamp

CHECKPOINT = ".checkpoint"


def waits(key: str) -> bool:
    """Whether a finished run is in the store."""
    return (AHEAD / key).is_dir()


def claim(key: str, target: Path) -> bool:
    """Move a waiting run to its place; False if it is not there."""
    if not waits(key):
        return False
    if target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(AHEAD / key, target)
    return True


def checkpoint_of(stamp: Stamp) -> Path:
    """Where a run keeps its state while it trains."""
    return AHEAD / f"{stamp.key()}{CHECKPOINT}"


def prune(keys: set[str]) -> None:
    """Drop all waiting runs and checkpoints but those of the given keys: something has moved on."""
    for folder in waiting():
        if folder.name not in keys:
            shutil.rmtree(folder, ignore_errors=True)
    for file in AHEAD.glob(f"*{CHECKPOINT}"):
        if file.name.removesuffix(CHECKPOINT) not in keys:
            file.unlink(missing_ok=True)


def waiting() -> list[Path]:
    """Folders of the runs that wait."""
    return sorted(path for path in AHEAD.glob("*") if path.is_dir() and not path.name.startswith("."))


def size_of_store() -> str:
    """Number and size of the waiting runs, for people: `3 runs (1.2 MB)`."""
    folders = waiting()
    size = sum(file.stat().st_size for folder in folders for file in folder.rglob("*") if file.is_file())
    return f"{len(folders)} runs ({size / 1e6:.1f} MB)"
