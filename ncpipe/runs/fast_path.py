"""Take a stored run in a stage of DVC, without reading params.yaml.

DVC starts one program per run. Two files, which DVC hashes before it starts the stage, decide a run's
fingerprint: the experiment's file of the stage `code`, and the facts of its data. Reading only these takes a
tenth of the time. `ncpipe.commands.train` handles all other cases and reports errors.
"""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncpipe.runs.store_layout import materialise, store_folder, verify_stored
from ncpipe.system.artifacts import CODE, PREPARED, RUNS, digest_of, read_json
from ncpipe.system.errors import InputError

LETTERS = {"depth": "L", "value": "x", "seed": "s"}  # of the folders of a run


def take_stored(words: Sequence[str]) -> bool:
    """Put the run of `ncpipe train WORDS` into data/runs if it is stored; return whether it was.

    words: options and values, by turns. Nothing changes if the run is missing or damaged, or if the words do
    not name a single one.
    """
    try:
        options = dict(zip(words[::2], words[1::2], strict=True))
        experiment = options.pop("--experiment")
        digests, _, shared = (CODE / f"experiments/{experiment}/train.txt").read_text("utf-8").partition("{")
        inputs = json.loads("{" + shared)
        axis = inputs.pop("axis", None)
        names = [name for name in LETTERS if axis or name != "value"]
        numbers = {name: json.loads(options.pop(f"--{name}")) for name in names}
        path = Path(experiment, *(f"{LETTERS[name]}{number}" for name, number in numbers.items()))
        if options or not experiment.isidentifier() or os.path.lexists(RUNS / path):
            return False
        code = digest_of({name: digest for digest, name in map(str.split, digests.splitlines())})
        key = digest_of([_inputs(inputs, experiment, axis, **numbers), code])
        verify_stored(store_folder() / key, key)
        materialise(store_folder() / key, RUNS / path)
    except (OSError, ValueError, KeyError, TypeError, shutil.Error, InputError):
        return False
    return True


def _inputs(
    shared: dict[str, Any], experiment: str, axis: str | None, depth: int, seed: int, value: float = 0.0
) -> dict[str, Any]:
    """Return a run's inputs, equal to those of `ncpipe.runs.fingerprint.inputs_of`."""
    data = PREPARED / experiment
    if axis:
        data /= f"x{value}"
        *parents, key = axis.split(".")
        branch = shared["spec"]
        for name in parents:
            branch = branch[name]
        branch[key] = float(value) if isinstance(branch.get(key), float) else value
    return shared | {
        "depth": depth,
        "seed": seed,
        "data_checksum": read_json(data / "facts.json")["checksum"],
    }
