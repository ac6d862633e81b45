"""Plan what trains: batches that fit into memory, those with most work first."""

from collections.abc import Sequence

import torch

from ncpipe.config.study import study_errors
from ncpipe.runs.batches import Batch, groups, parts_of_each, split_batch, work_per_epoch
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.store import saved_epochs
from ncpipe.system.console import say
from ncpipe.system.errors import InputError

BATCHES_PER_WORKER = 2  # of several jobs, so that few are idle while the last batches end


def plan(
    missing: Sequence[RunFingerprint],
    device: torch.device,
    workers: int,
    keep_going: bool,
    jobs: int | None = None,
) -> tuple[list[Batch], dict[str, InputError]]:
    """Return all batches, those with most work first so that workers end at similar times, and the errors.

    Errors are by the runs' fingerprints; unless keep_going, the first one is raised. jobs: processes that
    share these runs, if they are started together, each with as many workers.
    """
    planned: list[Batch] = []
    failed: dict[str, InputError] = {}
    shapes = groups(missing)
    parts = parts_of_each(shapes, workers, device)
    if jobs is not None:
        parts = -(-BATCHES_PER_WORKER * jobs * workers // max(1, len(shapes)))
    for group in shapes:
        try:
            with study_errors():
                planned += split_batch(group, device, workers, parts)
        except InputError as error:
            if not keep_going:
                raise
            say(f"ncpipe: {error}")
            failed |= {fingerprint.key(): error for fingerprint in group}
    return sorted(planned, key=lambda batch: -work_of(batch)[1]), failed


def work_of(batch: Batch) -> tuple[int, int]:
    """Return the work of a batch that is done, by its checkpoints, and that is left."""
    done = sum(saved_epochs(fingerprint) * work_per_epoch(fingerprint) for fingerprint in batch)
    whole = sum(fingerprint.run.spec.epochs * work_per_epoch(fingerprint) for fingerprint in batch)
    return done, whole - done
