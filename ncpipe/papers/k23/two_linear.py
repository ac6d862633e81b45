"""Solve for features under two linear layers with decay on all three factors [K23 eq. 36-39].

    1/(2N) |A_2 A_1 F - Y|^2 + lambda_2/2 |A_2|^2 + lambda_1/2 |A_1|^2 + lambda_F/2 |F|^2

The penalties amount to 3/2 (n lambda_1 lambda_2 lambda_F)^(1/3) sum_i sigma_i^(2/3) of the class logits'
singular values, so that each of these is the z that minimises (z - 1)^2/2 + 3/2 c z^(2/3), c = K (n lambda_1
lambda_2 lambda_F)^(1/3): an orthogonal frame in every factor, or nothing. z jumps from 1/2 to 0 at c =
2^(-4/3).

K  classes    n  samples of a class    m  width
"""

import math
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from torch import Tensor

from ncpipe.system.errors import InputError

JUMP = 2 ** (-4 / 3)  # c from which on the optimum is 0


@dataclass(frozen=True)
class TwoLinear:
    """value; logit z; second (K, m), first (m, m) and features (K, m), the one of all samples of a class."""

    value: float
    logit: float
    second: Tensor
    first: Tensor
    features: Tensor


def strength(classes: int, per_class: int, second: float, first: float, features: float) -> float:
    """Return c = K (n lambda_1 lambda_2 lambda_F)^(1/3)."""
    if classes < 1 or per_class < 1 or not min(second, first, features) > 0:
        raise InputError("two linear layers need a class, a sample and three positive decays")
    return float(classes * (per_class * second * first * features) ** (1 / 3))


def best_logit(strength: float) -> float:
    """Return z: the larger root of (1 - z) z^(1/3) = c, or 0 for c of 2^(-4/3) or more."""
    if strength >= JUMP:
        return 0.0
    return float(brentq(lambda z: (1 - z) * z ** (1 / 3) - strength, 0.5, 1.0, xtol=1e-16))


def optimum(
    classes: int, per_class: int, width: int, *, second: float, first: float, features: float
) -> TwoLinear:
    """Return a global minimiser; the decays by name. Raises InputError for a width below K."""
    c = strength(classes, per_class, second, first, features)
    if width < classes:
        raise InputError(f"width: {width} is below {classes}, the number of classes")
    logit = best_logit(c)
    # lambda_2 |A_2|^2 = lambda_1 |A_1|^2 = n lambda_F |F|^2, in each of the K directions
    share = (logit**2 * second * first * per_class * features) ** (1 / 3)
    frame = torch.eye(classes, width, dtype=torch.float64)
    value = (logit - 1) ** 2 / 2 + 1.5 * c * logit ** (2 / 3)
    return TwoLinear(
        value,
        logit,
        math.sqrt(share / second) * frame,
        math.sqrt(share / first) * frame.T @ frame,
        math.sqrt(share / (per_class * features)) * frame,
    )
