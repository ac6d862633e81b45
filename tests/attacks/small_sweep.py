"""A sweep of two runs that the attacks begin anew again and again."""

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pipeline import PARAMS, Clone

from ncpipe.runs.fingerprint import verify_run
from ncpipe.runs.store_layout import ALONE
from ncpipe.system.artifacts import RUNS, read_json
from ncpipe.system.errors import InputError

TORN = r"dvc\.lock|rwlock|NoneType|unexpected error"  # in what DVC says of a file that it has left torn
OUTPUTS = [f"data/{name}" for name in ("grid", "prepared", "runs", "features", "metrics", "results")]
SMALL = PARAMS | {
    "sweep": {"experiments": ["alpha"], "depths": [2], "seeds": [0, 1]},
    "experiments": {"alpha": PARAMS["experiments"]["alpha"] | {"epochs": 60, "log_every": 5}},
    "slopes": PARAMS["slopes"],
}


def prepared(folder: Path) -> Clone:
    """A clone in which only data are prepared.

    It ends with the tables: figures and claims take seconds and are written as these are.
    """
    clone = Clone.of_working_tree(folder / "clone", SMALL, "plot", "claims")
    subprocess.run([sys.executable, "-m", "compileall", "-q", clone.folder / "ncpipe"], check=True)
    clone.repro("grid", "fetch")
    return clone


def put_back(clone: Clone, fresh: Clone) -> None:
    """Make a clone what its copy still is."""
    for folder in (clone.environment["DVC_SITE_CACHE_DIR"], clone.folder):
        shutil.rmtree(folder, ignore_errors=True)
    fresh.copy(clone.folder)


def mend(clone: Clone) -> None:
    """Do what docs/reliability.md says of files that DVC has left torn."""
    if clone.run("git", "checkout", "--quiet", "dvc.lock", check=False).code:
        (clone.folder / "dvc.lock").unlink(missing_ok=True)
    (clone.folder / ".dvc/tmp/rwlock").unlink(missing_ok=True)
    clone.run("ncpipe", "repair", check=False)


def finished(folder: Path, output: str) -> set[str]:
    """Stage names of the runs that are whole, in the store or in their places, or were said to be."""
    outcomes = re.findall(r"^  (\w+) L=(\d+) seed=(\d+): ", output, re.MULTILINE)
    stages = {"train@" + "-".join(names) for names in outcomes}
    places = [folder / place for place in (ALONE, RUNS, ".dvc/cache/ncpipe")]
    for record in [path for place in places for path in named(place)]:
        try:
            verify_run(record.parent)
        except InputError:
            continue
        of = read_json(record)["inputs"]
        stages.add(f"train@{of['experiment']}-{of['depth']}-{of['seed']}")
    return stages


def named(place: Path) -> list[Path]:
    """The run.json of every run there that has its name: one below a hidden folder is still being written."""
    records = ((path, path.relative_to(place).parts) for path in place.rglob("run.json"))
    return [path for path, names in records if not any(name.startswith(".") for name in names)]


def spread(count: int) -> list[int]:
    """1 to `count`, in an order of which every beginning is spread evenly: by the golden section."""
    step = next(step for step in range(round(0.618 * count), count + 1) if math.gcd(step, count) == 1)
    return [1 + index * step % count for index in range(count)]
