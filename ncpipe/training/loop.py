"""Training of runs of one shape side by side, from their seeds or from where they were saved."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ncpipe.config.specs import Lbfgs, Run, TorchOptimizer
from ncpipe.datasets.prepared import Prepared
from ncpipe.training.checkpoints import Checkpoints
from ncpipe.training.device import DTYPES
from ncpipe.training.session import Session, Trained


class Stopped(Exception):
    """Training ended early because it was asked to; its checkpoints are written."""


def train_batch(
    runs: Sequence[Run],
    data: Prepared,
    device: torch.device,
    precision: str,
    on_epoch: Callable[[int, Callable[[], float]], None] = lambda epoch, loss: None,
    checkpoints: Checkpoints | None = None,
    stop: Callable[[], bool] = lambda: False,
    starts: Sequence[Mapping[str, Tensor]] | None = None,
) -> list[Trained]:
    """Train runs that differ in nothing but their seed and numbers that leave shapes and steps equal.

    What a run ends with depends neither on the others nor on having been stopped and taken up again from
    `checkpoints`: bit for bit on the CPU, to rounding on a GPU. on_epoch is called with the number of
    epochs done and a function that gives the last logged loss, which it must not keep. starts: weights to
    begin with, by name, in place of drawn ones. Raises Stopped, after a last checkpoint, once stop() holds
    at the end of an epoch.
    """
    if isinstance(runs[0].spec.optimizer, Lbfgs | TorchOptimizer) and len(runs) > 1:  # each on its own
        own = [checkpoints and checkpoints.of(index) for index in range(len(runs))]
        first = [starts and starts[index : index + 1] for index in range(len(runs))]
        return [
            train_batch([run], data, device, precision, on_epoch, files, stop, start)[0]
            for run, files, start in zip(runs, own, first, strict=True)
        ]
    session = Session(runs, data, device, DTYPES[precision])
    if starts:
        session.begin_with(starts)
    spec = runs[0].spec
    saved = checkpoints.read() if checkpoints else []
    if saved:
        session.restore(saved)
    snapshots = spec.snapshot_epochs()
    for epoch in session.epochs():
        logged = epoch % spec.log_every == 0 or epoch == spec.epochs or epoch in snapshots
        if logged and not session.is_recorded():
            session.record()
            if epoch in snapshots:
                session.take_snapshot()
        stopped = stop()
        if checkpoints and (stopped or checkpoints.due()):
            checkpoints.write(session.states())
        if stopped:
            raise Stopped
        on_epoch(epoch, lambda: _last_loss(session))
    return session.results()


def _last_loss(session: Session) -> float:
    """Mean of the last logged regularised losses of the runs that train; NaN if none does."""
    _, row, alive = session.rows[-1]
    return float(row[0][alive].mean())
