"""Put the runs of a finished batch into the store."""

import functools
import math
from collections.abc import Sequence

import torch

from ncpipe.config.reading import at_start
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.run_folder import write_run
from ncpipe.runs.store import stored, write_beside
from ncpipe.training.checkpoints import Checkpoints
from ncpipe.training.device import name_of
from ncpipe.training.session import Trained


def store_results(
    fingerprints: Sequence[RunFingerprint],
    results: Sequence[Trained],
    device: torch.device,
    checkpoints: Checkpoints,
) -> list[str]:
    """Store runs that trained together and remove their checkpoints; return a line on how each ended.

    Raises InputError, and stores nothing, if a file that the study's code may read has changed meanwhile.
    """
    at_start().check()
    for fingerprint, trained in zip(fingerprints, results, strict=True):
        write = functools.partial(write_run, trained=trained, fingerprint=fingerprint, device=name_of(device))
        write_beside(stored(fingerprint.key()), write)
    checkpoints.remove()
    return [_outcome(trained) for trained in results]


def _outcome(trained: Trained) -> str:
    if trained.diverged_at is not None:
        return (
            f"  {trained.run.name}: diverged at epoch {trained.diverged_at}; stored with its last finite "
            "weights as not converged"
        )
    end = trained.history[-1]
    line = f"  {trained.run.name}: loss {end.loss:.6g}, train error {end.train_error:.3g}"
    return line if math.isnan(end.test_error) else f"{line}, test error {end.test_error:.3g}"
