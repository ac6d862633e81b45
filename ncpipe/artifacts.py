"""Results on disk: written beside their place and renamed, so that a file that exists is a whole file."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ncpipe.errors import InputError

GRID = Path("data/grid")
PREPARED = Path("data/prepared")
RUNS = Path("data/runs")
FEATURES = Path("data/features")
METRICS = Path("data/metrics")
RESULTS = Path("data/results")
FIGURES = Path("data/figures")
CONSTRUCTED = Path("data/constructed")  # of the study in stages/theory, like the two below
COUNTEREXAMPLE = Path("data/counterexample.csv")
THEORY = Path("data/theory")
RAW = Path("data/raw")
LOGS = Path("data/logs")
BATCH_LOG = "batches.csv"  # there: what each batch took, and whether it came to its end
FINISHED = "finished"
AHEAD = Path("data/.ahead")  # runs trained before DVC asked for them


@contextlib.contextmanager
def publish_folder(target: Path) -> Iterator[Path]:
    """An empty folder to write into, that becomes `target` when the block ends without an error.

    The half-written folder lies in `data/.partial` (in `.partial` beside `target`, if no parent is called
    data), outside everything that a stage reads. It takes the place of an earlier one of the same target,
    so an interrupted run leaves no more than one behind.
    """
    base = next((parent for parent in target.parents if parent.name == "data"), target.parent)
    partial = base / ".partial" / "-".join(target.relative_to(base).parts)
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if target.exists():
        shutil.rmtree(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(partial, target)


@contextlib.contextmanager
def publish_file(target: Path) -> Iterator[Path]:
    """A path to write to, that becomes `target` when the block ends without an error."""
    partial = target.with_name(f".{target.name}.partial")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: object) -> None:
    """Strict JSON (no NaN: JSON has none), sorted keys, so that equal values give equal bytes."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"{path}: not found; run the stage that writes it (dvc repro)")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: damaged ({error}); delete it and run dvc repro") from None


def sha256_of(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
