"""Regression in the features model, targets that are vectors [2409.04180; its eq. 1].

|W H + b 1^T - Y|^2/(2 M) + lambda_H |H|^2/(2 M) + lambda_W |W|^2/2, with c = lambda_W lambda_H.
Targets are drawn with standard deviations from 1 to 1/`ratio` along random axes; Sigma is their covariance.

M  samples    n  length of a target    d  width
"""

import math
from functools import cache
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ncpipe.study import (
    Bound,
    Count,
    Index,
    InputError,
    NonNegative,
    Positive,
    numerical,
    regression,
    seeded_generator,
)

Ratio = Annotated[float, Bound(low=1)]
RANK = 1e-3  # of the largest singular value, from which on one counts
ZERO = 1e-6  # norm of W H below which a descent has ended at 0


def regression_value(
    samples: Count,
    length: Count,
    width: Count,
    weight: Positive,
    features: Positive,
    ratio: Ratio,
    seed: Index,
) -> float:
    """Return the least loss: over variances s^2, sum c/2 + sqrt(c) (s - sqrt(c)), or s^2/2 where s^2 < c.

    Beyond the `width` largest variances it is s^2/2 too.
    """
    return _optimum(samples, length, width, weight, features, ratio, seed).loss


def regression_value_numerical(
    samples: Count,
    length: Count,
    width: Count,
    weight: Positive,
    features: Positive,
    ratio: Ratio,
    seed: Index,
) -> float:
    """Return the loss at a numerical minimum."""
    return _minimum(samples, length, width, weight, features, ratio, seed)[2]


def regression_gram_error(
    samples: Count,
    length: Count,
    width: Count,
    weight: Positive,
    features: Positive,
    ratio: Ratio,
    seed: Index,
) -> float:
    """Return the distance of W W^T at a numerical minimum from its form, over the latter's norm.

    The form is sqrt(lambda_H/lambda_W) (Sigma^(1/2) - sqrt(c) I), for c below all variances.
    """
    form = _optimum(samples, length, width, weight, features, ratio, seed).gram
    if not form.any():
        raise InputError("weight: so large, with features, that W is 0; give a smaller one")
    found, _, _ = _minimum(samples, length, width, weight, features, ratio, seed)
    return float((found @ found.T - form).norm() / form.norm())


def regression_rank(
    samples: Count,
    length: Count,
    width: Count,
    weight: Positive,
    features: Positive,
    ratio: Ratio,
    seed: Index,
) -> float:
    """Return the number of variances of the targets above c, at most d, which is the rank of an optimal W."""
    return float(_optimum(samples, length, width, weight, features, ratio, seed).rank)


def regression_rank_numerical(
    samples: Count,
    length: Count,
    width: Count,
    weight: Positive,
    features: Positive,
    ratio: Ratio,
    seed: Index,
) -> float:
    """Return the rank of W at a numerical minimum, from singular values above 0.001 of the largest."""
    found, free, _ = _minimum(samples, length, width, weight, features, ratio, seed)
    sizes = torch.linalg.svdvals(found)
    if float((free @ found.T).norm()) < ZERO:
        return 0.0
    return float((sizes > RANK * sizes[0]).sum())


def regression_outside(
    samples: Count,
    length: Count,
    width: Count,
    weight: NonNegative,
    features: NonNegative,
    ratio: Ratio,
    seed: Index,
) -> float:
    """Return the share of |H|^2 outside the rows of W where a descent from one random start ends."""
    matrix, found, _ = _minimum(samples, length, width, weight, features, ratio, seed)
    inside = found @ torch.linalg.pinv(matrix) @ matrix
    return float((found - inside).square().sum() / found.square().sum())


def _optimum(
    samples: int, length: int, width: int, weight: float, features: float, ratio: float, seed: int
) -> regression.RegressionOptimum:
    sigma = regression.covariance(_targets(samples, length, ratio, seed))
    return regression.regression_optimum(sigma, weight, features, width)


def _targets(samples: int, length: int, ratio: float, seed: int) -> Tensor:
    """Draw Y (M, n)."""
    generator = seeded_generator(seed, "targets")
    axes, _ = torch.linalg.qr(torch.randn(length, length, generator=generator, dtype=torch.float64))
    sizes = torch.logspace(0, -math.log10(ratio), length, dtype=torch.float64)
    return torch.randn(samples, length, generator=generator, dtype=torch.float64) * sizes @ axes.T + 1


@cache
def _minimum(
    samples: int, length: int, width: int, weight: float, features: float, ratio: float, seed: int
) -> tuple[Tensor, Tensor, float]:
    """Return W (n, d), H (M, d) and the loss where a descent ends; what is no minimum is a saddle."""
    targets = _targets(samples, length, ratio, seed)
    sizes = [length * width, samples * width, length]

    def objective(flat: Tensor) -> Tensor:
        matrix, free, bias = flat.split(sizes)
        outputs = free.view(samples, width) @ matrix.view(length, width).T + bias
        fit = (outputs - targets).square().sum() / (2 * samples)
        return fit + features / (2 * samples) * free.square().sum() + weight / 2 * matrix.square().sum()

    start = np.random.default_rng(0).standard_normal(sum(sizes))
    end = numerical.descend(objective, start, steps=5000, slope=1e-9)
    matrix, free, _ = torch.from_numpy(end.point).split(sizes)
    return matrix.view(length, width), free.view(samples, width), end.value
