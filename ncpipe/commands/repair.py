"""Repair DVC's files after DVC was killed or a disk was damaged (`ncpipe repair`).

`ncpipe.runs.dvc_repair` repairs each kind of file.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from ncpipe.runs.dvc import LOCK, dvc_folder
from ncpipe.runs.dvc_repair import (
    DATA,
    dvc_locked,
    has_conflict,
    is_broken,
    remove_damaged,
    repair_cache,
    repair_lock_file,
    repair_run_cache,
    repair_rwlock,
    rwlock_in_use,
)
from ncpipe.system.console import say
from ncpipe.system.errors import InputError


def repair(paths: Sequence[Path] = ()) -> None:
    """Remove or restore DVC's broken files, remove damaged files of its cache, and print what was done.

    paths: results to remove too, with their damaged copies in DVC's cache. Raises InputError while another
    DVC is running, for a path that is not a result, and for a merge conflict in dvc.lock.
    """
    if "DVC_STAGE" in os.environ or (dvc := dvc_folder()) is None:
        raise InputError("repair: run it in a DVC project, and not from a stage")
    for path in paths:
        _check_result(path)
    with dvc_locked(dvc):
        if rwlock_in_use(dvc):
            raise InputError("repair: DVC is running a stage; wait until it has ended, or stop it")
        conflict = has_conflict()
        lines = [*repair_rwlock(dvc), *repair_run_cache(dvc), *([] if conflict else repair_lock_file(dvc))]
        lines += [f"{path}: removed{remove_damaged(path)}" for path in paths]
        lines += repair_cache(dvc)
    for line in lines:
        say(f"repair: {line}")
    if conflict:
        raise InputError(f"repair: {conflict}, then run ncpipe repair again")
    say("repair: done; run dvc repro (or ncpipe sweep)" if lines else "repair: found no damage")


def repair_quickly() -> None:
    """Do the fast part of `repair`, unless another DVC is running; print what was done."""
    dvc = dvc_folder()
    if dvc is None:
        return
    try:
        with dvc_locked(dvc):
            for line in (*repair_rwlock(dvc), *repair_run_cache(dvc)):
                say(f"repair: {line}")
    except InputError:  # the next call of DVC waits, or reports it
        return


def repair_broken_lock() -> bool:
    """Repair dvc.lock if it is broken, and print that; return whether it was broken and is valid now."""
    lines = [] if (dvc := dvc_folder()) is None else repair_lock_file(dvc)
    for line in lines:
        say(f"repair: {line}")
    return bool(lines) and not (LOCK.exists() and is_broken(LOCK.read_bytes()))  # merge conflicts stay


def _check_result(path: Path) -> None:
    """Raise InputError unless a path is a result below data/ that a stage can compute again."""
    inside = path.resolve().is_relative_to(DATA.resolve())
    parts = path.resolve().relative_to(DATA.resolve()).parts if inside else ()
    if not parts or parts[0].startswith(".") or (path.is_dir() and len(parts) < 2) or not path.exists():
        raise InputError(f"{path}: not a file or folder of a stage's results; give one below data/STAGE/")
