"""Plan what trains: batches that fit into memory, and for `ncpipe sweep --dry-run` the time they take."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ncpipe.config.experiment import own_loop
from ncpipe.config.run import Run
from ncpipe.config.study import study_errors
from ncpipe.datasets.prepared import Prepared, read_prepared
from ncpipe.runs.batches import Batch, groups, one_run_does_not_fit, parts_of_each, split_batch
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.store import checkpoint_of
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.console import plural, say
from ncpipe.system.errors import InputError
from ncpipe.training.checkpoints import epochs_done
from ncpipe.training.cost import seconds_per_epoch
from ncpipe.training.device import DTYPES, is_out_of_memory

BATCHES_PER_SLOT = 2  # so that few workers are idle while the last batches end


@dataclass(frozen=True)
class Planned:
    """Holds a batch of runs.

    done: epochs done before. memory: of all its runs, in bytes. work_per_epoch: of one run, layers x samples.
    """

    fingerprints: Batch
    done: int
    memory: int
    work_per_epoch: int

    @property
    def epochs(self) -> int:
        """Return the number of epochs left."""
        return self.fingerprints[0].run.spec.epochs - self.done

    @property
    def work_done(self) -> int:
        return self.done * self.work_per_epoch * len(self.fingerprints)

    @property
    def work_left(self) -> int:
        return self.epochs * self.work_per_epoch * len(self.fingerprints)


def plan(
    missing: Sequence[RunFingerprint],
    device: torch.device,
    workers: int,
    keep_going: bool,
    slots: int | None = None,
) -> tuple[list[Planned], dict[str, InputError]]:
    """Return all batches, those with most work first so that workers end at similar times, and the errors.

    Errors are by the runs' fingerprints; unless keep_going, the first one is raised. slots: workers of all
    machines that share these runs, if there are others than this one.
    """
    planned: list[Planned] = []
    failed: dict[str, InputError] = {}
    shapes = groups(missing)
    parts = parts_of_each(shapes, workers, device)
    if slots is not None and shapes:
        parts = -(-BATCHES_PER_SLOT * slots // len(shapes))
    for group in shapes:
        try:
            with study_errors():
                planned += _plan_shape(group, device, workers, parts)
        except InputError as error:
            if not keep_going:
                raise
            say(f"ncpipe: {error}")
            failed |= {fingerprint.key(): error for fingerprint in group}
    return sorted(planned, key=lambda batch: -batch.work_left), failed


def _plan_shape(group: Batch, device: torch.device, workers: int, parts: int) -> list[Planned]:
    batches, need = split_batch(group, device, workers, parts)
    if own_loop(group[0].run.spec):  # nothing is known of its work
        return [Planned(batch, epochs_done(checkpoint_of(batch[0])), 0, 1) for batch in batches]
    run, done = group[0].run, epochs_done(checkpoint_of(group[0]))
    work = run.depth * len(read_prepared(PREPARED / run.data).train)
    return [Planned(batch, done, need * len(batch), work) for batch in batches]


def headline(planned: Sequence[Planned], workers: int, device: str) -> str:
    """Return in one line how many runs and batches train."""
    runs = plural(sum(len(batch.fingerprints) for batch in planned), "run")
    return f"{runs} to train in {plural(len(planned), 'batch')} on {device}, {workers} at a time"


def seconds_of(batch: Planned, device: torch.device) -> float:
    """Return the seconds that a batch takes while no other one trains, by timing an epoch.

    NaN of an own loop, of which nothing is known before it runs.
    """
    run, dtype = batch.fingerprints[0].run, DTYPES[batch.fingerprints[0].compute.precision]
    if own_loop(run.spec):
        return math.nan
    data = read_prepared(PREPARED / run.data)
    return batch.epochs * _epoch_seconds(run, len(batch.fingerprints), data, device, dtype)


def _epoch_seconds(run: Run, runs: int, data: Prepared, device: torch.device, dtype: torch.dtype) -> float:
    """Return `seconds_per_epoch`, of half of the runs where all of them do not fit into memory.

    Raises NotEnoughMemory if one run does not.
    """
    try:
        return seconds_per_epoch(run, runs, data, device, dtype)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise  # otherwise leave the block, because the error keeps the frame's memory alive
    if runs == 1:
        raise one_run_does_not_fit(run, device)
    half = runs // 2
    return _epoch_seconds(run, half, data, device, dtype) * runs / half
