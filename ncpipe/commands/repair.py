"""Command repair: mend what a stopped DVC or a bad disk has left of DVC's own files. No stage."""

import os
from collections.abc import Sequence
from pathlib import Path

from ncpipe.runs.dvc import LOCK, dvc_folder
from ncpipe.runs.dvc_repair import (
    DATA,
    drop_damaged,
    dvc_held_off,
    is_torn,
    mend_cache,
    mend_lock_file,
    mend_run_cache,
    mend_rwlock,
    rwlock_in_use,
)
from ncpipe.system.console import say
from ncpipe.system.errors import InputError


def repair(paths: Sequence[Path] = ()) -> None:
    """Remove or restore what is torn of DVC's files, and damaged contents of its cache; print what was done.

    paths: results to remove too, with what DVC's cache has of them that is damaged. Raises InputError while
    another DVC is at work, and for a path that is no result.
    """
    if "DVC_STAGE" in os.environ or (dvc := dvc_folder()) is None:
        raise InputError("repair: run it yourself, in a project of DVC")
    for path in paths:
        _check_result(path)
    with dvc_held_off(dvc):
        if rwlock_in_use(dvc):
            raise InputError("repair: a DVC runs a stage; wait until it has ended, or end it")
        lines = [*mend_rwlock(dvc), *mend_run_cache(dvc), *mend_lock_file(dvc)]
        lines += [f"{path}: removed{drop_damaged(path)}" for path in paths]
        lines += mend_cache(dvc)
    for line in lines:
        say(f"repair: {line}")
    say("repair: run dvc repro (or ncpipe sweep)" if lines else "repair: nothing is torn or damaged")


def mend_quickly() -> None:
    """Do the part of `repair` that takes no time, if no other DVC is at work; print what was done."""
    dvc = dvc_folder()
    if dvc is None:
        return
    try:
        with dvc_held_off(dvc):
            for line in (*mend_rwlock(dvc), *mend_run_cache(dvc)):
                say(f"repair: {line}")
    except InputError:  # DVC itself says so, or waits
        return


def mend_torn_lock() -> bool:
    """Return whether dvc.lock was torn and is mended now; print what was done."""
    lines = [] if (dvc := dvc_folder()) is None else mend_lock_file(dvc)
    for line in lines:
        say(f"repair: {line}")
    return bool(lines) and not (LOCK.exists() and is_torn(LOCK.read_bytes()))  # a merge is not mended


def _check_result(path: Path) -> None:
    """Raise InputError unless a path is a result below data/ that a stage makes again."""
    inside = path.resolve().is_relative_to(DATA.resolve())
    parts = path.resolve().relative_to(DATA.resolve()).parts if inside else ()
    if not parts or parts[0].startswith(".") or (path.is_dir() and len(parts) < 2) or not path.exists():
        raise InputError(f"{path}: not a file or folder of a stage's results; name one below data/STAGE/")
