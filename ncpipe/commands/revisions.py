"""Files of this DVC project as git revisions and DVC's experiments have them; nothing is checked out."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncpipe.system.errors import InputError

WORKSPACE = "workspace"  # what DVC, too, calls the files as they lie there


def read_revision(revision: str, paths: Sequence[Path]) -> list[str]:
    """Return the text of each path in a revision or the workspace, from git or from DVC's cache (or remote).

    revision: what git resolves (a branch, a tag, HEAD~1, a hash) or the name of an experiment. Raises
    InputError, which names it, for one that neither knows, and for a file that it has not.
    """
    if revision == WORKSPACE:
        return [_read_here(path) for path in paths]
    from dvc.exceptions import DvcException, NotDvcRepoError
    from dvc.logger import set_loggers_level
    from dvc.repo import Repo
    from dvc.scm import RevError

    try:
        with set_loggers_level(logging.CRITICAL), Repo() as repo, repo.switch(revision):
            return [_read_there(repo, revision, path) for path in paths]
    except RevError:
        raise InputError(
            f"{revision}: neither a git revision nor an experiment of DVC's (dvc exp list --all-commits "
            "lists those)"
        ) from None
    except NotDvcRepoError:
        raise InputError(f"{revision}: has no DVC project in {Path.cwd()}") from None
    except DvcException as error:
        raise InputError(f"{revision}: {' '.join(str(error).split())}") from None


def _read_here(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"{WORKSPACE}: {path} is not there; run dvc repro")
    return path.read_text(encoding="utf-8")


def _read_there(repo: Any, revision: str, path: Path) -> str:
    try:
        return repo.dvcfs.read_text(f"/{path.as_posix()}", encoding="utf-8")
    except FileNotFoundError:
        raise InputError(
            f"{revision}: {path} is not in it, or not in DVC's cache; run dvc repro there and commit "
            "dvc.lock, or bring it back by dvc fetch"
        ) from None
