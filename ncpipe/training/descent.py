"""First-order steps of a session, on all samples or on mini-batches.

`ncpipe.training.optimizers` has the updates, `ncpipe.training.line_search` the steps of another kind.

S  runs    P  numbers per run    B  samples of a batch    T  steps of the training
"""

import functools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ncpipe.datasets.prepared import Split
from ncpipe.training.augmentation import augment, draw_moves
from ncpipe.training.checkpoints import State
from ncpipe.training.cuda_graph import CudaGraphStep
from ncpipe.training.objective import decayed_numbers
from ncpipe.training.optimizers import OptimizerState
from ncpipe.training.state import TrainingState
from ncpipe.training.torch_optimizers import TorchState


class GradientStep:
    """The loss and gradient of a session, recorded alone: for optimizers whose steps cannot be."""

    def __init__(self, session: TrainingState) -> None:
        self.loss = session.stack.values.new_zeros(len(session.runs))
        self.gradient = torch.zeros_like(session.stack.values)
        self.run_step = CudaGraphStep(self.loss.device)

    def __call__(
        self, session: TrainingState, kind: int, samples: Callable[[int], Split]
    ) -> tuple[Tensor, Tensor]:
        """Return the loss (S,) and gradient (S, P) on samples(kind), in memory that the next call reuses."""
        self.run_step(kind, functools.partial(self._compute, session, kind, samples))
        return self.loss, self.gradient

    def _compute(self, session: TrainingState, kind: int, samples: Callable[[int], Split]) -> None:
        loss, gradient = session.loss_and_gradient(samples(kind))
        self.loss.copy_(loss)
        self.gradient.copy_(gradient)


class Descent:
    """First-order steps, on all samples or on mini-batches, which each run draws for itself.

    It holds no reference to its session: a cycle would keep the device memory alive.
    """

    def __init__(self, session: TrainingState, state: Callable[..., OptimizerState]) -> None:
        values, runs = session.stack.values, session.runs
        decayed = decayed_numbers(session.stack, runs)
        self.optimizer = state([r.spec.optimizer for r in runs], session.stack, decayed)
        steps = range(session.spec.epochs * session.steps_per_epoch)
        rates = torch.tensor([session.rates_at(step) for step in steps], dtype=torch.float64)
        self.table = self.optimizer.table(rates).unsqueeze(-1).to(values.dtype).to(values.device)
        self.now = self.table[0].clone()  # this step's numbers, always at one address: see CudaGraphStep
        self.rows = [  # this step's samples (S, B) of a mini-batch; the last one of an epoch may be short
            torch.zeros(len(runs), size, dtype=torch.long, device=values.device)
            for size in batch_sizes(len(session.train), session.batch)
        ]
        self.moves = [  # this step's augmentation, if there is one
            torch.zeros(len(runs), size, 3, dtype=torch.long, device=values.device)
            for size in batch_sizes(len(session.train), session.batch) or [session.batch]
        ]
        # torch.optim's steps read numbers on the host, so that they cannot be recorded.
        self.gradient = GradientStep(session) if isinstance(self.optimizer, TorchState) else None
        self.run_step = CudaGraphStep(values.device)

    def epoch(self, session: TrainingState) -> None:
        first = session.epochs_done * session.steps_per_epoch
        if self.rows:
            orders = [torch.randperm(len(session.train), generator=generator) for generator in session.orders]
            order = torch.stack(orders).to(self.now.device)
        if augmentation := session.spec.augmentation:
            drawn = [draw_moves(augmentation, len(session.train), generator) for generator in session.moves]
            moves = torch.stack(drawn).to(self.now.device)
        for index in range(session.steps_per_epoch):
            session.step = first + index
            self.now.copy_(self.table[session.step])
            short = int(len(self.rows) > 1 and index == session.steps_per_epoch - 1)
            step = slice(index * session.batch, (index + 1) * session.batch)
            if self.rows:
                self.rows[short].copy_(order[:, step])
            if augmentation:
                self.moves[short].copy_(moves[:, step])
            if self.gradient is None:
                self.run_step(short, functools.partial(self.step, session, short))
            else:
                self.update(session, *self.gradient(session, short, functools.partial(self.samples, session)))

    def step(self, session: TrainingState, kind: int) -> None:
        """Update every run that still trains, without waiting for the device or reading from the host."""
        self.update(session, *session.loss_and_gradient(self.samples(session, kind)))

    def samples(self, session: TrainingState, kind: int) -> Split:
        """Return this step's samples, augmented."""
        samples = session.train[self.rows[kind]] if self.rows else session.train
        if augmentation := session.spec.augmentation:
            moves, images = self.moves[kind], samples.inputs
            images = images if self.rows else images.expand(len(moves), *images.shape)
            images = augment(images, moves, augmentation.shift)
            labels = samples.labels.expand(*moves.shape[:2], *samples.row)
            samples = replace(samples, inputs=images, labels=labels)
        return samples

    def update(self, session: TrainingState, loss: Tensor, gradient: Tensor) -> None:
        """Move the weights (S, P), from the losses (S,) and gradients (S, P) at them."""
        values = session.stack.values
        session.drop_diverged(loss)
        moved = self.optimizer.update(values, gradient, self.now)
        if not session.all_true(session.alive):
            moved = torch.where(session.alive.unsqueeze(1), moved, values)
        values.copy_(moved)

    def buffers(self) -> dict[str, Tensor]:
        """Return the optimizer's state, (S, P) each."""
        return self.optimizer.buffers

    def state_dict(self) -> State:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.optimizer.load_state_dict(state)


def batch_sizes(samples: int, batch: int) -> list[int]:
    """Return the distinct sizes of an epoch's mini-batches; [] for full batches."""
    if batch == samples:
        return []
    return [batch, samples % batch] if samples % batch else [batch]
