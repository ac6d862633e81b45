"""Command clean: list and remove stored runs by when they were used last. No stage."""

import re
import time
from pathlib import Path

from ncpipe.runs.store import CHECKPOINT, link_runs_to_dvc_cache
from ncpipe.runs.store_layout import store_folder
from ncpipe.system.artifacts import remove
from ncpipe.system.console import say
from ncpipe.system.errors import InputError, shown

HOUR = 3600.0  # seconds, in which what is half written may be somebody's
RUN = re.compile(r"[0-9a-f]{64}")
UNITS = {"h": HOUR, "d": 24 * HOUR, "w": 7 * 24 * HOUR}


def clean(older_than: str | None, dry_run: bool) -> None:
    """List what the store has, the longest unused first; remove what was not used for some time.

    older_than: a number and h, d or w; without it, and with dry_run, nothing is removed. A run that is
    removed and asked for again is taken up from data/runs where it lies there, and else trains again.
    """
    seconds = 0.0 if older_than is None else _seconds(older_than)
    removes = older_than is not None and not dry_run
    store, now, rows = store_folder(), time.time(), []
    link_runs_to_dvc_cache()
    for path in store.glob("*"):
        age, kind = now - path.stat().st_mtime, _kind(path)
        if kind and age >= (max(seconds, HOUR) if kind == "left behind" else seconds):
            rows.append((age, path.name, kind, _bytes_of_its_own(path)))
    for age, name, kind, own in sorted(rows, reverse=True):
        print(f"{name[:16]:<16}  {kind:<11}  {age / UNITS['d']:8.1f} days  {own / 1e6:8.2f} MB")
        if removes:
            remove(store / name)
    what = "removed," if removes else "found, nothing removed,"
    say(f"clean: {store}: {len(rows)} {what} {sum(row[3] for row in rows) / 1e6:.2f} MB of their own")


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([hdw])", text)
    if found is None:
        raise InputError(f"--older-than {shown(text)}: write a number and h, d or w, as 30d")
    return float(found[1]) * UNITS[found[2]]


def _kind(path: Path) -> str:
    if RUN.fullmatch(path.name):
        return "run"
    if path.name.startswith("."):
        return "left behind"
    return "checkpoint" if path.name.endswith(CHECKPOINT) else ""


def _bytes_of_its_own(path: Path) -> int:
    """Sum the bytes of files that have no other link, in a result or in DVC's cache."""
    files = [file.stat() for file in (path, *path.rglob("*")) if file.is_file()]
    return sum(own.st_size for own in files if own.st_nlink == 1)
