"""`dvc`, with dvc.lock written beside its place and renamed, so that a kill leaves the old or the new one.

DVC itself empties the file and writes it in place, for as long as that takes with many stages. And --quiet,
with which it would end without a word of why, leaves its errors. `commit-runs` is ours: `dvc commit --force
train`, of the stages alone whose names stand in the input; DVC takes a minute to read a few hundred targets.
"""

import logging
import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TextIO

import dvc.logger
from dvc.cli import main
from dvc.utils.serialize import _common, _yaml

from ncpipe.artifacts import publish_file
from ncpipe.scheduling.dvc_params import params_parsed_once

WRITER = "_dump_data"  # of DVC 3: all YAML files go through it

_in_place = getattr(_common, WRITER, None)


def dump_whole(
    path: "str | os.PathLike[str]", data: Any, dumper: Callable[..., Any], fs: Any = None, **options: Any
) -> None:
    """In place of DVC's own: the same text, and a rename."""
    if _in_place is not None and getattr(fs, "protocol", "local") != "local":
        _in_place(path, data, dumper, fs=fs, **options)
        return
    file: TextIO
    with publish_file(Path(path)) as partial, partial.open("w", encoding="utf-8") as file:
        dumper(data, file, **options)


set_level = dvc.logger.set_loggers_level


def set_level_with_errors(level: int = logging.INFO) -> Any:
    """In place of DVC's own: no level hides errors."""
    return set_level(min(level, logging.ERROR))


def commit_runs(names: Collection[str]) -> int:
    """Take what lies in the places of these stages for their results, in one write of dvc.lock."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo() as repo:
            every = repo.stage.collect_granular
            repo.stage.collect_granular = lambda *rest, **options: [
                found
                for found in every(*rest, **options)
                if found.stage.addressing.rpartition(":")[2] in names
            ]
            repo.commit("train", force=True)
    except DvcException as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return 255
    return 0


if __name__ == "__main__":
    dvc.logger.set_loggers_level = set_level_with_errors
    for module in (_common, _yaml):
        if hasattr(module, WRITER):
            setattr(module, WRITER, dump_whole)
    with params_parsed_once():
        if sys.argv[1:] == ["commit-runs"]:
            sys.exit(commit_runs(sys.stdin.read().split("\n")))
        sys.exit(main(sys.argv[1:]))
