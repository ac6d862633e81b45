"""Compare trees of params.yaml with each other, and with what dvc.lock says that results were made with."""

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ncpipe.config.yaml_file import parse_yaml
from ncpipe.runs.dvc import LOCK
from ncpipe.system.errors import InputError

ABSENT = "-"
SHOWN = 3  # keys in a line
MADE = ("aggregate", "claims")  # the stages whose tables are published
MADE_BY = ("code", "aggregate")  # the stages that have the parameters of runs, and of what is made of them

Tree = dict[str, Any]


def different_parameters(trees: Mapping[str, Tree]) -> dict[str, list[str]]:
    """Return each dotted key whose values differ, with its value in every tree as YAML writes it.

    Leaves out experiments that no tree sweeps, because they do not affect the results.
    """
    swept = (_leaves(_swept_tree(tree)) for tree in trees.values())
    flat = [{key: json.dumps(value, default=str).strip('"') for key, value in leaves} for leaves in swept]
    keys = dict.fromkeys(key for leaves in flat for key in leaves)
    rows = {key: [leaves.get(key, ABSENT) for leaves in flat] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def changed_since(params: Tree, lock: str) -> str:
    """Name the first dotted keys of a params.yaml with which DVC did not last run `aggregate`.

    Or `code`, which runs before, of keys that a dvc.yaml does not list for `aggregate`. lock: the text of
    dvc.lock. Empty without one, and for a damaged one, which DVC reports.
    """
    recorded: Tree = {}
    for name in MADE_BY:
        recorded |= (_stage(lock, name).get("params") or {}).get("params.yaml") or {}
    now = dict(_leaves(_swept_tree({key: _at(params, key) for key in recorded})))
    then = dict(_leaves(_swept_tree(recorded)))
    changed = [key for key in now | then if now.get(key, ABSENT) != then.get(key, ABSENT)]
    return " and ".join([*changed[:SHOWN], *(["more"] if len(changed) > SHOWN else [])])


def rules_of(lock: str) -> str:
    """Return the digest of the code that chose and fitted the runs of a dvc.lock; empty without one."""
    deps = {dep.get("path"): dep.get("md5", "") for dep in _stage(lock, "aggregate").get("deps") or []}
    return str(deps.get("data/code/sweep/aggregate.txt", ""))


def stale(lock: str, stages: Sequence[str] = MADE) -> str:
    """Say which of these stages is stale here, as after git checkout without dvc checkout, and by which path.

    lock: the text of dvc.lock. Parameters are left to `changed_since`, and what is absent, here or in the
    cache, makes no stage stale. Empty without a project of DVC.
    """
    present = [name for name in stages if _stage(lock, name)]
    if not present:
        return ""
    from dvc.exceptions import DvcException, NotDvcRepoError
    from dvc.repo import Repo

    logging.disable()  # DVC also logs what it raises
    try:
        with Repo() as repo:
            found = repo.status(targets=present)
    except NotDvcRepoError:
        return ""
    except DvcException as error:  # another command of DVC runs, for example
        return f"DVC cannot say whether tables are current: {' '.join(str(error).split())}"
    finally:
        logging.disable(logging.NOTSET)
    changed = [
        f"the stage {name} is stale: {path} is not as {LOCK} has it; run dvc checkout or dvc repro"
        for name, changes in found.items()
        for change in changes
        if isinstance(change, dict)
        for states in change.values()
        for path, state in states.items()
        if state in ("modified", "new")
    ]
    return next(iter(changed), "")


def _stage(lock: str, name: str) -> Tree:
    """Return a stage of a dvc.lock; of thousands of stages, it alone is parsed."""
    found = re.search(rf"^  {name}:\n(?:    .*\n)+", lock, re.MULTILINE)
    try:
        tree = parse_yaml(found.group()) if found else None
    except InputError:
        return {}
    return tree[name] if isinstance(tree, dict) and isinstance(tree.get(name), dict) else {}


def _at(tree: Tree, key: str) -> object:
    """Return the value at a dotted key; None where there is none."""
    value: Any = tree
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _swept_tree(tree: Tree) -> Tree:
    names = (tree.get("sweep") or {}).get("experiments") or []
    experiments = tree.get("experiments") or {}
    return tree | {"experiments": {name: experiments.get(name) for name in names}}


def _leaves(tree: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(tree, dict) and tree:
        for key, branch in tree.items():
            yield from _leaves(branch, f"{path}.{key}" if path else str(key))
    else:
        yield path, tree
