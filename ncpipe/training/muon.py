"""Muon: steps whose matrices have nearly equal singular values (Jordan et al. 2024)."""

import torch
from torch import Tensor

from ncpipe.config.optimizer_specs import Muon
from ncpipe.models.network import INNER, Role

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
