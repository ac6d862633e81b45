"""What a sweep's driver costs, measured, and what that makes of a large sweep on a cluster, by simulation.

    python benchmarks/driver.py measure 200 1000      # seconds of CPU of each step, at so many runs
    python benchmarks/driver.py simulate              # 10,000 runs on 100 GPUs, with the times below

`measure` makes a sweep in a temporary clone, puts runs into its store as workers would have, and does what
`ncpipe sweep` does before and after the training. `simulate` has tasks that train, a queue for free GPUs, and
one driver that takes up what has ended, each with its measured time; no scheduler and no training.
"""

import argparse
import contextlib
import dataclasses
import heapq
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from ncpipe.artifacts import AHEAD, PREPARED
from ncpipe.commands.fetch import fetch
from ncpipe.commands.grid import write_grid
from ncpipe.datasets.prepared import read_prepared
from ncpipe.params import load_params
from ncpipe.scheduling import registry
from ncpipe.scheduling.engines.parcels import pack, receive
from ncpipe.scheduling.pending import is_missing, sweep_stamps
from ncpipe.scheduling.store import claim, drop_damaged_places, drop_damaged_waiting, release
from ncpipe.stamps import Stamp
from ncpipe.training.device import prepare_device
from ncpipe.training.loop import train_batch
from ncpipe.training.run_folder import write_run

ROOT = Path(__file__).resolve().parent.parent
EXPERIMENTS, DEPTHS = 10, 10


@contextlib.contextmanager
def project(runs: int) -> Iterator[None]:
    """A clone whose sweep has about that many runs of one epoch; we are there."""
    place, before = Path(tempfile.mkdtemp()), Path.cwd()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(place / "clone")], check=True)
    yaml = YAML(typ="safe")
    params = yaml.load((ROOT / "stages/smoke/params.yaml").read_text())
    [spec] = params["experiments"].values()
    spec |= {"epochs": 1, "log_every": 1}
    names = [f"e{index}" for index in range(EXPERIMENTS)]
    rates = {name: spec["optimizer"] | {"learning_rate": 0.01 + i / 1000} for i, name in enumerate(names)}
    params["experiments"] = {name: spec | {"optimizer": rates[name]} for name in names}
    params["about"] = {}
    seeds = list(range(max(1, runs // EXPERIMENTS // DEPTHS)))
    params["sweep"] = {"experiments": names, "depths": list(range(2, 2 + DEPTHS)), "seeds": seeds}
    try:
        os.chdir(place / "clone")
        with Path("params.yaml").open("w") as file:
            yaml.dump(params, file)
        AHEAD.mkdir(parents=True)
        yield
    finally:
        os.chdir(before)
        shutil.rmtree(place, ignore_errors=True)


def cpu() -> float:
    """Seconds, of this process and those that it has waited for."""
    own = os.times()
    return own.user + own.system + own.children_user + own.children_system


@contextlib.contextmanager
def timed(step: str, found: dict[str, float]) -> Iterator[None]:
    begin, wall = cpu(), time.perf_counter()
    yield
    found[step] = cpu() - begin
    print(f"  {step:<28} {found[step]:>8.2f} s of CPU, {time.perf_counter() - wall:>8.2f} s", flush=True)


def finish(stamps: list[Stamp]) -> None:
    """Put every run into the store, each depth with the weights of one run."""
    place, trained = prepare_device(stamps[0].compute), {}
    data = read_prepared(PREPARED / stamps[0].run.data)
    for stamp in stamps:
        depth = stamp.run.depth
        if depth not in trained:
            [trained[depth]] = train_batch([stamp.run], data, place, stamp.compute.precision)
        write_run(AHEAD / stamp.key(), dataclasses.replace(trained[depth], run=stamp.run), stamp, "cpu")


def measure(runs: int) -> dict[str, float]:
    found: dict[str, float] = {}
    with project(runs):
        registry.dvc("repro", "--quiet", "code")
        params = load_params()
        write_grid()
        for name in params.sweep.experiments:
            fetch(name)
        registry.dvc("commit", "--quiet", "--force", "grid", "fetch")
        stamps = sweep_stamps(params, params.compute_on("cpu"))
        names = [registry.stage_name(stamp.run) for stamp in stamps]
        print(f"{len(stamps)} runs")
        with timed("ask DVC what is stale", found):
            registry.stale_stages()
        with timed("ask DVC's run cache", found):
            registry.restore_cached(names)
        with timed("keys", found):
            [is_missing(stamp) for stamp in stamps]
        with timed("(runs are made up)", {}):
            finish(stamps)
        some = stamps[:100]
        parcels = {stamp.key(): pack(AHEAD / stamp.key()) for stamp in some}
        release(some)
        with timed("receive 100 runs as bytes", found):
            for key, parcel in parcels.items():
                receive(key, parcel)
        with timed("check what waits", found):
            drop_damaged_waiting(stamps)
        with timed("put into place", found):
            for stamp in stamps:
                claim(stamp)
        with timed("dvc commit", found), registry.lock_kept():
            registry.register()
        with timed("check what is in place", found):
            drop_damaged_places(stamps)
        with timed("let go of the store", found):
            release(stamps)
        with timed("dvc repro, nothing to train", found):
            registry.dvc("repro", "--quiet", "train")
    return found


@dataclass(frozen=True)
class Costs:
    """Seconds of the driver for each run: before and after the training, and to take up one that is bytes.

    start: seconds of a task until it trains.
    """

    before: float
    after: float
    collect: float = 0.010
    start: float = 1.0


@dataclass(frozen=True)
class Outcome:
    """Hours: GPUs train, the driver takes up the rest when they are done, and it works before and after.

    waited: longest time in seconds that a finished batch waited for the driver. busy: share of the GPUs' time
    in which they train, until the last one is done.
    """

    training: float
    behind: float
    before: float
    after: float
    waited: float
    busy: float


def simulate(runs: int, gpus: int, side: int, minutes: float, costs: Costs, seed: int = 0) -> Outcome:
    """Batches of `side` runs, of `minutes` on average (log-normal, sigma 0.3), on the next free GPU."""
    draw = random.Random(seed)
    free = [0.0] * gpus
    ends = []
    spent = 0.0
    for _ in range(runs // side):
        seconds = 60 * minutes * draw.lognormvariate(-0.045, 0.3)
        end = heapq.heappop(free) + costs.start + seconds
        heapq.heappush(free, end)
        ends.append(end)
        spent += seconds
    now, waited = 0.0, 0.0
    for end in sorted(ends):
        waited = max(waited, now - end)
        now = max(now, end) + side * costs.collect
    last = max(ends)
    return Outcome(
        training=last / 3600,
        behind=(now - last) / 3600,
        before=runs * costs.before / 3600,
        after=runs * costs.after / 3600,
        waited=waited,
        busy=spent / last / gpus,
    )


LEGEND = """\
batch: its training; training: until the last GPU is done; behind: the driver after that, with runs that came
as bytes; before, after: DVC and checks; driver: share of the whole in which no GPU trains; GPUs: share of the
training in which they train"""
# Of 10 experiments: seconds of CPU on one core of a busy machine, for each run. Before: `dvc status` and the
# run cache; after: checks, places, `dvc commit`, and a `dvc repro` that has nothing to train. The first two
# with 200 runs whose entries in dvc.lock had their parameters; the last with 1000, of which `code` tells.
MEASURED = {
    "params.yaml parsed anew": Costs(before=0.009 + 0.114, after=0.010 + 0.166 + 0.085),
    "params.yaml parsed once": Costs(before=0.009 + 0.016, after=0.010 + 0.061 + 0.032),
    "no parameters of runs": Costs(before=0.005 + 0.006, after=0.007 + 0.034 + 0.017),
}


def print_simulated(runs: int, gpus: int, side: int, all_costs: Mapping[str, Costs]) -> None:
    print(f"{runs} runs, {side} side by side, on {gpus} GPUs; hours\n")
    heads = [f"{'batch':>8}", f"{'training':>9}", *(f"{each:>7}" for each in ("behind", "before", "after"))]
    print(" ".join([" " * 24, *heads, f"{'driver':>6} {'GPUs':>6}"]))
    for name, costs in all_costs.items():
        for minutes in (1, 10, 60):
            out = simulate(runs, gpus, side, minutes, costs)
            driver = out.behind + out.before + out.after
            print(
                f"{name:<24} {minutes:>4} min {out.training:>9.2f} {out.behind:>7.2f} {out.before:>7.2f} "
                f"{out.after:>7.2f} {driver / (driver + out.training):>6.0%} {out.busy:>6.0%}"
            )
    print(f"\n{LEGEND}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["measure", "simulate"])
    parser.add_argument("runs", nargs="*", type=int)
    chosen = parser.parse_args()
    if chosen.what == "measure":
        for runs in chosen.runs or [200, 1000]:
            measure(runs)
    else:
        print_simulated((chosen.runs or [10_000])[0], 100, 20, MEASURED)


if __name__ == "__main__":
    main()
