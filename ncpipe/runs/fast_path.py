"""Take stored runs for a stage of DVC, without reading params.yaml.

DVC starts one program per stage. Two files, which DVC has hashed before it starts the stage, decide a run's
fingerprint: the experiment's file of the stage `code`, and the facts of its data. Reading these alone takes a
tenth of the time. Whatever cannot be taken this way is left to `ncpipe.commands.train`, which reports why.
"""

import csv
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ncpipe.runs.store_layout import materialise, store_folder, verify_stored
from ncpipe.system.artifacts import CODE, GRID, PREPARED, RUNS, digest_of, read_json
from ncpipe.system.errors import InputError

PLACED_AT_ONCE = 8  # runs: most of the time goes to waiting for the disk
OPTIONS = ("--experiment", "--depth", "--value", "--seed")


def take_stored(words: Sequence[str]) -> str | None:
    """Put the runs that `ncpipe train WORDS` asks for into data/runs if all are stored; return their name.

    Returns None and changes nothing if a run is missing or damaged.
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
            verify_stored(store_folder() / key, key)
            found.append((store_folder() / key, RUNS / path))
        with ThreadPoolExecutor(PLACED_AT_ONCE) as pool:
            list(pool.map(materialise, *zip(*found, strict=True)))
    except (OSError, ValueError, KeyError, TypeError, shutil.Error, InputError):
        return None
    return f"{experiment} {' '.join(words[2:])}".strip() if found else None


_PARTS = (("L", "depth"), ("x", "value"), ("s", "seed"))


def _runs(asked: dict[str, str], axis: str | None) -> Iterator[dict[str, Any]]:
    """Yield depth, value and seed of the run that is named, or of the grid's runs that match the options."""
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
    """Return a run's inputs as `ncpipe.runs.fingerprint.inputs_of` does."""
    inputs = json.loads(json.dumps(shared)) | {"depth": run["depth"], "seed": run["seed"]}
    place = PREPARED / run["experiment"]
    if run["axis"]:
        place /= f"x{run['value']}"
        *above, last = run["axis"].split(".")
        branch = inputs["spec"]
        for name in above:
            branch = branch[name]
        whole = isinstance(branch.get(last), float)  # a key of type float
        branch[last] = float(run["value"]) if whole else run["value"]
    return inputs | {"data_checksum": read_json(place / "facts.json")["checksum"]}
