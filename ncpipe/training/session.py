"""Train runs of one shape, epoch by epoch, and keep what is left of it: history, snapshots, checkpoints.

`ncpipe.training.loop` drives it; `ncpipe.training.state` is what trains, `descent` and `line_search` move it.

S  runs
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ncpipe.config.loss_specs import SupCon
from ncpipe.config.optimizer_specs import Lbfgs
from ncpipe.config.run import Run
from ncpipe.config.specs import OwnOptimizer
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.training.checkpoints import State
from ncpipe.training.derived_state import refresh_bn_statistics, set_nearest_means
from ncpipe.training.descent import Descent
from ncpipe.training.line_search import LineSearch
from ncpipe.training.muon import muon_state
from ncpipe.training.objective import compares_samples, concatenate, fit_times_samples, penalty
from ncpipe.training.optimizers import AdamState, ByRun, LionState, SgdState
from ncpipe.training.state import TrainingState
from ncpipe.training.torch_optimizers import TorchState

# The state of an optimizer's steps, by its name in params.yaml; `lbfgs` takes steps of another kind.
METHODS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "sgd": SgdState,
        "adam": AdamState,
        "adamw": AdamState,
        "lion": LionState,
        "sign_sgd": LionState,
        "muon": muon_state,
        "torch": TorchState,
    }
)


@dataclass(frozen=True)
class HistoryRow:
    """One row of a run's history, after `epoch` epochs; learning_rate is that of the next step.

    test_error is NaN without a test split; both errors are NaN where the targets are vectors.
    """

    epoch: int
    loss: float
    fit: float
    penalty: float
    train_error: float
    test_error: float
    learning_rate: float


@dataclass(frozen=True)
class Trained:
    """A trained run: its weights by name (CPU), its history, and the epoch it diverged in, or None.

    A diverged run holds the last weights whose regularised loss was finite. snapshots: weights
    during training, by epoch.
    """

    run: Run
    state: dict[str, Tensor]
    history: tuple[HistoryRow, ...]
    diverged_at: int | None
    snapshots: dict[int, dict[str, Tensor]] = field(default_factory=dict)


class Session(TrainingState):
    """S runs in training, and their record. Between epochs each run's state can be saved and restored."""

    def __init__(self, runs: Sequence[Run], data: Prepared, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(runs, data, device, dtype)
        self.rows: list[tuple[int, Tensor, Tensor]] = []
        self.snapshots: list[dict[int, dict[str, Tensor]]] = [{} for _ in runs]
        self.method = steps_of(self)

    def epochs(self) -> Iterator[int]:
        """Train; yield the number of epochs done before the first and after each one."""
        yield self.epochs_done
        while self.epochs_done < self.spec.epochs:
            self.epoch.fill_(self.epochs_done + 1)
            self.method.epoch(self)
            self.epochs_done += 1
            yield self.epochs_done

    @torch.no_grad()
    def record(self) -> None:
        """Add a row to the history of every run that is still training."""
        self.refresh_derived_state()
        train_loss, train_error, of_features = self.evaluate(self.train)
        test_error = torch.full_like(train_error, math.nan)
        if self.test is not None:
            _, test_error, _ = self.evaluate(self.test)
        penalties = penalty(self.stack.values, self.strengths) + of_features
        loss = train_loss + penalties
        rates = loss.new_tensor(self.rates_at(self.epochs_done * self.steps_per_epoch))
        rates.clamp_(max=torch.finfo(rates.dtype).max)  # a larger one ends the run, but JSON has no inf
        self.drop_diverged(loss)
        row = torch.stack([loss, train_loss, penalties, train_error, test_error, rates])
        self.rows.append((self.epochs_done, row, self.alive.clone()))
        self.stack.train(True)

    def take_snapshot(self) -> None:
        """Store the present weights of every run that is still training."""
        for index in self.alive.nonzero().flatten().tolist():
            self.snapshots[index][self.epochs_done] = self.stack.state_of(index)

    def is_recorded(self) -> bool:
        """Return whether the history has a row of the present state already, as after a restore."""
        return bool(self.rows) and self.rows[-1][0] == self.epochs_done

    def last_loss(self) -> float:
        """Return the mean of the last logged losses of the runs that still train; NaN if none does."""
        _, row, alive = self.rows[-1]
        return float(row[0][alive].mean())

    def refresh_derived_state(self) -> None:
        """Recompute what follows from the whole training set: batch norm's statistics, nearest means.

        Leaves the stack in evaluation mode.
        """
        self.stack.step = f"after {self.epochs_done} epochs"
        refresh_bn_statistics(self.stack, self.train, self.chunk)
        if isinstance(self.spec.loss, SupCon):
            set_nearest_means(self.stack, self.train, self.chunk)

    def evaluate(self, samples: Split) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean loss without penalty, share of wrong predictions and penalty of features, all (S,).

        A loss that compares samples is NaN on samples other than the training set. The share is NaN where the
        targets are vectors; of tags all have to be above all others.
        """
        loss = error = squares = torch.zeros((), dtype=self.finite.dtype, device=self.finite.device)
        compares, compared = compares_samples(self.spec.loss), []
        for part in samples.parts(min(self.chunk, self.at_a_time)):
            outputs = self.outputs(part)
            if compares:
                compared.append(outputs)
            else:
                loss = loss + fit_times_samples(outputs, self.spec.loss)
            error = error + part.misses(outputs.logits).sum(1)
            squares = squares + self.penalised_squares(outputs)
        if compares and samples is self.train:
            loss = fit_times_samples(concatenate(compared), self.spec.loss)
        elif compares:
            loss = error * math.nan
        of_features = self.penalty_of_features(squares, samples)
        return loss / samples.predictions, error / samples.predictions, of_features

    def _moving(self) -> dict[str, Tensor]:
        """Return the buffers (S, P) that each step changes; a study names its optimizer's as it likes."""
        of_method = {f"optimizer {name}": buffer for name, buffer in self.method.buffers().items()}
        return {"values": self.stack.values, "finite": self.finite} | of_method

    def states(self) -> list[State]:
        """Return for every run the state that its remaining epochs and its result depend on."""
        moving = {name: buffer.cpu() for name, buffer in self._moving().items()}
        rows = [(epoch, row.cpu(), alive.cpu()) for epoch, row, alive in self.rows]
        return [
            {
                "epoch": self.epochs_done,
                "moving": {name: buffer[index].clone() for name, buffer in moving.items()},
                "alive": bool(self.alive[index]),
                "diverged_at": int(self.diverged_at[index]),
                "order": self.orders[index].get_state(),
                "augmentation": self.moves[index].get_state(),
                "buffers": {name: buffer[index].cpu().clone() for name, buffer in self.stack.buffers.items()},
                "rows": [(epoch, row[:, index].clone(), bool(alive[index])) for epoch, row, alive in rows],
                "snapshots": self.snapshots[index],
                "search": self.method.state_dict(),
            }
            for index in range(len(self.runs))
        ]

    def restore(self, states: Sequence[State]) -> None:
        """Restore the states of all runs, saved after the same number of epochs."""
        self.epochs_done = states[0]["epoch"]
        for index, state in enumerate(states):
            for name, buffer in self._moving().items():
                buffer[index].copy_(state["moving"][name])
            self.alive[index] = state["alive"]
            self.diverged_at[index] = state["diverged_at"]
            self.orders[index].set_state(state["order"])
            self.moves[index].set_state(state["augmentation"])
            for name, buffer in self.stack.buffers.items():
                buffer[index].copy_(state["buffers"][name])
            self.snapshots[index] = state["snapshots"]
            self.method.load_state_dict(state["search"])
        device = self.alive.device
        for rows in zip(*(state["rows"] for state in states), strict=True):
            alive = torch.tensor([row[2] for row in rows], device=device)
            self.rows.append((rows[0][0], torch.stack([row[1] for row in rows], 1).to(device), alive))

    def results(self) -> list[Trained]:
        """Return the trained runs."""
        self.refresh_derived_state()
        history = [(epoch, row.T.tolist(), alive.tolist()) for epoch, row, alive in self.rows]
        return [
            Trained(
                run,
                self.stack.state_of(index),
                tuple(HistoryRow(epoch, *rows[index]) for epoch, rows, alive in history if alive[index]),
                None if diverged < 0 else diverged,
                self.snapshots[index],
            )
            for index, (run, diverged) in enumerate(zip(self.runs, self.diverged_at.tolist(), strict=True))
        ]


def steps_of(session: TrainingState) -> Descent | LineSearch:
    """Return the steps of the runs' optimizer, which may be one of study.py."""
    optimizer = session.spec.optimizer
    if isinstance(optimizer, OwnOptimizer):
        seeds = [run.seed for run in session.runs]
        return Descent(session, functools.partial(ByRun, optimizer.study_entry, seeds=seeds))
    if isinstance(optimizer, Lbfgs):
        return LineSearch(session)
    return Descent(session, METHODS[optimizer.name])
