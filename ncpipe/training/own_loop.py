"""Train a network by a loop of study.py: what the loop is given, and what it leaves behind.

An entry of the table TRAININGS is a `Training`. One loop runs at a time in a process, because it may draw
from global generators, which are the seed's.
"""

import contextlib
import io
import itertools
import math
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ncpipe.config.run import Run
from ncpipe.config.study import call, mistake_of, study_errors
from ncpipe.config.study_files import LOOP
from ncpipe.config.study_reads import called_by
from ncpipe.models.hook_points import Select, matches, with_article
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import generator_states, global_generators, set_generator_states
from ncpipe.training.checkpoints import Checkpoints, State, Stopped
from ncpipe.training.session import HistoryRow, Trained


@dataclass(frozen=True)
class Training:
    """The functions of a training loop; spec is what params.yaml has below `training`.

    build: build(spec, depth) returns the network, a module. loaders: loaders(spec, seed) returns (train,
    measured), and test and ood where there are such, see `ncpipe.datasets.own_loaders`. train: train(model,
    spec, seed, device, log) trains the network, which is on the device, in place; log is a `Log`.
    select: what makes vectors (n, d) of the classifier's inputs, as in `ncpipe.measure_model`. layers: what
    makes them of the outputs of layers, by their names in `measure.layers`, in which * is any part.
    """

    build: Callable[..., Any]
    loaders: Callable[..., Any]
    train: Callable[..., Any]
    select: Select | None = None
    layers: Mapping[str, Select] = field(default_factory=dict)

    def __post_init__(self) -> None:
        selects = self.layers.values() if isinstance(self.layers, Mapping) else (None,)
        if not (self.select is None or callable(self.select)) or not all(map(callable, selects)):
            raise TypeError("select is a function of (values, inputs), layers a dict of such by names")

    def select_of(self, layer: str) -> Select | None:
        """Return what makes vectors of the outputs of a layer of `measure.layers`; None if nothing has to."""
        return next((select for name, select in self.layers.items() if matches(layer, name)), None)


class _Diverged(Exception):
    """Ends a loop whose loss is not finite."""


class Log:
    """What a loop tells of itself: a row after each epoch, and what it needs to continue from there."""

    def __init__(
        self,
        model: nn.Module,
        run: Run,
        checkpoints: Checkpoints | None = None,
        on_epoch: Callable[[int, float], None] = lambda epoch, loss: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.model, self.run = model, run
        self.rows: list[HistoryRow] = []
        self.snapshots: dict[int, dict[str, Tensor]] = {}
        self.finite = _state_of(model)  # the last weights whose loss was finite
        self._keep(0)
        self._checkpoints, self._on_epoch, self._stop = checkpoints, on_epoch, stop
        self._continues = False  # whether the loop has kept its state since the last row
        self._tried = False  # whether what it keeps can be read back
        self._saved = checkpoints.read() if checkpoints else []
        for saved in self._saved:
            self.rows = [HistoryRow(*row) for row in saved["rows"]]
            self.snapshots, self.finite = saved["snapshots"], saved["finite"]

    def __call__(
        self,
        epoch: int,
        *,
        loss: float | Tensor,
        train_error: float | Tensor,
        test_error: float | Tensor = math.nan,
        learning_rate: float | Tensor = math.nan,
    ) -> None:
        """Add a row to the history after each epoch, 1, 2, ...; errors are shares of wrong predictions."""
        last, most = self.epoch, self.run.spec.epochs
        if not last < epoch <= most:
            raise InputError(
                f"{self.run.name}: the loop logs epoch {epoch} after {last}, of {most}; count on from "
                "log.epoch, which is 0 without a checkpoint"
            )
        if skipped := [kept for kept in self.run.spec.snapshot_epochs() if last < kept < epoch]:
            raise InputError(
                f"{self.run.name}: the loop logs epoch {epoch} after {last}, and experiments."
                f"{self.run.experiment}.history asks for epoch {skipped[0]}; log every epoch"
            )
        numbers = map(float, (loss, math.nan, math.nan, train_error, test_error, learning_rate))
        row = HistoryRow(int(epoch), *numbers)
        if not (math.isfinite(row.loss) and math.isfinite(row.train_error)):
            raise _Diverged(epoch)
        state = _state_of(self.model)
        if not _is_finite(state):
            raise _Diverged(epoch)
        self.rows.append(row)
        self.finite = state
        self._keep(row.epoch)
        self._on_epoch(row.epoch, row.loss)
        if self._stop() and not self._continues:
            raise Stopped
        self._continues = False

    @property
    def epoch(self) -> int:
        """The last epoch with a row, 0 before the first."""
        return self.rows[-1].epoch if self.rows else 0

    def checkpoint(self, state: Any) -> None:
        """Keep what the loop needs to continue after the last row; written at most every minute.

        state: tensors, numbers and text, and lists and mappings of these, as state_dict() returns.
        """
        if not self._tried:
            _check_readable(self.run, state)
            self._tried = True
        self._continues = True
        if self._checkpoints is None:
            return
        stop = self._stop()
        if stop or self._checkpoints.due():
            saved: State = {
                "epoch": self.epoch,
                "own": state,
                "rows": [list(vars(row).values()) for row in self.rows],
                "snapshots": self.snapshots,
                "finite": self.finite,
                "generators": generator_states(),
            }
            self._checkpoints.write([saved])
            if stop:
                raise Stopped

    def resume(self) -> Any:
        """Return the state of the last checkpoint, None without one; global generators continue from there.

        Call it when everything is built, just before the first epoch.
        """
        if not self._saved:
            return None
        saved = self._saved[0]
        set_generator_states(saved["generators"])
        return saved["own"]

    def _keep(self, epoch: int) -> None:
        if epoch in self.run.spec.snapshot_epochs():
            self.snapshots[epoch] = _state_of(self.model)


def build_own(run: Run) -> nn.Module:
    """Return the network of a run before training, drawn from global generators if it draws at random."""
    keys = run.spec.training
    build = keys.study_entry.build
    model = call(build, keys, run.depth)
    if not isinstance(model, nn.Module):
        raise mistake_of(build, f"gives {with_article(type(model).__name__)}; return a module")
    return model


def train_own(
    run: Run,
    device: torch.device,
    checkpoints: Checkpoints | None = None,
    on_epoch: Callable[[int, float], None] = lambda epoch, loss: None,
    stop: Callable[[], bool] = lambda: False,
    model: nn.Module | None = None,
) -> Trained:
    """Train the network of a run by its loop, from its seed or from its checkpoint.

    on_epoch: called with the epoch and the loss of each row. model: the network, on the device, in place of a
    new one of `build`. Raises Stopped when stop() is true: at the next checkpoint of the loop, or at the next
    row if it writes none. Raises InputError, which names the line, if the loop fails, returns something, or
    logs nothing. A loop that stops before its last epoch leaves its last weights as those of later epochs.
    """
    keys, diverged = run.spec.training, None
    train = keys.study_entry.train
    with global_generators(run.seed, "training"):
        if device.type == "cuda":
            torch.cuda.manual_seed(torch.initial_seed())
        if model is None:
            model = build_own(run).to(device)
        log = Log(model, run, checkpoints, on_epoch, stop)
        with called_by(LOOP), study_errors():
            returned: Any = None
            stopped: Stopped | None = None
            try:
                returned = train(model, keys, run.seed, device, log)
            except _Diverged as error:
                diverged = int(error.args[0])
            except Stopped as error:  # not an error of study.py, through which it comes
                stopped = error
    if stopped is not None:
        raise stopped
    if returned is not None and returned is not model:
        kind = type(returned).__name__
        kind = "another module" if isinstance(returned, nn.Module) else with_article(kind)
        raise mistake_of(train, f"returns {kind}; train the module that it gets, in place")
    if diverged is None and not log.rows:
        raise mistake_of(train, "logs no epoch; call log(epoch, loss=..., train_error=...) after each")
    state = log.finite if diverged is not None else _state_of(model)
    if not _is_finite(state):
        diverged, state = log.epoch, log.finite
    if diverged is None:
        later = [epoch for epoch in run.spec.snapshot_epochs() if epoch > log.epoch]
        log.snapshots.update(dict.fromkeys(later, state))
    return Trained(run, state, tuple(log.rows), diverged, log.snapshots)


@contextlib.contextmanager
def few_batches(most: int) -> Iterator[None]:
    """End each pass through a DataLoader in the block after some batches: for a trial of a loop."""
    iterate: Any = DataLoader.__iter__
    loader: Any = DataLoader
    loader.__iter__ = lambda self: itertools.islice(iterate(self), most)
    try:
        yield
    finally:
        loader.__iter__ = iterate


def _check_readable(run: Run, state: Any) -> None:
    """Raise InputError if what a loop keeps to continue from could not be read back after a stop."""
    kept = io.BytesIO()
    torch.save(state, kept)
    kept.seek(0)
    try:
        torch.load(kept, weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        what = f"an object of {found[1]}" if found else "an object"
        raise InputError(
            f"{run.name}: the loop gives log.checkpoint {what}, which is not read back; give its state_dict()"
        ) from None


def _state_of(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of a module's weights and buffers on the CPU, each with memory of its own."""
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise InputError(f"{name} of the network's state_dict() is no tensor, so it cannot be stored")
    return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in state.items()}


def _is_finite(state: dict[str, Tensor]) -> bool:
    return all(bool(value.isfinite().all()) for value in state.values() if value.is_floating_point())
