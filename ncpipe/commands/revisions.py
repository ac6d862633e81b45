"""Read files of this DVC project at git revisions and DVC experiments, without a checkout."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncpipe.system.errors import InputError

WORKSPACE = "workspace"  # DVC's name for the files in the working directory


def read_revision(revision: str, paths: Sequence[Path]) -> list[str]:
    """Return the text of each path in a revision, from git or from DVC's cache (or remote).

    revision: a git revision (branch, tag, HEAD~1, hash), the name of a DVC experiment, or `workspace`. Raises
    InputError for an unknown revision or a missing file.
    """
    if revision == WORKSPACE:
        return [_read_from_workspace(path) for path in paths]
    from dvc.exceptions import DvcException, NotDvcRepoError
    from dvc.repo import Repo
    from dvc.scm import RevError
    from dvc_data.index import DataIndexError

    logging.disable()  # DVC also logs what it raises
    try:
        with Repo() as repo, repo.switch(revision):
            return [_read_from_revision(repo, revision, path) for path in paths]
    except RevError:
        raise InputError(
            f"{revision}: neither a git revision nor a DVC experiment (see dvc exp list --all-commits)"
        ) from None
    except NotDvcRepoError:
        raise InputError(f"{revision}: has no DVC project in {Path.cwd()}; commit it first") from None
    except DataIndexError:  # of the folder that holds a path
        raise _not_in_cache(revision, *paths) from None
    except DvcException as error:
        raise InputError(f"{revision}: {' '.join(str(error).split())}") from None
    finally:
        logging.disable(logging.NOTSET)


def _read_from_workspace(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"{WORKSPACE}: {path} not found; run dvc repro")
    return path.read_text(encoding="utf-8")


def _read_from_revision(repo: Any, revision: str, path: Path) -> str:
    try:
        return repo.dvcfs.read_text(f"/{path.as_posix()}", encoding="utf-8")
    except FileNotFoundError:
        raise _not_in_cache(revision, path) from None


def _not_in_cache(revision: str, *paths: Path) -> InputError:
    """Return an error about results that a clone or a worktree does not have."""
    return InputError(
        f"{revision}: {', '.join(map(str, paths))}: not in the revision or not in DVC's cache; run dvc repro "
        "there and commit dvc.lock, or get the results: dvc pull, or another clone's cache by dvc cache dir"
    )
