"""Remove damaged files from DVC's cache, and their copies among the results (`ncpipe repair`)."""

import os
from pathlib import Path
from typing import Annotated

import typer
import yaml

from ncpipe.config.study_files import PIPELINE
from ncpipe.runs.dvc import LOCK, dvc_folder
from ncpipe.runs.dvc_repair import DATA, dvc_locked, remove_damaged, repair_cache, repair_run_cache
from ncpipe.system.console import say
from ncpipe.system.errors import InputError


def repair(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Damaged results below data/ to remove, so that `dvc repro` computes them again."
        ),
    ] = None,
) -> None:
    """Remove damaged files from DVC's cache, with their copies in data/.

    Results to remove are removed with their damaged copies in DVC's cache. Raises InputError while another
    DVC is running, for a path that is not a result, and for a damaged dvc.lock, which git has whole.
    """
    if "DVC_STAGE" in os.environ or (dvc := dvc_folder()) is None or not PIPELINE.is_file():
        raise InputError(f"repair: run it in the folder of {PIPELINE}, and not from a stage")
    paths = paths or []
    for path in paths:
        _check_result(path)
    _check_lock()
    with dvc_locked(dvc):
        lines = [*repair_run_cache(dvc), *repair_cache()]  # first: it finds the copies of what is damaged
        lines += [f"{path}: removed{remove_damaged(path)}" for path in paths if os.path.lexists(path)]
    for line in lines:
        say(f"repair: {line}")
    say("repair: done; run dvc repro (or ncpipe sweep)" if lines else "repair: found no damage in the cache")


def _check_lock() -> None:
    """Raise InputError for a dvc.lock that a kill has cut, or a merge has left with conflicts."""
    try:
        if not LOCK.is_file() or isinstance(yaml.load(LOCK.read_bytes(), yaml.CSafeLoader), dict):
            return
    except yaml.YAMLError:
        pass
    raise InputError(
        f"{LOCK}: damaged; run git checkout HEAD {LOCK}, or rm {LOCK} if no whole one is committed; then run "
        "dvc repro"
    )


def _check_result(path: Path) -> None:
    """Raise InputError unless a path is a result below data/ that a stage can compute again."""
    # A link into DVC's cache counts as what it stands for.
    place = path.resolve() if path.name == ".." else path.parent.resolve() / path.name
    parts = place.relative_to(DATA.resolve()).parts if place.is_relative_to(DATA.resolve()) else ()
    if not parts or parts[0].startswith(".") or (path.is_dir() and len(parts) < 2) or not path.exists():
        raise InputError(f"{path}: not a file or folder of a stage's results; give one below data/STAGE/")
