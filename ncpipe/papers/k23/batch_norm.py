"""Solve for the optimum of features behind batch normalisation and ReLU [K23 A.4, eq. 60-64].

    1/2 |A max(F_BN, 0) - Y|^2 + lambda/2 sum_j (gamma_j^2 + v_j^2 + |a_j|^2)

with row j of F_BN the row of F, centred and of length 1, times gamma_j, plus v_j/sqrt(N).

K  classes    n  samples of a class    N = K n, ordered by class    m  width, columns of features
"""

import math
from typing import Annotated

import torch
from torch import Tensor

from ncpipe.study import Bound, Count, Positive


def normalised(features: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return F_BN (N, m): columns centred, of length gamma_j, plus v_j/sqrt(N) [eq. 60]; constants are 0."""
    centred = features - features.mean(0)
    lengths = centred.norm(dim=0)
    unit = centred / torch.where(lengths > 0, lengths, 1.0)
    return scale * unit + shift / math.sqrt(len(features))


def objective(decay: float, features: Tensor, scale: Tensor, shift: Tensor, weight: Tensor) -> Tensor:
    """Return the loss with its penalty [eq. 61] of F (N, m), gamma (m,), v (m,) and A (K, m)."""
    outputs = normalised(features, scale, shift).clamp(min=0) @ weight.T
    classes = len(weight)
    targets = torch.eye(classes, dtype=torch.float64).repeat_interleave(len(features) // classes, 0)
    fit = (outputs - targets).square().sum() / 2
    norms = scale.square().sum() + shift.square().sum() + weight.square().sum()
    return fit + decay / 2 * norms


def optimal_value(classes: Annotated[int, Bound(low=2)], per_class: Count, decay: Positive) -> float:
    """Return the least loss of features behind batch normalisation and ReLU.

    K (lambda sqrt(n) - lambda^2/2), and K n/2 for lambda >= sqrt(n). F_BN is proportional to Y there:
    collapsed, and a simplex ETF about its mean. The width is K or more. Eq. 62 has gamma = sqrt(1 - 1/K) and
    v = 1/sqrt(K), which minimise only times sqrt(sqrt(n) - lambda).
    """
    root = math.sqrt(per_class)
    square = max(root - decay, 0.0)
    return classes * ((square - root) ** 2 / 2 + decay * square)
