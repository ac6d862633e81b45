"""Training of runs of one shape side by side: full batch or mini-batches, first order or L-BFGS.

S  runs    B  samples of a batch    N  training samples
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.models.build import arrange, build_model, input_shape, penalised
from ncpipe.randomness import seeded_generator
from ncpipe.specs import Lbfgs, Run
from ncpipe.training.objective import FITS, penalty, penalty_strengths
from ncpipe.training.optimizers import column, first_order
from ncpipe.training.schedules import factor
from ncpipe.training.stack import Stack

EVALUATION_ROWS = 50_000  # samples x tokens of each run in a forward pass from which nothing is learned
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Point:
    """One row of a run's history: the state after `epoch` epochs; learning_rate is that of the next step."""

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

    A diverged run holds the last weights whose regularised loss was finite.
    """

    run: Run
    state: dict[str, Tensor]
    history: tuple[Point, ...]
    diverged_at: int | None


def train_batch(
    runs: Sequence[Run],
    data: Prepared,
    device: torch.device,
    precision: str,
    on_epoch: Callable[[int], None] = lambda epoch: None,
) -> list[Trained]:
    """Train runs that differ in nothing but their seed and numbers that leave shapes and steps equal.

    What a run ends with does not depend on the others: bit for bit on the CPU, to rounding on a GPU.
    on_epoch is called with the number of epochs done.
    """
    if isinstance(runs[0].spec.optimizer, Lbfgs) and len(runs) > 1:  # each line search goes its own way
        return [train_batch([run], data, device, precision, on_epoch)[0] for run in runs]
    session = _Session(runs, data, device, DTYPES[precision])
    spec = runs[0].spec
    session.record(0)
    lbfgs = isinstance(spec.optimizer, Lbfgs)
    for epoch in session.lbfgs_epochs() if lbfgs else session.first_order_epochs():
        if epoch % spec.log_every == 0 or epoch == spec.epochs:
            session.record(epoch)
        on_epoch(epoch)
    return session.results()


class _Session:
    """The state of a stack while it trains."""

    def __init__(self, runs: Sequence[Run], data: Prepared, device: torch.device, dtype: torch.dtype) -> None:
        self.runs, self.spec = runs, runs[0].spec
        shape = input_shape(data, self.spec.model)
        self.stack = Stack(
            [build_model(r.spec.model, shape, data.classes, r.depth, r.seed) for r in runs], device, dtype
        )
        self.strengths = penalty_strengths(self.stack, runs)
        self.train, self.test = (
            arrange(split, data.kind, self.spec.model, device, dtype) for split in (data.train, data.test)
        )
        self.chunk = max(1, EVALUATION_ROWS // (shape.tokens or 1))
        samples = len(self.train)
        self.batch = samples if self.spec.batch_size == "full" else min(self.spec.batch_size, samples)
        self.steps_per_epoch = math.ceil(samples / self.batch)
        self.steps = self.spec.epochs * self.steps_per_epoch
        self.rates = column([r.spec.optimizer.learning_rate for r in runs], self.stack.values)
        self.orders = [seeded_generator(run.seed, "order") for run in runs]
        self.order = torch.empty(0, dtype=torch.long)
        self.finite = self.stack.values.clone()  # the newest weights whose loss is known to be finite
        self.alive = torch.ones(len(runs), dtype=torch.bool, device=device)
        self.diverged_at = torch.full_like(self.alive, -1, dtype=torch.long)
        self.rows: list[tuple[int, Tensor, Tensor]] = []

    def first_order_epochs(self) -> Iterator[int]:
        """Train; yield the number of epochs done after each one."""
        values = self.stack.values
        everywhere = torch.ones(len(self.stack), dtype=values.dtype, device=values.device)
        decayed = self.stack.per_parameter({name: everywhere for name in self.stack.names if penalised(name)})
        state = first_order([r.spec.optimizer for r in self.runs], values, decayed)
        for step in range(self.steps):
            loss, gradient = self.loss_and_gradient(self.batch_of(step))
            self.drop_diverged(loss, step // self.steps_per_epoch + 1)
            moved = state.update(values, gradient, self.rates_at(step))
            values.copy_(torch.where(self.alive.unsqueeze(1), moved, values))
            if (step + 1) % self.steps_per_epoch == 0:
                yield (step + 1) // self.steps_per_epoch

    def lbfgs_epochs(self) -> Iterator[int]:
        """Train a stack of one run; yield the number of epochs done after each one."""
        optimizer = self.spec.optimizer
        assert isinstance(optimizer, Lbfgs)
        weights = torch.nn.Parameter(self.stack.values)

        def closure() -> Tensor:
            loss, weights.grad = self.loss_and_gradient(self.train)
            return loss.sum()

        search = torch.optim.LBFGS(
            [weights],
            max_iter=1,
            history_size=optimizer.memory,
            tolerance_grad=0,
            tolerance_change=0,
            line_search_fn="strong_wolfe",
        )
        for epoch in range(1, self.spec.epochs + 1):
            search.param_groups[0]["lr"] = self.rates_at(epoch - 1).item()
            self.drop_diverged(self.loss_and_gradient(self.train)[0], epoch)
            if self.alive.all():
                search.step(closure)
            yield epoch

    def loss_and_gradient(self, samples: Split) -> tuple[Tensor, Tensor]:
        """Regularised loss (S,) of each run on a batch, and its gradient (S, P)."""
        with torch.enable_grad():
            logits = self.stack.module(samples.inputs, samples.lengths)
            fit = self.sum_of_losses(logits, samples) / len(samples)
            gradient = self.stack.gradient(fit.sum())
        gradient.addcmul_(self.strengths, self.stack.values)
        return fit.detach() + penalty(self.stack.values, self.strengths), gradient

    def drop_diverged(self, loss: Tensor, epoch: int) -> None:
        """Stop runs whose loss (S,) is not finite, and take them back to their last finite weights."""
        diverged = self.alive & ~loss.isfinite()
        self.stack.values.copy_(torch.where(diverged.unsqueeze(1), self.finite, self.stack.values))
        self.diverged_at.copy_(torch.where(diverged, epoch, self.diverged_at))
        self.alive &= ~diverged
        self.finite.copy_(self.stack.values)

    @torch.no_grad()
    def record(self, epoch: int) -> None:
        """Add a row to the history of every run that is still training."""
        train_loss, train_error = self.evaluate(self.train)
        _, test_error = self.evaluate(self.test)
        penalties = penalty(self.stack.values, self.strengths)
        loss = train_loss + penalties
        rates = self.rates_at(epoch * self.steps_per_epoch).squeeze(1)
        self.drop_diverged(loss, epoch)
        row = torch.stack([loss, train_loss, penalties, train_error, test_error, rates])
        self.rows.append((epoch, row, self.alive.clone()))

    def evaluate(self, samples: Split) -> tuple[Tensor, Tensor]:
        """Mean loss without penalty and share of wrong predictions of each run, both (S,)."""
        loss = error = torch.zeros((), dtype=self.rates.dtype, device=self.rates.device)
        for start in range(0, len(samples), self.chunk):
            part = samples[start : start + self.chunk]
            logits = self.stack.module(part.inputs, part.lengths)
            loss = loss + self.sum_of_losses(logits, part)
            error = error + (logits.argmax(-1) != part.labels).sum(1)
        return loss / len(samples), error / len(samples)

    def sum_of_losses(self, logits: Tensor, samples: Split) -> Tensor:
        return FITS[self.spec.loss](logits, samples.labels.expand(logits.shape[:2]))

    def rates_at(self, step: int) -> Tensor:
        return self.rates * factor(self.spec.schedule, step, self.steps)

    def batch_of(self, step: int) -> Split:
        """The samples of one step: all of them, or each run's own next ones, (S, B, ...)."""
        if self.batch == len(self.train):
            return self.train
        start = step % self.steps_per_epoch * self.batch
        if start == 0:
            order = [torch.randperm(len(self.train), generator=generator) for generator in self.orders]
            self.order = torch.stack(order).to(self.rates.device)
        return self.train[self.order[:, start : start + self.batch]]

    def results(self) -> list[Trained]:
        history = [(epoch, row.T.tolist(), alive.tolist()) for epoch, row, alive in self.rows]
        return [
            Trained(
                run,
                self.stack.state_of(index),
                tuple(Point(epoch, *rows[index]) for epoch, rows, alive in history if alive[index]),
                None if diverged < 0 else diverged,
            )
            for index, (run, diverged) in enumerate(zip(self.runs, self.diverged_at.tolist(), strict=True))
        ]
