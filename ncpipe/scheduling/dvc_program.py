"""`dvc`, with dvc.lock written beside its place and renamed, so that a kill leaves the old or the new one.

DVC itself empties the file and writes it in place, for as long as that takes with many stages. --quiet, with
which it would end without a word of why, leaves its errors. And `repro` of some stages takes them in the
order in which it takes all; DVC leaves that to a set, and with it the order of dvc.lock. `commit-runs` is
ours: `dvc commit --force train`, of the stages alone whose names stand in the input; DVC takes a minute to
read a few hundred targets.
"""

import contextlib
import functools
import itertools
import json
import logging
import os
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, TextIO

import dvc.logger
from dvc.cli import main
from dvc.repo import reproduce
from dvc.stage import cache as run_cache
from dvc.utils.serialize import _common, _yaml

from ncpipe.artifacts import publish_file
from ncpipe.scheduling.dvc_git import git_index_read_once
from ncpipe.scheduling.dvc_lock import lock_written_by_entries
from ncpipe.scheduling.dvc_params import params_parsed_once

WRITER = "_dump_data"  # of DVC 3: all YAML files go through it
PLANNER = "plan_repro"  # of DVC 3: the stages that `repro` takes, one after the other

_in_place = getattr(_common, WRITER, None)
load: Callable[..., Any] = run_cache.StageCache._load
_plan = getattr(reproduce, PLANNER, None)


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


def dump_in_order(
    path: "str | os.PathLike[str]",
    data: Any,
    dumper: Callable[..., Any],
    fs: Any = None,
    *,
    order: Sequence[str],
    earlier: Collection[str],
    **options: Any,
) -> None:
    """`dump_whole`, of dvc.lock with its last entries in this order, as far as they are of these stages.

    earlier: stages that stay where they are.
    """
    if Path(path).name == "dvc.lock":
        movable = set(order) - set(earlier)
        last = set(itertools.takewhile(movable.__contains__, reversed(data["stages"])))
        for name in order:
            if name in last:
                data["stages"].move_to_end(name)
    dump_whole(path, data, dumper, fs, **options)


def plan_in_order(graph: Any, *rest: Any, **options: Any) -> list[Any]:
    """In place of DVC's own: the same stages. What is in order in the whole graph is so in a part of it."""
    import networkx

    assert _plan is not None
    order = {stage: place for place, stage in enumerate(networkx.dfs_postorder_nodes(graph))}
    return sorted(_plan(graph, *rest, **options), key=order.__getitem__)


def write_by(dump: Callable[..., None]) -> None:
    """Have DVC write its YAML files by this."""
    for module in (_common, _yaml):
        if hasattr(module, WRITER):
            setattr(module, WRITER, dump)


set_level = dvc.logger.set_loggers_level


def set_level_with_errors(level: int = logging.INFO) -> Any:
    """In place of DVC's own: no level hides errors."""
    return set_level(min(level, logging.ERROR))


def load_what_is_there(cache: Any, stage: Any) -> Any:
    """In place of DVC's own, which fails at the empty folder that a kill or a full disk leaves of an entry of
    its run cache: removed, that is no entry, and DVC makes it anew."""
    if key := run_cache._get_stage_hash(stage):
        with contextlib.suppress(OSError):  # not there, or not empty
            os.rmdir(cache._get_cache_dir(key))
    return load(cache, stage)


def commit_runs(names: Collection[str] | None, earlier: Collection[str]) -> int:
    """Take what lies in the places of these stages for their results, in one write of dvc.lock.

    None names all of `train`. earlier: those that stay where they are in dvc.lock; the others are put in the
    order of dvc.yaml.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo() as repo:
            every = repo.stage.collect_granular("train")
            stages = {found.stage.addressing.rpartition(":")[2]: found for found in every}
            write_by(functools.partial(dump_in_order, order=list(stages), earlier=earlier))
            repo.stage.collect_granular = lambda *rest, **options: [
                found for name, found in stages.items() if names is None or name in names
            ]
            repo.commit("train", force=True)
    except DvcException as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return 255
    return 0


if __name__ == "__main__":
    dvc.logger.set_loggers_level = set_level_with_errors
    run_cache.StageCache._load = load_what_is_there
    write_by(dump_whole)
    if _plan is not None:
        setattr(reproduce, PLANNER, plan_in_order)
    with params_parsed_once(), lock_written_by_entries(), git_index_read_once():
        if sys.argv[1:] == ["commit-runs"]:
            told = json.load(sys.stdin)
            sys.exit(commit_runs(told["stages"], told["earlier"]))
        sys.exit(main(sys.argv[1:]))
