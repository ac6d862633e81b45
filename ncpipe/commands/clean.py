"""List and remove runs of the store by the time of their last use (`ncpipe clean`)."""

import contextlib
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ncpipe.config.params import check_there
from ncpipe.runs.dvc import dvc_folder
from ncpipe.runs.fingerprint import RUN_RECORD
from ncpipe.runs.store import CHECKPOINT, link_to_dvc_cache
from ncpipe.runs.store_layout import store_folder
from ncpipe.system.artifacts import read_json, remove
from ncpipe.system.console import plural, say
from ncpipe.system.errors import InputError, shown

HOUR = 3600.0  # seconds; another process may still be writing a younger partial file
RUN = re.compile(r"[0-9a-f]{64}")
MEASURED = re.compile(rf"{RUN.pattern}\.(\w+)")  # what a stage has found of a run, as `extract`
UNITS = {"h": HOUR, "d": 24 * HOUR, "w": 7 * 24 * HOUR}


def clean(
    older_than: Annotated[
        str | None,
        typer.Option(
            metavar="AGE",
            help="Remove what was not used for this time: a number with h, d or w, for example 30d.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be removed; remove nothing.")
    ] = False,
    experiment: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only finished runs of experiments of this name, in all studies."),
    ] = None,
) -> None:
    """List stored runs and checkpoints by the time of their last use; with --older-than, remove old ones.

    A removed run that is needed again is imported from data/runs or trained again. What the stages `extract`
    and `measure` have found of a run goes with it.
    """
    seconds = 0.0 if older_than is None else _seconds(older_than)
    removes = older_than is not None and not dry_run
    store, now, rows, named = store_folder(), time.time(), [], False
    if dvc_folder() is None and not store.is_dir():
        check_there()
    link_to_dvc_cache()
    for path in store.glob("*"):
        kind, inputs = _kind(path), _inputs(path)
        if experiment is not None and inputs.get("experiment") != experiment:
            continue
        named = True
        with contextlib.suppress(FileNotFoundError):  # another command has just renamed or removed it
            age = max(0.0, now - _last_use(path))  # a file server's clock may be ahead
            if kind and age >= (max(seconds, HOUR) if kind == "partial" else seconds):
                rows.append((age, path.name, kind, _bytes_freed(path), _run_name(inputs)))
    if experiment is not None and not named:
        raise InputError(f"--experiment {shown(experiment)}: no such runs are stored; ncpipe clean lists all")
    width = max((len(row[4]) for row in rows), default=0)
    for age, name, kind, size, run in sorted(rows, reverse=True):
        days, megabytes = age / UNITS["d"], size / 1e6
        print(f"{run:<{width}}  {kind:<10}  {days:7.1f} days  {megabytes:9.2f} MB  {name[:16]}")
        if removes:
            remove(store / name)
    count, megabytes = plural(len(rows), "entry"), sum(row[3] for row in rows) / 1e6
    if removes:
        say(f"clean: {store}: removed {count}, which frees {megabytes:.2f} MB")
    else:
        say(f"clean: {store}: found {count}, whose removal would free {megabytes:.2f} MB; nothing removed")


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([hdw])", text)
    if match is None:
        raise InputError(f"--older-than {shown(text)}: write a number with h, d or w, for example 30d")
    return float(match[1]) * UNITS[match[2]]


def _inputs(path: Path) -> dict[str, Any]:
    """Return what identifies a finished run, from its record; empty for anything else."""
    try:
        return dict(read_json(path.parent / path.name.partition(".")[0] / RUN_RECORD)["inputs"])
    except (InputError, OSError, KeyError, TypeError, ValueError):
        return {}


def _run_name(inputs: Mapping[str, Any]) -> str:
    """Return experiment, depth and seed, as `rn1 L=2 seed=0`."""
    if not inputs:
        return "-"
    return f"{inputs.get('experiment')} L={inputs.get('depth')} seed={inputs.get('seed')}"


def _last_use(path: Path) -> float:
    run = path.parent / path.name.partition(".")[0]
    return (run if MEASURED.fullmatch(path.name) and run.is_dir() else path).stat().st_mtime


def _kind(path: Path) -> str:
    if RUN.fullmatch(path.name):
        return "run"
    if match := MEASURED.fullmatch(path.name):
        return match[1]
    if path.name.startswith("."):
        return "partial"
    return "checkpoint" if path.name.endswith(CHECKPOINT) else ""


def _bytes_freed(path: Path) -> int:
    """Return the bytes of files without another hard link, in a result or in DVC's cache."""
    files = [file.stat() for file in (path, *path.rglob("*")) if file.is_file()]
    return sum(status.st_size for status in files if status.st_nlink == 1)
