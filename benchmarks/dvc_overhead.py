"""What DVC itself costs: plain `dvc repro train` against `ncpipe sweep`, on runs that hardly train.

    python benchmarks/dvc_overhead.py [35 105 245]

In temporary clones of this repository; one epoch a run, so that what is left is starting programs and DVC.
The sweep's time includes its own last `dvc repro`, up to and with the figures; that of `dvc repro` is
measured on the same stages, in the same order: train alone, then all the rest.
"""

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


def seconds(folder: Path, *command: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", *command], cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    print(
        f"{'runs':>5} {'repro train':>12} {'repro, the rest':>16} {'repro, nothing':>15} {'sweep, all':>11}"
    )
    for runs in map(int, sys.argv[1:] or ["35", "105", "245"]):
        place = Path(tempfile.mkdtemp())
        try:
            one, other = project(place / "repro", runs), project(place / "sweep", runs)
            train = seconds(one, "dvc", "repro", "train")
            rest = seconds(one, "dvc", "repro")
            nothing = seconds(one, "dvc", "repro")
            sweep = seconds(other, "ncpipe", "sweep")
            print(
                f"{runs:>5} {train:>10.1f} s {rest:>14.1f} s {nothing:>13.1f} s {sweep:>9.1f} s", flush=True
            )
        finally:
            shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
