"""A sweep of two runs that the attacks begin anew again and again, and what of it is finished."""

import re
from pathlib import Path

from pipeline import PARAMS, Clone

from ncpipe.artifacts import AHEAD, RUNS, read_json
from ncpipe.errors import InputError
from ncpipe.stamps import check_whole

OUTPUTS = [
    f"data/{name}" for name in ("grid", "prepared", "runs", "features", "metrics", "results", "figures")
]
SMALL = PARAMS | {
    "sweep": {"experiments": ["alpha"], "depths": [2], "seeds": [0, 1]},
    "experiments": {"alpha": PARAMS["experiments"]["alpha"] | {"epochs": 60, "log_every": 5}},
}


def prepared(folder: Path) -> Clone:
    """A clone in which only data are prepared."""
    clone = Clone.of_working_tree(folder / "clone", SMALL)
    clone.repro("grid", "fetch")
    return clone


def finished(folder: Path, said: str) -> set[str]:
    """Stage names of the runs that are whole, in the store or in their places, or were said to be."""
    outcomes = re.findall(r"^  (\w+) L=(\d+) seed=(\d+): ", said, re.MULTILINE)
    found = {"train@" + "-".join(names) for names in outcomes}
    for record in [*(folder / AHEAD).glob("*/run.json"), *(folder / RUNS).rglob("run.json")]:
        try:
            check_whole(record.parent)
        except InputError:
            continue
        of = read_json(record)["inputs"]
        found.add(f"train@{of['experiment']}-{of['depth']}-{of['seed']}")
    return found
