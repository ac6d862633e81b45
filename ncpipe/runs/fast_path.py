"""Take stored runs in a stage of DVC, without reading params.yaml.

DVC starts one program per stage. Two files, which DVC hashes before it starts the stage, decide a run's
fingerprint: the experiment's file of the stage `code`, and the facts of its data. Reading only these takes a
tenth of the time. `ncpipe.commands.train` handles all other cases and reports errors.
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

THREADS = 8  # most of the time is spent waiting for the disk
OPTIONS = ("--experiment", "--depth", "--value", "--seed")


def take_stored(words: Sequence[str]) -> str | None:
    """Put the runs of `ncpipe train WORDS` into data/runs if all are stored; return their name.

    Returns None and changes nothing if a run is missing or damaged.
    """
    try:
        options = dict(zip(words[::2], words[1::2], strict=True))
        experiment = options[OPTIONS[0]]
        if (
            not set(options) <= set(OPTIONS)
            or len(words) != 2 * len(options)
            or not experiment.isidentifier()
        ):
            return None
        digests, _, shared = (CODE / f"experiments/{experiment}/train.txt").read_text("utf-8").partition("{")
        code = digest_of({name: digest for digest, name in map(str.split, digests.splitlines())})
        folders = []
        for run in _runs(options, (inputs := json.loads("{" + shared)).pop("axis", None)):
            key = digest_of([_inputs(inputs, run), code])
            path = Path(experiment, *(f"{letter}{run[name]}" for letter, name in _PARTS if name in run))
            if os.path.lexists(RUNS / path):
                return None
            verify_stored(store_folder() / key, key)
            folders.append((store_folder() / key, RUNS / path))
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(materialise, *zip(*folders, strict=True)))
    except (OSError, ValueError, KeyError, TypeError, shutil.Error, InputError):
        return None
    return f"{experiment} {' '.join(words[2:])}".strip() if folders else None


_PARTS = (("L", "depth"), ("x", "value"), ("s", "seed"))  # of a run's path


def _runs(options: dict[str, str], axis: str | None) -> Iterator[dict[str, Any]]:
    """Yield depth, value and seed of one run that the options name, or of the grid's runs that match."""
    names = ["depth", *(["value"] if axis else []), "seed"]
    if all(f"--{name}" in options for name in names):
        rows = [[options[f"--{name}"] for name in names]]
    else:
        with (GRID / f"{options[OPTIONS[0]]}.csv").open(newline="", encoding="utf-8") as file:
            _, *rows = csv.reader(file)
    for row in rows:
        texts = dict(zip(names, row, strict=True))
        if all(options.get(f"--{name}", text) == text for name, text in texts.items()):
            numbers = {name: json.loads(text) for name, text in texts.items()}
            yield numbers | {"experiment": options[OPTIONS[0]], "axis": axis}


def _inputs(shared: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """Return a run's inputs, equal to those of `ncpipe.runs.fingerprint.inputs_of`."""
    inputs = json.loads(json.dumps(shared)) | {"depth": run["depth"], "seed": run["seed"]}
    data = PREPARED / run["experiment"]
    if run["axis"]:
        data /= f"x{run['value']}"
        *parents, key = run["axis"].split(".")
        branch = inputs["spec"]
        for name in parents:
            branch = branch[name]
        branch[key] = float(run["value"]) if isinstance(branch.get(key), float) else run["value"]
    return inputs | {"data_checksum": read_json(data / "facts.json")["checksum"]}
