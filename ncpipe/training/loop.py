"""Train runs of one shape side by side, from their seeds, given weights or checkpoints.

`ncpipe.training.session` holds their state; `ncpipe.runs.batches` decides which runs train together.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ncpipe.config.run import Run
from ncpipe.config.study import call, mistake_of
from ncpipe.datasets.prepared import Prepared
from ncpipe.models.build import build_uninitialised_network
from ncpipe.system.errors import InputError
from ncpipe.training.checkpoints import Checkpoints, Stopped
from ncpipe.training.cuda_graph import own_stream
from ncpipe.training.device import DTYPES
from ncpipe.training.session import Session, Trained


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
    """Train runs that differ only in their seed and in numbers that leave shapes and steps equal.

    Of an optimizer that is `OneAtATime` there is one run.
    A run's result depends neither on the other runs nor on whether it resumed from `checkpoints`: bit for bit
    on the CPU, to rounding on a GPU. on_epoch: called with the number of finished epochs and a function that
    returns the last logged loss; it must not keep that function. starts: initial weights by name, in place of
    random ones. Raises Stopped, after a last checkpoint, when stop() is true at the end of an epoch.
    """

    def trained() -> list[Trained]:
        """Train in a frame of its own, the only one that holds the session: see CudaGraphStep."""
        session = Session(runs, data, device, DTYPES[precision])
        if starts:
            session.load_weights(starts)
        spec = runs[0].spec
        if checkpoints and (saved := checkpoints.read()):
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
            on_epoch(epoch, session.last_loss)
        return session.results()

    with own_stream(device):
        return trained()


def starts_of(runs: Sequence[Run], data: Prepared) -> list[Mapping[str, Tensor]] | None:
    """Return the initial weights of runs that start from given ones; None if they start from random ones.

    Raises InputError if the function of study.py gives other names or shapes than the network has.
    """
    if runs[0].spec.start is None:
        return None
    if (function := runs[0].study.starts.get(runs[0].spec.start)) is None:  # of `make_run`
        start = runs[0].spec.start
        raise InputError(f"{runs[0].name}: no study has the start {start!r}; take a run of load_params()")
    shapes = {
        name: tuple(value.shape)
        for name, value in build_uninitialised_network(runs[0], data).named_parameters()
    }
    starts = []
    for run in runs:
        weights = call(function, run, data)
        if not isinstance(weights, Mapping):
            problem = f"gives {type(weights).__name__} for {run.name}; return tensors by name"
            raise mistake_of(function, problem)
        for name, shape in shapes.items():
            given = tuple(value.shape) if isinstance(value := weights.get(name), Tensor) else "nothing"
            if given != shape:
                raise mistake_of(function, f"gives {given} for {name} of {run.name}; expected {shape}")
        starts.append(weights)
    return starts
