"""Plan the rest of a sweep: batches with their memory and time, and the time of the other stages."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ncpipe.config.specs import Run, own_loop
from ncpipe.config.study import study_errors
from ncpipe.datasets.prepared import Prepared, read_prepared
from ncpipe.features.passes import extract
from ncpipe.models.build import build_network
from ncpipe.runs.batches import Batch, groups, parts_of_each, split_batch
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.store import checkpoint_of
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.console import duration, plural, say
from ncpipe.system.errors import InputError, NotEnoughMemory
from ncpipe.training.checkpoints import epochs_done
from ncpipe.training.cost import LEVERS, seconds_per_epoch
from ncpipe.training.device import DTYPES, is_out_of_memory

MEASURE = 1.4  # time of extract and measure, in units of extract
FIGURES = 2  # time of an experiment's figures, in units of a stage's start
DVC_CALLS = 2  # calls of DVC in a sweep, each of which takes as long as `dvc status`


@dataclass(frozen=True)
class Planned:
    """Holds a batch of runs with its expected memory and time.

    done: epochs done before. memory: of all its runs, in bytes. seconds: of one epoch of the batch, measured
    while no other batch trains; without a measurement, one per run.
    """

    fingerprints: Batch
    done: int
    memory: int
    seconds: float

    @property
    def epochs(self) -> int:
        """Return the number of epochs left."""
        return self.fingerprints[0].run.spec.epochs - self.done

    @property
    def spent(self) -> float:
        """Return the seconds of the epochs done, at the measured rate."""
        return self.seconds * self.done

    @property
    def total(self) -> float:
        """Return the seconds left."""
        return self.seconds * self.epochs


def plan(group: Batch, device: torch.device, workers: int, parts: int, timed: bool) -> list[Planned]:
    """Split the runs of one shape into at least `parts` batches that fit into memory.

    timed: whether to measure the seconds of an epoch.
    """
    batches, need = split_batch(group, device, workers, parts)
    if own_loop(group[0].run.spec):  # an epoch of it is not timed
        return [Planned(batch, epochs_done(checkpoint_of(batch[0])), 0, 1.0) for batch in batches]
    run, dtype = group[0].run, DTYPES[group[0].compute.precision]
    data = read_prepared(PREPARED / run.data)
    seconds = {
        n: _seconds(run, n, data, device, dtype) if timed else float(n)
        for n in {len(batch) for batch in batches}
    }
    done = epochs_done(checkpoint_of(group[0]))
    return [Planned(batch, done, need * len(batch), seconds[len(batch)]) for batch in batches]


def _seconds(run: Run, runs: int, data: Prepared, device: torch.device, dtype: torch.dtype) -> float:
    """Return `seconds_per_epoch`, of half of the runs where all of them do not fit into memory.

    Raises NotEnoughMemory if one run does not.
    """
    try:
        return seconds_per_epoch(run, runs, data, device, dtype)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise  # otherwise leave the block, because the error keeps the frame's memory alive
    if runs == 1:
        raise NotEnoughMemory(f"{run.name}: one run does not fit on {device}; make {LEVERS} smaller")
    half = runs // 2
    return _seconds(run, half, data, device, dtype) * runs / half


def plan_all(
    missing: Sequence[RunFingerprint],
    device: torch.device,
    workers: int,
    keep_going: bool,
    timed: bool = True,
) -> tuple[list[Planned], list[InputError]]:
    """Return all batches, the longest first so that workers end at similar times, and the errors.

    Unless keep_going, the first error is raised.
    """
    planned: list[Planned] = []
    failed = []
    shapes = groups(missing)
    parts = parts_of_each(shapes, workers, device)
    for group in shapes:
        try:
            with study_errors():
                planned += plan(group, device, workers, parts, timed)
        except InputError as error:
            if not keep_going:
                raise
            say(f"ncpipe: {error}")
            failed.append(error)
    return sorted(planned, key=lambda batch: -batch.total), failed


def headline(planned: Sequence[Planned], workers: int, device: str) -> str:
    """Return one line with the number of runs and batches and their expected time."""
    if not planned:
        return "nothing to train"
    runs = plural(sum(len(batch.fingerprints) for batch in planned), "run")
    text = f"{runs} to train in {plural(len(planned), 'batch')} on {device}, {workers} at a time"
    if any(own_loop(batch.fingerprints[0].run.spec) for batch in planned):  # of which nothing is known
        return text
    return f"{text}: about {duration(train_seconds(planned, workers))}"


def train_seconds(planned: Sequence[Planned], workers: int) -> float:
    """Return the seconds until all batches are trained."""
    longest = max((batch.total for batch in planned), default=0.0)
    return max(longest, sum(batch.total for batch in planned) / workers)


def rest_seconds(
    remeasured: Mapping[str, Sequence[Run]],
    experiments: int,
    device: torch.device,
    start: float,
    status: float,
) -> float:
    """Return the seconds of a sweep without training: DVC, features, metrics, tables and figures.

    remeasured: runs by experiment, of the experiments that are measured again.
    experiments: number of experiments in the figures.
    start, status: seconds that a stage takes to start, and `dvc status` to answer, on this machine.
    """
    stages = 2 * len(remeasured) + 5  # extract and measure; fill, aggregate, plot, claims, report
    known = [runs for runs in remeasured.values() if not own_loop(runs[0].spec)]
    measuring = sum(MEASURE * _extract_seconds(runs, device) for runs in known)
    return DVC_CALLS * status + (stages + FIGURES * experiments) * start + measuring


def _extract_seconds(runs: Sequence[Run], device: torch.device) -> float:
    """Return the seconds of `extract` for all runs of an experiment, timed on a run of middle depth."""
    run = sorted(runs, key=lambda run: run.depth)[len(runs) // 2]
    data = read_prepared(PREPARED / run.data)
    network = build_network(run, data)
    start = time.perf_counter()
    try:
        extract(run, network.state_dict(), data, device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        say(f"{run.name}: its features do not fit on {device}; their time is left out")
        return 0.0
    return (time.perf_counter() - start) / run.depth * sum(other.depth for other in runs)
