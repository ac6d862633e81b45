"""What DVC itself costs: plain `dvc repro train` against `ncpipe sweep`, on runs that hardly train.

    python benchmarks/dvc_overhead.py [35 105 245]

In temporary clones of this repository; one epoch a run, so that what is left is starting programs and DVC.
The sweep's time includes its own last `dvc repro`, up to and with the figures; that of `dvc repro` is
measured on the same stages, in the same order: train alone, then all the rest. Of each: seconds by the clock,
seconds of processors (which other work on the machine hardly moves), and those of the first process alone,
which of `dvc repro` is DVC itself.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent
DEPTHS, SEEDS = [2, 3, 4, 5, 6, 7, 8], [0, 1, 2, 3, 4]


def project(folder: Path, runs: int) -> Path:
    """A clone whose sweep has that many runs, in experiments of 35."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    yaml = YAML(typ="safe")
    params = yaml.load((folder / "stages/smoke/params.yaml").read_text())
    [spec] = params["experiments"].values()
    spec |= {"epochs": 1, "log_every": 1}
    names = [f"e{index}" for index in range(runs // len(DEPTHS) // len(SEEDS))]
    params["experiments"] = {
        name: spec | {"data": spec["data"] | {"seed": i}} for i, name in enumerate(names)
    }
    params["about"] = {}
    params["sweep"] = {"experiments": names, "depths": DEPTHS, "seeds": SEEDS}
    with (folder / "params.yaml").open("w") as file:
        yaml.dump(params, file)
    return folder


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


def seconds(folder: Path, *command: str) -> str:
    """By the clock, of processors, of those in the first process."""
    place = folder.parent / "seconds.json"
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", WATCH, str(place), *command], cwd=folder, check=True, capture_output=True
    )
    clock = time.perf_counter() - start
    own, others = json.loads(place.read_text())
    return f"{clock:6.1f} {own + others:6.1f} {own:6.1f} s"


def main() -> None:
    heads = ("repro train", "repro, the rest", "repro, nothing", "sweep, all")
    print(f"{'runs':>5}" + "".join(f"{head:>24}" for head in heads), flush=True)
    for runs in map(int, sys.argv[1:] or ["35", "105", "245"]):
        place = Path(tempfile.mkdtemp())
        try:
            one, other = project(place / "repro", runs), project(place / "sweep", runs)
            found = [seconds(one, "dvc", "repro", *rest) for rest in (["train"], [], [])]
            found.append(seconds(other, "ncpipe", "sweep"))
            print(f"{runs:>5}" + "".join(f"{each:>24}" for each in found), flush=True)
        finally:
            shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
