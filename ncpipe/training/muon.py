"""Muon: steps whose matrices have nearly equal singular values (Jordan et al. 2024)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ncpipe.config.optimizer_specs import Muon
from ncpipe.models.network import INNER, Role
from ncpipe.training.optimizers import ByRun, OptimizerState, adam_table, column
from ncpipe.training.stack import Stack

# Of the polynomial a s + b s^3 + c s^5 that an iteration applies to each singular value s in (0, 1].
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
LEAST_NORM = 1e-7  # added to a matrix's norm, as the author's code has it


def orthogonalised(matrix: Tensor) -> Tensor:
    """Return about U V' of matrix (..., m, n) = U S V', by 5 iterations of Newton and Schulz.

    Singular values end between 0.7 and 1.2 unless they were less than 1e-3 of the norm. In the matrix's own
    precision.
    """
    a, b, c = COEFFICIENTS
    x = matrix / (torch.linalg.matrix_norm(matrix, keepdim=True) + LEAST_NORM)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT.contiguous() if tall else x
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT.contiguous() if tall else x


def muon(
    weights: dict[str, Tensor],
    gradients: dict[str, Tensor],
    state: dict[str, dict[str, Tensor]],
    step: Tensor,
    rate: Tensor,
    roles: dict[str, Role],
    decayed: dict[str, bool],
    spec: Muon,
) -> dict[str, Tensor]:
    """Return the next weights of a run: matrices of inner layers by Muon, all else by AdamW.

    B <- momentum B + G; W <- W - rate (sqrt(max(1, m/n)) NS(G + momentum B) + weight_decay W) for W (m, n);
    a kernel (m, c, h, w) is taken as (m, c h w).
    """
    moved = {}
    for name, value in weights.items():
        gradient = gradients[name]
        decay = spec.weight_decay * value if decayed[name] and spec.weight_decay else None
        if roles[name] in INNER and value.dim() > 1:
            momentum = spec.momentum * state["momentum"][name] + gradient
            state["momentum"][name] = momentum
            matrix = (gradient + spec.momentum * momentum).flatten(1)
            direction = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5 * orthogonalised(matrix)
            step_size = rate
        else:
            mean = state["mean"][name].lerp(gradient, 1 - spec.beta1)
            square = state["square"][name].lerp(gradient.square(), 1 - spec.beta2)
            state["mean"][name], state["square"][name] = mean, square
            root = (square / (1 - spec.beta2**step)).sqrt() + spec.eps
            direction = mean / (1 - spec.beta1**step) / root
            step_size = rate * (spec.adam_learning_rate / spec.learning_rate)
        direction = direction.view_as(value)
        moved[name] = value - step_size * (direction if decay is None else direction + decay)
    return moved


class MuonState(OptimizerState):
    """The steps of `muon` for all runs of a stack, and all matrices of one shape, at once.

    Equal to `muon` up to rounding, with a tenth of the operations: for GPUs, where the launch of an operation
    takes longer than a product of this size.
    """

    def __init__(self, optimizers: Sequence[Muon], stack: Stack, decayed: Tensor) -> None:
        values, self.view = stack.values, stack.view
        self.betas = [(o.beta1, o.beta2) for o in optimizers]
        self.momentum = column([o.momentum for o in optimizers], values)
        self.mean_rate = column([1 - o.beta1 for o in optimizers], values)
        self.square_rate = column([1 - o.beta2 for o in optimizers], values)
        self.eps = column([o.eps for o in optimizers], values)
        ratios = [o.adam_learning_rate / o.learning_rate for o in optimizers]
        self.factor = column(ratios, values).expand_as(values).clone()  # of the rate, for each number
        self.decay = column([o.weight_decay for o in optimizers], values) * decayed
        self.matrices: dict[tuple[int, int], list[str]] = {}
        for name, dimensions in stack.dimensions.items():
            if stack.roles[name] in INNER and dimensions > 1:
                _, rows, columns = stack.view(values, name).flatten(2).shape
                self.matrices.setdefault((rows, columns), []).append(name)
                stack.view(self.factor, name).fill_(1)
        self.buffer, self.mean, self.square = (torch.zeros_like(values) for _ in range(3))
        self.buffers = {"momentum": self.buffer, "mean": self.mean, "square": self.square}

    def table(self, rates: Tensor) -> Tensor:
        return adam_table(rates, self.betas)

    def update(self, values: Tensor, gradients: Tensor, now: Tensor) -> Tensor:
        rates, unbias1, unbias2 = now
        self.buffer.mul_(self.momentum).add_(gradients)
        self.mean.lerp_(gradients, self.mean_rate)
        self.square.lerp_(gradients.square(), self.square_rate)
        direction = self.mean / unbias1 / ((self.square / unbias2).sqrt_().add_(self.eps))
        ahead = gradients.addcmul(self.momentum, self.buffer)
        for (rows, columns), names in self.matrices.items():
            stacked = torch.cat([self.view(ahead, name).flatten(2) for name in names])  # (names x S, m, n)
            steps = max(1.0, rows / columns) ** 0.5 * orthogonalised(stacked)
            for name, part in zip(names, steps.chunk(len(names)), strict=True):
                place = self.view(direction, name)
                place.copy_(part.view_as(place))
        return values - rates * self.factor * direction.addcmul_(self.decay, values)


def muon_state(optimizers: Sequence[Muon], stack: Stack, decayed: Tensor) -> OptimizerState:
    """Return the steps of Muon: on the CPU run by run, whose bytes must not depend on their neighbours."""
    if stack.values.device.type == "cpu":
        return ByRun(muon, optimizers, stack, decayed)
    return MuonState(optimizers, stack, decayed)
