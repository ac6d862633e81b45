"""What DVC itself costs: plain `dvc repro` against `ncpipe sweep`, on runs that hardly train.

    python benchmarks/dvc_overhead.py 35 105 245
    python benchmarks/dvc_overhead.py 35 105 245 --sweep 735
    python benchmarks/dvc_overhead.py 700 3000 --whole --experiments 2

In temporary clones of this repository, as its last commit has it; one epoch a run, so that what is left is
starting programs and DVC. The sweep's time includes its own last `dvc repro`, up to and with the report; that
of `dvc repro` is measured on the same stages, in the same order: fill, train, then all the rest; in the end
with one seed more. Of each:
seconds by the clock, seconds of processors (which other work on the machine hardly moves), and those of the
first process alone, which of `dvc repro` is DVC itself. In the end, the power of the number of runs by which
each of these grows. --sweep: numbers of runs of which only `ncpipe sweep` is measured. --whole: a stage for
each experiment, by the edit of docs/store.md. --experiments: so many, whatever the number of runs.
"""

import argparse
import copy
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent
DEPTHS, SEEDS = [2, 3, 4, 5, 6, 7, 8], [0, 1, 2, 3, 4]
MORE = "repro, a seed more"
REPRO: dict[str, tuple[str, ...]] = {
    "repro fill": ("dvc", "repro", "fill"),
    "repro train": ("dvc", "repro", "train"),
    "repro, the rest": ("dvc", "repro"),
    "repro, nothing": ("dvc", "repro"),
    MORE: ("dvc", "repro"),
}
SWEEP = {"sweep, all": ("ncpipe", "sweep")}

Times = tuple[float, float, float]  # seconds by the clock, of processors, of the first process


def project(folder: Path, runs: int, whole: bool, experiments: int | None) -> Path:
    """A clone whose sweep has about that many runs, in experiments of 35 or in so many."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    yaml = YAML(typ="safe")
    params = yaml.load((folder / "stages/smoke/params.yaml").read_text())
    [spec] = params["experiments"].values()
    spec |= {"epochs": 1, "log_every": 1}
    count = experiments or runs // len(DEPTHS) // len(SEEDS)
    seeds = SEEDS if experiments is None else list(range(round(runs / experiments / len(DEPTHS))))
    names = [f"e{index}" for index in range(count)]
    params["experiments"] = {
        name: copy.deepcopy(spec) | {"data": spec["data"] | {"seed": i}} for i, name in enumerate(names)
    }
    params["about"] = {}
    params["sweep"] = {"experiments": names, "depths": DEPTHS, "seeds": seeds}
    with (folder / "params.yaml").open("w") as file:
        yaml.dump(params, file)
    shutil.copyfile(folder / "stages/smoke/claims.yaml", folder / "claims.yaml")  # asked of any experiment
    if whole:
        page, pipeline = (folder / "docs/store.md").read_text(), folder / "dvc.yaml"
        lines = page.split("```diff\n")[1].split("```")[0].splitlines()
        before, after = (
            "".join(f"{line[1:]}\n" for line in lines if line[0] in kept) for kept in (" -", " +")
        )
        assert before in pipeline.read_text()
        pipeline.write_text(pipeline.read_text().replace(before, after))
    return folder


def add_seed(path: Path) -> None:
    """Add a seed to the sweep of a params.yaml."""
    yaml = YAML(typ="safe")
    params = yaml.load(path.read_text())
    params["sweep"]["seeds"].append(len(params["sweep"]["seeds"]))
    with path.open("w") as file:
        yaml.dump(params, file)


# Runs a module as `python -m` does, and writes down what it and its children took of the processors.
WATCH = """
import json, resource, runpy, sys
place, *sys.argv = sys.argv[1:]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
finally:
    own, others = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    with open(place, "w") as file:
        json.dump([own.ru_utime + own.ru_stime, others.ru_utime + others.ru_stime], file)
"""


def seconds(folder: Path, *command: str) -> Times:
    """Of a command in the clone, which runs the clone's own package like the checkout of a user."""
    place = folder.parent / "seconds.json"
    programs = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    environment = os.environ | {
        "PATH": os.pathsep.join(programs),
        "PYTHONPATH": str(folder),
        "DVC_SITE_CACHE_DIR": str(folder.parent / "dvc-site"),
        "DVC_NO_ANALYTICS": "1",
    }
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", WATCH, str(place), *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    clock = time.perf_counter() - start
    if done.returncode:
        sys.exit(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    own, others = json.loads(place.read_text())
    return clock, own + others, own


def measured(runs: int, repro: bool, whole: bool, experiments: int | None) -> dict[str, Times]:
    """Seconds by column, of a sweep of that many runs in clones of its own."""
    place = Path(tempfile.mkdtemp())
    try:
        found: dict[str, Times] = {}
        for columns in (REPRO, SWEEP) if repro else (SWEEP,):
            folder = project(place / "-".join(columns).replace(" ", ""), runs, whole, experiments)
            for column, command in columns.items():
                if column == MORE:
                    add_seed(folder / "params.yaml")
                found[column] = seconds(folder, *command)
        return found
    finally:
        shutil.rmtree(place, ignore_errors=True)


def row(head: str, cells: dict[str, str]) -> str:
    return f"{head:>15}" + "".join(f"{cells.get(column, ''):>24}" for column in (REPRO | SWEEP))


def print_growth(times: dict[int, dict[str, Times]]) -> None:
    """Exponents of the number of runs, between each two sizes."""
    for (few, before), (many, after) in pairwise(times.items()):
        powers = {
            column: " ".join(
                f"{math.log(one / other) / math.log(many / few):6.2f}"
                for one, other in zip(after[column], before[column], strict=True)
            )
            for column in after
            if column in before
        }
        print(row(f"{few} to {many}", powers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="*", type=int, default=[], help="how many: 35, 70, ...")
    parser.add_argument("--sweep", nargs="+", type=int, default=[], help="the same, by ncpipe sweep alone")
    parser.add_argument("--whole", action="store_true", help="a stage for each experiment")
    parser.add_argument("--experiments", type=int, help="how many; else one for 35 runs")
    given = parser.parse_args()
    both = given.runs or ([] if given.sweep else [35, 105, 245])
    print(
        "seconds by the clock, of processors, of the first process; below, by which power of runs they grow"
    )
    print(row("runs", {column: column for column in REPRO | SWEEP}), flush=True)
    times = {}
    for runs in sorted({*both, *given.sweep}):
        times[runs] = measured(runs, runs in both, given.whole, given.experiments)
        cells = {c: " ".join(f"{value:6.1f}" for value in own) for c, own in times[runs].items()}
        print(row(str(runs), cells), flush=True)
    print_growth(times)


if __name__ == "__main__":
    main()
