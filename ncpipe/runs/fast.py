"""Stored runs taken by a stage of DVC's, without params.yaml, specs and command line.

DVC starts a program for every stage, and most of its time would be spent on finding out again what those
before it knew. What decides a run's fingerprint stands in two files that DVC hashed before it began the
stage: what the stage `code` wrote of the experiment, and the facts of its data. What cannot be taken this
way, for whatever reason, is left to `ncpipe.commands.train`, which says why.
"""

import csv
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ncpipe.runs.folders import check_stored, put_in_place, store_folder
from ncpipe.system.artifacts import CODE, GRID, PREPARED, RUNS, digest_of, read_json
from ncpipe.system.errors import InputError

OPTIONS = ("--experiment", "--depth", "--value", "--seed")


def take_stored(words: Sequence[str]) -> str | None:
    """Put the runs that `ncpipe train` is asked for into their places, if all are stored; say which.

    None, and nothing is changed, if one is not, or is not whole.
    """
    try:
        asked = dict(zip(words[::2], words[1::2], strict=True))
        experiment = asked[OPTIONS[0]]
        if not set(asked) <= set(OPTIONS) or len(words) != 2 * len(asked) or not experiment.isidentifier():
            return None
        digests, _, shared = (CODE / f"experiments/{experiment}/train.txt").read_text("utf-8").partition("{")
        code = digest_of({name: digest for digest, name in map(str.split, digests.splitlines())})
        found = []
        for run in _runs(asked, (inputs := json.loads("{" + shared)).pop("axis", None)):
            key = digest_of([_inputs(inputs, run), code])
            path = Path(experiment, *(f"{letter}{run[name]}" for letter, name in _PARTS if name in run))
            if os.path.lexists(RUNS / path):
                return None
            check_stored(store_folder() / key, key)
            found.append((store_folder() / key, RUNS / path))
        for folder, place in found:
            put_in_place(folder, place)
    except (OSError, ValueError, KeyError, TypeError, shutil.Error, InputError):
        return None
    return f"{experiment} {' '.join(words[2:])}".strip() if found else None


_PARTS = (("L", "depth"), ("x", "value"), ("s", "seed"))


def _runs(asked: dict[str, str], axis: str | None) -> Iterator[dict[str, Any]]:
    """Depth, value and seed of the one that is named, or of those of the grid that agree with the rest."""
    names = ["depth", *(["value"] if axis else []), "seed"]
    rows = [[asked[f"--{name}"] for name in names]] if all(f"--{name}" in asked for name in names) else None
    if rows is None:
        with (GRID / f"{asked[OPTIONS[0]]}.csv").open(newline="", encoding="utf-8") as file:
            _, *rows = csv.reader(file)
    for row in rows:
        texts = dict(zip(names, row, strict=True))
        if all(asked.get(f"--{name}", text) == text for name, text in texts.items()):
            numbers = {name: json.loads(text) for name, text in texts.items()}
            yield numbers | {"experiment": asked[OPTIONS[0]], "axis": axis}


def _inputs(shared: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """A run's inputs, as its run.json has them (`ncpipe.runs.fingerprint.inputs_of`)."""
    inputs = json.loads(json.dumps(shared)) | {"depth": run["depth"], "seed": run["seed"]}
    place = PREPARED / run["experiment"]
    if run["axis"]:
        place /= f"x{run['value']}"
        *above, last = run["axis"].split(".")
        branch = inputs["spec"]
        for name in above:
            branch = branch[name]
        whole = isinstance(branch.get(last), float)  # of a key that takes any number
        branch[last] = float(run["value"]) if whole else run["value"]
    return inputs | {"data_checksum": read_json(place / "facts.json")["checksum"]}
