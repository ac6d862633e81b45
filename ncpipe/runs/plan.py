"""What a sweep has left to do: batches, with the memory and the time that they take, and the rest."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ncpipe.config.specs import Run
from ncpipe.config.study import own_mistakes
from ncpipe.datasets.prepared import read_prepared
from ncpipe.features.passes import extract
from ncpipe.models.build import build_network
from ncpipe.runs.batches import Batch, batches_that_fit, groups, parts_of_each
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.store import checkpoint_of
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.console import duration, say
from ncpipe.system.errors import InputError
from ncpipe.training.checkpoints import epochs_done
from ncpipe.training.cost import bytes_per_run, check_memory, seconds_per_epoch
from ncpipe.training.device import DTYPES

MEASURE = 1.4  # seconds of extract and measure over those of extract, of a run
FIGURES = 2  # an experiment's figures, in times that a stage takes to start
DVC_CALLS = 2  # in a sweep, each of which goes through all stages as `dvc status` does


@dataclass(frozen=True)
class Planned:
    """Runs that train together, from after `done` epochs on.

    memory: bytes, of all its runs. seconds: of one epoch of the batch, measured with one batch at a time.
    """

    fingerprints: Batch
    done: int
    memory: int
    seconds: float

    @property
    def epochs(self) -> int:
        """Those that are left."""
        return self.fingerprints[0].run.spec.epochs - self.done

    @property
    def spent(self) -> float:
        """Seconds that the epochs before the checkpoint took, at the pace of the others."""
        return self.seconds * self.done

    @property
    def total(self) -> float:
        """Seconds that are left."""
        return self.seconds * self.epochs


def plan(group: Batch, place: torch.device, workers: int, parts: int = 1) -> list[Planned]:
    """The batches of a group: at least `parts`, if it has as many runs, and as many as memory asks for."""
    run = group[0].run
    data, dtype = read_prepared(PREPARED / run.data), DTYPES[group[0].compute.precision]
    check_memory(run, data, place, dtype)
    need = bytes_per_run(run, data, place, dtype)
    batches = batches_that_fit(group, need, place, workers, parts)
    seconds = {n: seconds_per_epoch(run, n, data, place, dtype) for n in {len(b) for b in batches}}
    done = epochs_done(checkpoint_of(group[0]))
    return [Planned(batch, done, need * len(batch), seconds[len(batch)]) for batch in batches]


def plan_all(
    missing: Sequence[RunFingerprint], place: torch.device, workers: int, keep_going: bool
) -> tuple[list[Planned], list[InputError]]:
    """The batches, longest first so that no worker is left with a long one at the end; and what failed.

    Unless it is to keep going, what fails is raised.
    """
    planned: list[Planned] = []
    failed = []
    found = groups(missing)
    parts = parts_of_each(found, workers)
    for group in found:
        try:
            with own_mistakes():
                planned += plan(group, place, workers, parts)
        except InputError as error:
            if not keep_going:
                raise
            say(f"ncpipe: {error}")
            failed.append(error)
    return sorted(planned, key=lambda batch: -batch.total), failed


def headline(planned: Sequence[Planned], workers: int, place: str) -> str:
    """What is to train, and how long that takes, in a line."""
    if not planned:
        return "nothing to train"
    runs = sum(len(batch.fingerprints) for batch in planned)
    return (
        f"{runs} runs to train in {len(planned)} batches on {place}, {workers} at a time: "
        f"about {duration(train_seconds(planned, workers))}"
    )


def train_seconds(planned: Sequence[Planned], workers: int) -> float:
    """From now until all are trained."""
    longest = max((batch.total for batch in planned), default=0.0)
    return max(longest, sum(batch.total for batch in planned) / workers)


def rest_seconds(
    remade: Mapping[str, Sequence[Run]], experiments: int, place: torch.device, start: float, status: float
) -> float:
    """What a sweep takes beside training: DVC, features, metrics, tables and figures.

    remade: the experiments whose runs are measured anew, with all their runs. experiments: in the figures.
    start, status: seconds that a stage takes to start and `dvc status` to answer, as seen on this machine.
    """
    stages = 2 * len(remade) + 5  # extract and measure; fill, aggregate, plot, claims, report
    measuring = sum(MEASURE * _extract_seconds(runs, place) for runs in remade.values())
    return DVC_CALLS * status + (stages + FIGURES * experiments) * start + measuring


def _extract_seconds(runs: Sequence[Run], place: torch.device) -> float:
    """Of all runs of an experiment, from one of middle depth; layers take alike."""
    run = sorted(runs, key=lambda run: run.depth)[len(runs) // 2]
    data = read_prepared(PREPARED / run.data)
    network = build_network(run, data)
    begin = time.perf_counter()
    extract(run, network.state_dict(), data, place)
    return (time.perf_counter() - begin) / run.depth * sum(other.depth for other in runs)
