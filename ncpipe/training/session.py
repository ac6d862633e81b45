"""Hold the state of a stack while it trains: rows of the history, contents of a checkpoint.

`ncpipe.training.loop` drives it; `ncpipe.training.stack` is the networks, `objective` their loss and `steps`
what moves them.

S  runs    P  numbers per run    B  samples of a batch    N  training samples
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ncpipe.config.experiment import Experiment
from ncpipe.config.loss_specs import SupCon
from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.models.build import build_network, input_shape, prepare_split
from ncpipe.models.inputs import width_of
from ncpipe.models.network import batch_norms
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import seeded_generator
from ncpipe.training.checkpoints import State
from ncpipe.training.derived_state import refresh_bn_statistics, set_nearest_means
from ncpipe.training.objective import (
    Outputs,
    compares_samples,
    concatenate,
    fit_times_samples,
    head_input_strengths,
    penalty,
    penalty_strengths,
    reads_features,
    singleton_class_error,
    targets_of_runs,
)
from ncpipe.training.schedules import factor
from ncpipe.training.stack import Stack
from ncpipe.training.steps import steps_of

EVALUATION_ROWS = 50_000  # samples x tokens of each run in a forward pass without gradients
# Rows x width of one run in a forward and backward pass; gradients of several passes are summed. On the CPU a
# layer's values then stay in the cache: with 20 times as many, L-T11 takes twice as long. Other devices need
# larger products to be busy. A constant, so that a run's rounding does not depend on the runs beside it.
CHUNK_NUMBERS = {"cpu": 2**16}
CHUNK_NUMBERS_ELSEWHERE = 2**21


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


class Session:
    """S runs of one shape in training. Between epochs each run's state can be saved and restored."""

    def __init__(self, runs: Sequence[Run], data: Prepared, device: torch.device, dtype: torch.dtype) -> None:
        self.runs, self.spec = runs, runs[0].spec
        shape = input_shape(data, self.spec.model)
        if reason := singleton_class_error(self.spec.loss, data):
            raise InputError(f"experiments.{runs[0].experiment}.loss: {reason}")
        # Only a network of a study.py may draw at random while it trains.
        seeds = [run.seed for run in runs] if self.spec.model.study_entry else None
        self.stack = Stack([build_network(run, data) for run in runs], device, dtype, seeds)
        self.strengths = penalty_strengths(self.stack, runs)
        self.head_input = head_input_strengths(self.stack, runs)
        splits = {
            name: prepare_split(split, data.kind, self.spec.model, device, dtype)
            for name, split in data.splits()
        }
        self.train, self.test = splits["train"], splits.get("test")
        self.counts = self.train.counts(data.classes)
        self.chunk = max(1, EVALUATION_ROWS // shape.rows)
        self.at_a_time = samples_at_a_time(self.stack, self.spec, data, device)
        samples = len(self.train)
        self.batch = samples if self.spec.batch_size == "full" else min(self.spec.batch_size, samples)
        self.steps_per_epoch = math.ceil(samples / self.batch)
        self.orders = [seeded_generator(run.seed, "order") for run in runs]
        self.moves = [seeded_generator(run.seed, "augmentation") for run in runs]
        self.finite = self.stack.values.clone()  # the newest weights whose loss is known to be finite
        self.alive = torch.ones(len(runs), dtype=torch.bool, device=device)
        self.diverged_at = torch.full_like(self.alive, -1, dtype=torch.long)
        self.epoch = torch.zeros((), dtype=torch.long, device=device)  # the one that is being trained
        # Elsewhere reading a number waits for the device, which a recorded step cannot do (CudaGraphStep).
        self.can_sync = device.type == "cpu"
        self.epochs_done = self.step = 0
        self.rows: list[tuple[int, Tensor, Tensor]] = []
        self.snapshots: list[dict[int, dict[str, Tensor]]] = [{} for _ in runs]
        self.method = steps_of(self)

    def load_weights(self, weights: Sequence[Mapping[str, Tensor]]) -> None:
        """Replace the random initial weights of each run by given ones, by name."""
        for index, own in enumerate(weights):
            for name in self.stack.names:
                self.stack.view(self.stack.values, name)[index].copy_(own[name])
        self.finite.copy_(self.stack.values)

    def epochs(self) -> Iterator[int]:
        """Train; yield the number of epochs done before the first and after each one."""
        yield self.epochs_done
        while self.epochs_done < self.spec.epochs:
            self.epoch.fill_(self.epochs_done + 1)
            self.method.epoch(self)
            self.epochs_done += 1
            yield self.epochs_done

    def loss_and_gradient(self, samples: Split) -> tuple[Tensor, Tensor]:
        """Return the regularised loss (S,) of each run on a batch and its gradient (S, P)."""
        loss = self.stack.values.new_zeros(len(self.runs))
        gradient = torch.zeros_like(self.stack.values)
        for place, part in enumerate(samples.parts(self.at_a_time)):
            self.stack.step = f"{self.step} {place}"
            with torch.enable_grad():
                outputs = self.outputs(part)
                fit = fit_times_samples(outputs, self.spec.loss) / samples.predictions
                if outputs.head_input is not None:
                    fit = fit + self.penalty_of_features(outputs.head_input.square().sum((1, 2)), samples)
                self.stack.add_gradient(fit.sum(), gradient)
            loss = loss + fit.detach()
        gradient.addcmul_(self.strengths, self.stack.values)
        return loss + penalty(self.stack.values, self.strengths), gradient

    def drop_diverged(self, loss: Tensor) -> None:
        """Stop runs whose loss (S,) is not finite, and restore their last weights with a finite loss."""
        finite = loss.isfinite()
        if self.all_true(finite):
            self.finite.copy_(self.stack.values)
            return
        diverged = self.alive & ~finite
        self.stack.values.copy_(torch.where(diverged.unsqueeze(1), self.finite, self.stack.values))
        self.diverged_at.copy_(torch.where(diverged, self.epoch, self.diverged_at))
        self.alive &= ~diverged
        self.finite.copy_(self.stack.values)

    def all_true(self, flags: Tensor) -> bool:
        """Return whether all flags (S,) are set; False on devices where reading them would wait."""
        return self.can_sync and bool(flags.all())

    @torch.no_grad()
    def record(self) -> None:
        """Add a row to the history of every run that is still training."""
        self.refresh_derived_state()
        train_loss, train_error, of_features = self.evaluate(self.train)
        test_error = torch.full_like(train_error, math.nan)
        if self.test is not None:
            _, test_error, _ = self.evaluate(self.test)
        penalties = penalty(self.stack.values, self.strengths)
        if of_features is not None:
            penalties = penalties + of_features
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

    def outputs(self, samples: Split) -> Outputs:
        """Return the inputs of the objective; features only if it reads them."""
        if not reads_features(self.spec):
            logits = self.stack.logits(samples)
            labels = targets_of_runs(samples, logits)
            return Outputs(logits, labels, last_weight=self.stack.last_weight, counts=self.counts)
        logits, features, head_input = self.stack.forward_with_features(samples)
        labels = targets_of_runs(samples, logits)
        penalised = None if self.head_input is None else head_input
        return Outputs(logits, labels, features, self.stack.last_weight, penalised, self.counts)

    def penalty_of_features(self, squares: Tensor, samples: Split) -> Tensor:
        """Return lambda_H/2 |H|^2 of each run, (S,), estimated from the sum of |h|^2 over a batch."""
        assert self.head_input is not None
        return self.head_input * (len(self.train) / len(samples) / 2) * squares

    def evaluate(self, samples: Split) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return mean loss without penalty, share of wrong predictions and penalty of features, all (S,).

        A loss that compares samples is NaN on samples other than the training set. The share is NaN where the
        targets are vectors; of tags all have to be above all others.
        """
        loss = error = total = torch.zeros((), dtype=self.finite.dtype, device=self.finite.device)
        compares, seen = compares_samples(self.spec.loss), []
        for part in samples.parts(min(self.chunk, self.at_a_time)):
            outputs = self.outputs(part)
            if compares:
                seen.append(outputs)
            else:
                loss = loss + fit_times_samples(outputs, self.spec.loss)
            error = error + part.misses(outputs.logits).sum(1)
            if outputs.head_input is not None:
                total = total + outputs.head_input.square().sum((1, 2))
        if compares:
            known = samples is self.train
            loss = fit_times_samples(concatenate(seen), self.spec.loss) if known else error * math.nan
        of_features = None if self.head_input is None else self.penalty_of_features(total, samples)
        return loss / samples.predictions, error / samples.predictions, of_features

    def rates_at(self, step: int) -> list[float]:
        """Return each run's learning rate at a step."""
        now = factor(self.spec.schedule, step, self.spec.epochs * self.steps_per_epoch)
        return [r.spec.optimizer.learning_rate * now for r in self.runs]

    def states(self) -> list[State]:
        """Return for every run the state that its remaining epochs and its result depend on."""
        shared = {"values": self.stack.values, "finite": self.finite, **self.method.buffers()}
        moving = {name: buffer.cpu() for name, buffer in shared.items()}
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
        buffers = {"values": self.stack.values, "finite": self.finite, **self.method.buffers()}
        for index, state in enumerate(states):
            for name, buffer in buffers.items():
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


def samples_at_a_time(stack: Stack, spec: Experiment, data: Prepared, device: torch.device) -> int:
    """Return how many samples of a batch pass through the network at a time on `device`.

    All of them where a sample's gradient depends on the others, through batch norm or a loss that compares
    samples, and where the samples' features are parameters.
    """
    if compares_samples(spec.loss) or batch_norms(stack.network) or data.kind == "free":
        return len(data.train)
    numbers = CHUNK_NUMBERS.get(device.type, CHUNK_NUMBERS_ELSEWHERE)
    return max(1, numbers // (input_shape(data, spec.model).rows * width_of(spec.model)))
