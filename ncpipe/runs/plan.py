"""Plan what trains: batches that fit into memory, those with most work first."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ncpipe.config.study import study_errors
from ncpipe.datasets.prepared import read_prepared
from ncpipe.runs.batches import Batch, groups, parts_of_each, split_batch
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.store import checkpoint_of
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.console import say
from ncpipe.system.errors import InputError
from ncpipe.training.checkpoints import epochs_done

BATCHES_PER_WORKER = 2  # of several jobs, so that few are idle while the last batches end


@dataclass(frozen=True)
class Planned:
    """Holds a batch of runs. done: epochs done before. work_per_epoch: of one run, layers x samples."""

    fingerprints: Batch
    done: int
    work_per_epoch: int

    @property
    def keys(self) -> list[str]:
        return [fingerprint.key() for fingerprint in self.fingerprints]

    @property
    def work_done(self) -> int:
        return self.done * self.work_per_epoch * len(self.fingerprints)

    @property
    def work_left(self) -> int:
        epochs = self.fingerprints[0].run.spec.epochs - self.done
        return epochs * self.work_per_epoch * len(self.fingerprints)


def plan(
    missing: Sequence[RunFingerprint],
    device: torch.device,
    workers: int,
    keep_going: bool,
    jobs: int | None = None,
) -> tuple[list[Planned], dict[str, InputError]]:
    """Return all batches, those with most work first so that workers end at similar times, and the errors.

    Errors are by the runs' fingerprints; unless keep_going, the first one is raised. jobs: processes that
    share these runs, if they are started together, each with as many workers.
    """
    planned: list[Planned] = []
    failed: dict[str, InputError] = {}
    shapes = groups(missing)
    parts = parts_of_each(shapes, workers, device)
    if jobs is not None:
        parts = -(-BATCHES_PER_WORKER * jobs * workers // max(1, len(shapes)))
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
    run, done = group[0].run, epochs_done(checkpoint_of(group[0]))
    batches = split_batch(group, device, workers, parts)
    # Of an own loop nothing is known before it runs.
    work = 1 if run.spec.training else run.depth * len(read_prepared(PREPARED / run.data).train)
    return [Planned(batch, done, work) for batch in batches]
