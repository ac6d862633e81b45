"""Compare trees of params.yaml with each other, and with what dvc.lock says that results were made with."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ncpipe.config.yaml_file import parse_yaml
from ncpipe.system.errors import InputError

ABSENT = "-"
MADE_BY = ("code", "aggregate")  # the stages whose parameters in dvc.lock are all that decides a result

Tree = dict[str, Any]


def different_parameters(trees: Mapping[str, Tree]) -> dict[str, list[str]]:
    """Return each dotted key whose values differ, with its value in every tree as YAML writes it.

    Leaves out experiments that no tree sweeps, because they do not affect the results.
    """
    flat = {name: dict(_leaves(_swept_tree(tree))) for name, tree in trees.items()}
    keys = dict.fromkeys(key for leaves in flat.values() for key in leaves)
    rows = {key: [leaves.get(key, ABSENT) for leaves in flat.values()] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def changed_since(params: Tree, lock: str) -> list[str]:
    """Return the dotted keys of a params.yaml that DVC has not run with, by the text of dvc.lock.

    None without a readable dvc.lock; DVC then says what to do.
    """
    stages = _stages(lock)
    recorded: Tree = {}
    for name in MADE_BY:
        recorded |= (stages.get(name, {}).get("params") or {}).get("params.yaml") or {}
    made = {key: value for key, value in recorded.items() if "." not in key}
    return list(different_parameters({"now": {key: params.get(key) for key in made}, "made": made}))


def code_of(lock: str) -> dict[str, str]:
    """Return by name the digests of the stages' code with which the results of a dvc.lock were made."""
    deps = (dep for stage in _stages(lock).values() for dep in stage.get("deps") or [])
    return {dep["path"]: dep["md5"] for dep in deps if dep["path"].startswith("data/code/") and "md5" in dep}


def _stages(lock: str) -> dict[str, Tree]:
    try:
        tree = parse_yaml(lock) if lock else None
    except InputError:
        return {}
    stages = tree.get("stages") if isinstance(tree, dict) else None
    return stages if isinstance(stages, dict) else {}


def _swept_tree(tree: Tree) -> Tree:
    names = (tree.get("sweep") or {}).get("experiments") or []
    experiments = tree.get("experiments") or {}
    return tree | {"experiments": {name: experiments.get(name) for name in names}}


def _leaves(tree: object, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(tree, dict) and tree:
        for key, branch in tree.items():
            yield from _leaves(branch, f"{path}.{key}" if path else str(key))
    else:
        yield path, json.dumps(tree, default=str).strip('"')
