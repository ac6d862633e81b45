"""What a sweep has left to train: batches, with the memory and the time that they take."""

from dataclasses import dataclass

import torch

from ncpipe.artifacts import PREPARED
from ncpipe.commands.ahead import checkpoint_of
from ncpipe.commands.batch import Batch, batches_that_fit
from ncpipe.datasets.prepared import read_prepared
from ncpipe.training.checkpoints import epochs_done
from ncpipe.training.cost import bytes_per_run, seconds_per_epoch
from ncpipe.training.device import DTYPES


@dataclass(frozen=True)
class Planned:
    """Runs that train together, from after `done` epochs on.

    memory: bytes, of all its runs. seconds: of one epoch of the batch, measured with one batch at a time.
    """

    stamps: Batch
    done: int
    memory: int
    seconds: float

    @property
    def epochs(self) -> int:
        """Those that are left."""
        return self.stamps[0].run.spec.epochs - self.done

    @property
    def total(self) -> float:
        """Seconds that are left."""
        return self.seconds * self.epochs


def plan(group: Batch, place: torch.device, workers: int, parts: int = 1) -> list[Planned]:
    """The batches of a group: at least `parts`, if it has as many runs, and as many as memory asks for."""
    run = group[0].run
    data, dtype = read_prepared(PREPARED / run.experiment), DTYPES[group[0].compute.precision]
    need = bytes_per_run(run, data, place, dtype)
    batches = batches_that_fit(group, need, place, workers, parts)
    seconds = {n: seconds_per_epoch(run, n, data, place, dtype) for n in {len(b) for b in batches}}
    done = epochs_done(checkpoint_of(group[0]))
    return [Planned(batch, done, need * len(batch), seconds[len(batch)]) for batch in batches]
