"""First-order optimizers on a stack's (S, P) buffer; every run has its own state and learning rate.

The penalty's gradient is part of the gradient they are given (coupled L2); AdamW's decay is not. What
changes from step to step (rates, Adam's corrections) comes from a table that is made before training:
an update reads nothing from the host.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ncpipe.config.optimizer_specs import Adam, AdamW, Lion, Sgd, SignSgd
from ncpipe.training.checkpoints import State
from ncpipe.training.stack import Stack


class OptimizerState(ABC):
    """The steps of an optimizer, and what it keeps between them.

    buffers: tensors (S, P), by name, that move with training.
    """

    buffers: dict[str, Tensor]

    def table(self, rates: Tensor) -> Tensor:
        """Return the n numbers that `update` needs at each step, by default its learning rates alone.

        (T, S) -> (T, n, S), float64 on the CPU.
        """
        return rates.unsqueeze(1)

    @abstractmethod
    def update(self, values: Tensor, gradients: Tensor, now: Tensor) -> Tensor:
        """Return the next values (S, P), from gradients (S, P) and this step's numbers (n, S, 1)."""

    def state_dict(self) -> State:
        """Return what a checkpoint needs besides the buffers."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        assert not state


class SgdState(OptimizerState):
    """theta <- theta - rate m, with m <- momentum m + g."""

    def __init__(self, optimizers: Sequence[Sgd], stack: Stack, decayed: Tensor) -> None:
        values = stack.values
        self.momentum = column([o.momentum for o in optimizers], values)
        self.velocity = torch.zeros_like(values)
        self.buffers = {"velocity": self.velocity}

    def update(self, values: Tensor, gradients: Tensor, now: Tensor) -> Tensor:
        self.velocity.mul_(self.momentum).add_(gradients)
        return values - now[0] * self.velocity


class AdamState(OptimizerState):
    """Adam (Kingma and Ba 2015, Algorithm 1), or AdamW (Loshchilov and Hutter 2019), which decays too."""

    def __init__(self, optimizers: Sequence[Adam | AdamW], stack: Stack, decayed: Tensor) -> None:
        values = stack.values
        self.betas = [(o.beta1, o.beta2) for o in optimizers]
        self.mean_rate = column([1 - beta1 for beta1, _ in self.betas], values)
        self.square_rate = column([1 - beta2 for _, beta2 in self.betas], values)
        self.eps = column([o.eps for o in optimizers], values)
        self.decay = _decay(optimizers, values, decayed)
        self.mean = torch.zeros_like(values)
        self.square = torch.zeros_like(values)
        self.buffers = {"mean": self.mean, "square": self.square}

    def table(self, rates: Tensor) -> Tensor:
        return adam_table(rates, self.betas)

    def update(self, values: Tensor, gradients: Tensor, now: Tensor) -> Tensor:
        rates, unbias1, unbias2 = now
        self.mean.lerp_(gradients, self.mean_rate)
        self.square.lerp_(gradients.square(), self.square_rate)
        root = (self.square / unbias2).sqrt_().add_(self.eps)
        moved = values - (rates / unbias1) * (self.mean / root)
        return moved if self.decay is None else moved - rates * self.decay * values


class LionState(OptimizerState):
    """Lion (Chen et al. 2023, Algorithm 2), whose decay takes the penalised numbers alone.

    theta <- theta - rate (sign(beta1 m + (1 - beta1) g) + weight_decay theta); m <- beta2 m + (1 - beta2) g.
    With both betas equal it is Signum (Bernstein et al. 2018, Algorithm 2), and with 0 SignSGD (Algorithm 1).
    """

    def __init__(self, optimizers: Sequence[Lion | SignSgd], stack: Stack, decayed: Tensor) -> None:
        values = stack.values
        betas = [(o.beta1, o.beta2) if isinstance(o, Lion) else (o.momentum, o.momentum) for o in optimizers]
        self.step_rate, self.mean_rate = (
            column([1 - beta for beta in of_runs], values) for of_runs in zip(*betas, strict=True)
        )
        self.decay = _decay(optimizers, values, decayed)
        self.mean = torch.zeros_like(values)
        self.buffers = {"mean": self.mean}

    def update(self, values: Tensor, gradients: Tensor, now: Tensor) -> Tensor:
        direction = self.mean.lerp(gradients, self.step_rate).sign_()
        self.mean.lerp_(gradients, self.mean_rate)
        if self.decay is not None:
            direction = direction + self.decay * values
        return values - now[0] * direction


def _decay(optimizers: Sequence[Any], values: Tensor, decayed: Tensor) -> Tensor | None:
    """Return the weight decay of each number (S, P); None where no run decays."""
    decays = [getattr(o, "weight_decay", 0.0) for o in optimizers]
    return column(decays, values) * decayed if any(decays) else None


def adam_table(rates: Tensor, betas: Sequence[tuple[float, float]]) -> Tensor:
    """Return rates and bias corrections 1 - beta^t of each step: (T, S) -> (T, 3, S), float64 on the CPU.

    betas: beta1 and beta2 of each of S runs.
    """
    exponents = torch.arange(1, len(rates) + 1, dtype=torch.float64).view(-1, 1, 1)
    both = torch.tensor(betas, dtype=torch.float64).T  # (2, S)
    return torch.cat([rates.unsqueeze(1), 1 - both**exponents], 1)


def column(numbers: Sequence[float], like: Tensor) -> Tensor:
    """Return one number per run, (S, 1)."""
    return torch.tensor(numbers, dtype=like.dtype, device=like.device).unsqueeze(1)
