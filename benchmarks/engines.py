"""What engines and their driver cost: many runs that hardly train, without DVC.

    python benchmarks/engines.py [local slurm] [--runs 300 1000 3000] [--array 100]
    python benchmarks/engines.py --driver 300 1000 3000 30000 [--dry-from 30000]

The runs have one epoch and five shapes. The first call trains by each engine; slurm is left out where no
Slurm answers. `first s` is until the first run is in the store: programs that start and load PyTorch. `all s`
is the clock's; `driver` and `others` are seconds of the processor, of the driver and of all processes that it
started or that work in the folder of the sweep (Slurm's jobs among them, its daemons not). Memory is the
largest, of all processes at a time; what they share counts once. Files are those of the store, of submitted
jobs at most, and of logs in the end.

The second call measures what the driver of a sweep does beside Slurm, which the stand-in of the tests plays
with four jobs: seconds of its processor to plan, to submit, to watch and collect, to place all runs in
data/runs, as the stage of an experiment does, and to answer `ncpipe status`; its largest memory; files of the
submitted jobs and of the store. From --dry-from on jobs train nothing: they leave empty folders in place of
runs. Below the table: by which power of the number of runs each column grows.
"""

import argparse
import concurrent.futures
import contextlib
import itertools
import math
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import psutil
from ruamel.yaml import YAML

from ncpipe.commands.code import write_code
from ncpipe.commands.grid import write_grid
from ncpipe.config.params import Params, load_params
from ncpipe.runs.engines import slurm_commands
from ncpipe.runs.engines.options import EngineName, Settings, Slurm
from ncpipe.runs.fast_path import take_stored
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.store import sweep_fingerprints
from ncpipe.runs.store_layout import ALONE, store_folder
from ncpipe.system.artifacts import JOBS, LOGS

ROOT = Path(__file__).resolve().parent.parent
DEPTHS = [2, 3, 4, 5, 6]
LOOK = 0.25  # seconds between two looks at what processes take
T = TypeVar("T")


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
        write_grid()
        write_code()
        yield load_params()
    finally:
        os.chdir(before)
        shutil.rmtree(place, ignore_errors=True)


def planned(params: Params) -> tuple[list[RunFingerprint], Settings]:
    compute = params.compute_on("cpu")
    fingerprints = sweep_fingerprints(params, compute)
    return fingerprints, Settings(compute, None, 60.0, False, len(fingerprints))


def train(name: EngineName, params: Params, array: int) -> int:
    """Train the sweep through an engine; return the number of runs."""
    fingerprints, settings = planned(params)
    if name == "slurm":
        from ncpipe.runs.engines.slurm import train_by_slurm

        train_by_slurm(fingerprints, Slurm(array=array), settings)
    else:
        from ncpipe.runs.fill import fill

        fill(fingerprints, settings)
    return settings.runs


def has_slurm() -> bool:
    """Whether a scheduler answers here."""
    command = ["sinfo", "--noheader"]
    return (
        shutil.which(command[0]) is not None and not subprocess.run(command, capture_output=True).returncode
    )


def stored_runs() -> list[Path]:
    return list(store_folder().glob("*/run.json"))


ENGINE_COLUMNS = ("first s", "all s", "driver", "others", "memory MB", "of store", "of jobs", "of logs")


class Watch(threading.Thread):
    """Looks at the processes and files of a sweep, in the driver, while a block lasts."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.begin, self.first = time.perf_counter(), 0.0
        self.seconds: dict[tuple[int, float], float] = {}  # of the processor, by process
        self.memory, self.files, self.own = 0, 0, 0.0

    def run(self) -> None:
        while not self.ended.wait(LOOK):
            if not self.first and stored_runs():
                self.first = time.perf_counter() - self.begin
            self.files = max(self.files, count_files(JOBS))
            self.look()
            self.own = time.thread_time()

    def look(self) -> None:
        here, driver = str(Path.cwd()), psutil.Process()
        children = set(driver.children(recursive=True))
        memory = driver.memory_full_info().pss
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process in children or (process != driver and process.cwd() == here):
                    times = process.cpu_times()
                    self.seconds[process.pid, process.create_time()] = times.user + times.system
                    memory += process.memory_full_info().pss
        self.memory = max(self.memory, memory)

    def __enter__(self) -> "Watch":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.join()


def timed(name: EngineName, runs: int, array: int) -> tuple[int, list[float]]:
    """Return the number of runs, and the columns for it. In a new process."""
    with sweep(runs) as params:
        begin, before = time.perf_counter(), time.process_time()
        with Watch() as watch:
            runs = train(name, params, array)
        end, driver = time.perf_counter() - begin, time.process_time() - before - watch.own
        found = len(stored_runs())
        assert found == runs, f"{found} of {runs} runs in the store"
        others, files = (
            sum(watch.seconds.values()),
            (count_files(store_folder()), watch.files, count_files(LOGS)),
        )
        return found, [watch.first, end, driver, others, watch.memory / 2**20, *files]


def alone(call: Callable[..., T], *arguments: object) -> T:
    """Call a function in a new process."""
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(call, *arguments).result()


# What a job of the dry driver runs in place of the worker.
DRY_WORKER = """
from ncpipe.runs.engines.arrays import read_arrays
from ncpipe.runs.store import stored
for array in read_arrays():
    for key in array.keys:
        stored(key).mkdir(exist_ok=True)
"""
COLUMNS = ("plan s", "submit s", "watch s", "place s", "status s", "memory MB", "files of jobs", "of store")


def driven(runs: int, dry: bool) -> tuple[int, list[float]]:
    """Return the number of runs, and the columns for it. In a process of its own, for the largest memory."""
    sys.path.insert(0, str(ROOT / "tests"))
    import slurm_stand_in  # type: ignore[import-not-found]

    from ncpipe.commands.status import sweep_states
    from ncpipe.runs.engines.slurm import train_by_slurm

    place = Path(tempfile.mkdtemp())
    os.environ |= slurm_stand_in.install(place / "slurm")
    if dry:
        slurm_commands.SCRIPT = slurm_commands.SCRIPT.replace("{command}", f"{sys.executable} {place}/dry.py")
        (place / "dry.py").write_text(DRY_WORKER)
    laps: list[float] = []

    def lap() -> None:
        laps.append(time.process_time())

    with sweep(runs) as params:
        lap()
        fingerprints, settings = planned(params)
        lap()
        train_by_slurm(fingerprints, Slurm(array=4), settings, wait=False)
        lap()
        files = count_files(JOBS)
        assert train_by_slurm(fingerprints, Slurm(array=4), settings) == set()
        lap()
        if not dry:
            for run in params.grid():
                names = {"experiment": run.experiment, "depth": run.depth, "seed": run.seed}
                assert take_stored([word for name in names for word in (f"--{name}", str(names[name]))])
        lap()
        sweep_states()
        lap()
        stored = count_files(store_folder())
    shutil.rmtree(place)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return settings.runs, [*(end - begin for begin, end in itertools.pairwise(laps)), memory, files, stored]


def count_files(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))


def print_driver(sizes: Sequence[int], dry_from: int) -> None:
    print(f"{'runs':>14}" + "".join(f"{column:>14}" for column in COLUMNS))
    found: dict[int, list[float]] = {}
    for size in sizes:
        runs, values = alone(driven, size, size >= dry_from)
        found[runs] = values
        print(f"{runs:>14}" + "".join(f"{value:>14.4g}" for value in values), flush=True)
    for (few, before), (many, after) in itertools.pairwise(found.items()):
        powers = [
            math.log(one / other) / math.log(many / few) if one and other else math.nan
            for one, other in zip(after, before, strict=True)
        ]
        print(f"{f'{few} to {many}':>14}" + "".join(f"{power:>14.2f}" for power in powers))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("engines", nargs="*", default=["local", "slurm"])
    parser.add_argument("--runs", type=int, nargs="+", default=[100])
    parser.add_argument("--array", type=int, default=100, help="most tasks of Slurm's array")
    parser.add_argument("--driver", type=int, nargs="+", help="numbers of runs: what the driver costs")
    parser.add_argument("--dry-from", type=int, default=10_000, help="from so many runs on nothing trains")
    chosen = parser.parse_args()
    if chosen.driver:
        print_driver(chosen.driver, chosen.dry_from)
        return
    print(f"{'engine':>6}{'runs':>8}" + "".join(f"{column:>11}" for column in ENGINE_COLUMNS))
    for name, runs in itertools.product(chosen.engines, chosen.runs):
        if name == "slurm" and not has_slurm():
            print(f"{name:>6} left out: no Slurm answers here", flush=True)
        else:
            found, values = alone(timed, name, runs, chosen.array)
            print(f"{name:>6}{found:>8}" + "".join(f"{value:>11.4g}" for value in values), flush=True)


if __name__ == "__main__":
    main()
