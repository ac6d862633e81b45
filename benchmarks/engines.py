"""What an engine itself costs: many runs that hardly train, by each engine, without DVC.

    python benchmarks/engines.py [--runs 100] [local slurm ray]

The runs have one epoch and five shapes. The engine slurm is left out where no Slurm answers. Ray starts a
cluster of this machine. `start` is until the first run is in the store: programs that start and load PyTorch;
`a run` is the rest of the time over the runs. The last line is the submission of 1000 runs to Slurm in at
most 100 tasks of an array; without Slurm to stand-ins for its commands, which leaves what ncpipe does.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ruamel.yaml import YAML

from ncpipe.config.params import Params, load_params
from ncpipe.runs.engines.choice import open_engine, tasks_of
from ncpipe.runs.engines.options import EngineName, Options, Ray, Settings, Slurm
from ncpipe.runs.engines.protocol import run_tasks
from ncpipe.runs.engines.task import Task
from ncpipe.runs.store import sweep_fingerprints
from ncpipe.runs.store_layout import ALONE, store_folder

ROOT = Path(__file__).resolve().parent.parent
DEPTHS = [2, 3, 4, 5, 6]
SUBMITTED, TASKS, LIMIT = 1000, 100, 10.0  # runs, tasks of the array, seconds


@contextlib.contextmanager
def sweep(runs: int) -> Iterator[Params]:
    """A folder with a sweep of about that many runs of one epoch, its data prepared; we are there."""
    place, before = Path(tempfile.mkdtemp()), Path.cwd()
    yaml = YAML(typ="safe")
    params = yaml.load((ROOT / "stages/smoke/params.yaml").read_text())
    [(name, spec)] = params["experiments"].items()
    spec |= {"epochs": 1, "log_every": 1}
    params["sweep"] |= {"depths": DEPTHS, "seeds": list(range(max(1, runs // len(DEPTHS))))}
    try:
        os.chdir(place)
        with Path("params.yaml").open("w") as file:
            yaml.dump(params, file)
        subprocess.run([sys.executable, "-m", "ncpipe", "fetch", name], check=True, capture_output=True)
        ALONE.mkdir(parents=True)
        yield load_params()
    finally:
        os.chdir(before)
        shutil.rmtree(place, ignore_errors=True)


def planned(params: Params) -> tuple[list[Task], Settings]:
    compute = params.compute_on("cpu")
    fingerprints = sweep_fingerprints(params, compute)
    settings = Settings(compute, None, 60.0, False, len(fingerprints))
    return tasks_of(fingerprints, settings), settings


def has_slurm() -> bool:
    """Whether a scheduler answers here."""
    command = ["sinfo", "--noheader"]
    return (
        shutil.which(command[0]) is not None and not subprocess.run(command, capture_output=True).returncode
    )


def options_of(name: EngineName) -> Options:
    return Options(name, Slurm(array=TASKS), Ray())


def stored_runs() -> list[Path]:
    return list(store_folder().glob("*/run.json"))


def timed(name: EngineName, runs: int) -> str:
    with sweep(runs) as params:
        tasks, settings = planned(params)
        first: list[float] = []

        def look() -> None:
            while not stored_runs():
                time.sleep(0.05)
            first.append(time.perf_counter())

        threading.Thread(target=look, daemon=True).start()
        begin = time.perf_counter()
        run_tasks(open_engine(options_of(name), settings), tasks, keep_going=False)
        end = time.perf_counter()
        found = len(stored_runs())
        assert found == settings.runs, f"{found} of {settings.runs} runs in the store"
        rest = 1e3 * (end - first[0]) / found
        return f"{name:>6} {found:>5} {first[0] - begin:>8.1f} s {end - begin:>8.1f} s {rest:>8.0f} ms"


@contextlib.contextmanager
def some_sbatch() -> Iterator[str]:
    """Yield the name of a Slurm to submit to: stand-ins for its commands where there is none."""
    if has_slurm():
        yield "Slurm"
        return
    place = Path(tempfile.mkdtemp())
    answers = {"sbatch": "cat > /dev/null; echo 1", "sinfo": "true", "squeue": "true", "scancel": "true"}
    for name, text in answers.items():
        (place / name).write_text(f"#!/bin/sh\n{text}\n")
        (place / name).chmod(0o755)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{place}{os.pathsep}{before}"
    try:
        yield "stand-ins for its commands"
    finally:
        os.environ["PATH"] = before
        shutil.rmtree(place)


def submission() -> str:
    """Time of the one call that a detached sweep waits for."""
    with sweep(SUBMITTED) as params, some_sbatch() as target:
        tasks, settings = planned(params)
        engine = open_engine(Options("slurm", Slurm(array=TASKS)), settings)
        begin = time.perf_counter()
        engine.submit(tasks)
        seconds = time.perf_counter() - begin
        engine.cancel()
        ok = "under" if seconds < LIMIT else "NOT under"
        return f"{settings.runs} runs submitted to {target} in {seconds:.2f} s ({ok} {LIMIT:.0f} s)"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("engines", nargs="*", default=["local", "slurm", "ray"])
    parser.add_argument("--runs", type=int, default=100)
    chosen = parser.parse_args()
    print(f"{'engine':>6} {'runs':>5} {'start':>10} {'in all':>10} {'a run':>11}")
    for name in chosen.engines:
        if name == "slurm" and not has_slurm():
            print(f"{name:>6} left out: no Slurm answers here", flush=True)
        else:
            print(timed(name, chosen.runs), flush=True)
    if "slurm" in chosen.engines:
        print(submission(), flush=True)


if __name__ == "__main__":
    main()
