"""Compute numbers of features models' optima, for claims [K23 sec. 3.1, 5].

Each function takes plain numbers and returns one. The function with `_numerical` behind its name computes the
same number by numerical minimisation, which shares no formula with it.
"""

import math
from collections.abc import Callable
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ncpipe import functional
from ncpipe.papers.k23 import batch_norm, smoothing, supcon, two_linear
from ncpipe.study import (
    Bound,
    Count,
    Fraction,
    InputError,
    Positive,
    cross_entropy,
    half_squared_error,
    numerical,
    ufm,
)

Classes = Annotated[int, Bound(low=2)]
LOSSES: dict[ufm.Loss, Callable[..., Tensor]] = {"ce": cross_entropy, "mse": half_squared_error}
STARTS = 4
MOST_RATIO = 100.0  # of class sizes, in numerical searches
LOST = 1e-3  # a minority's contrast, as a share of W, that counts as none


def smoothing_value(
    loss: ufm.Loss, classes: Classes, per_class: Count, decay: Positive, delta: Fraction
) -> float:
    """Return the least loss with smoothed labels, decay on classifier and features, a free bias."""
    kappa = ufm.kappa(classes, per_class, ufm.Decay(decay, decay, 0.0))
    return smoothing.ufm_value(loss, classes, kappa, delta)


def smoothing_value_numerical(
    loss: ufm.Loss, classes: Classes, per_class: Count, decay: Positive, delta: Fraction
) -> float:
    return _ufm(loss, classes, per_class, classes, ufm.Decay(decay, decay, 0.0), delta).value


def minority_threshold_numerical(
    majority: Count, minority: Count, per_minority: Count, ratio: Annotated[float, Bound(low=1)]
) -> float:
    """Bisect on the contrast of numerical minima under cross-entropy.

    Raises InputError for one minority, whose row has no contrast, and a ratio above MOST_RATIO. The contrast
    grows as the square root of the distance from the threshold, so that 1e-3 of W is reached 1e-6 below it.
    """
    if ratio > MOST_RATIO:
        raise InputError(f"ratio: {ratio:g}; the numerical threshold is searched up to {MOST_RATIO:g}")
    samples = per_minority * (majority * ratio + minority)
    highest = math.sqrt(ratio * per_minority) / samples  # where the majority has collapsed too
    return _where_lost(
        lambda decay: minority_contrast(majority, minority, per_minority, ratio, decay),
        0.1 * highest,
        highest,
    )


def largest_ratio_numerical(majority: Count, minority: Count, per_minority: Count, decay: Positive) -> float:
    """Bisect between 1 and MOST_RATIO on the contrast of numerical minima under cross-entropy.

    Raises InputError for one minority, and where the contrast is lost at both ends or at neither.
    """

    def contrast(ratio: float) -> float:
        return minority_contrast(majority, minority, per_minority, ratio, decay)

    if contrast(1.0) < LOST or contrast(MOST_RATIO) >= LOST:
        raise InputError(f"decay: {decay:g}; its ratio is not between 1 and {MOST_RATIO:g}; give another")
    return _where_lost(contrast, 1.0, MOST_RATIO)


def _where_lost(contrast: Callable[[float], float], low: float, high: float) -> float:
    """Return where a falling contrast is lost between two numbers."""
    for _ in range(14):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if contrast(middle) < LOST else (middle, high)
    return math.sqrt(low * high)


def minority_contrast(majority: int, minority: int, per_minority: int, ratio: float, decay: float) -> float:
    """Return the norm of the minority's centred rows over |W|, at a numerical minimum of cross-entropy.

    Raises InputError for one minority, whose row has none.
    """
    if minority < 2:
        raise InputError(f"minority: {minority}; contrast between minorities needs at least 2")
    sizes = torch.tensor([ratio * per_minority] * majority + [per_minority] * minority, dtype=torch.float64)
    decays = ufm.Decay(decay, decay, None)
    optimum = numerical.minimise_ufm(
        cross_entropy, torch.eye(len(sizes)), sizes, len(sizes), decays, starts=1, seed=0
    )
    norm, rows = optimum.weight.norm(), optimum.weight[majority:]
    return 0.0 if norm < 1e-6 else float((rows - rows.mean(0)).norm() / norm)


def fixed_etf_collapse(classes: Classes, ratio: Positive, decay: Positive, length: Positive) -> float:
    """Return NC2 of optimal features under a fixed simplex, one class `ratio` times the others."""
    sizes = torch.ones(classes, dtype=torch.float64)
    sizes[0] = ratio
    rows = length * math.sqrt(classes / (classes - 1)) * (torch.eye(classes).double() - 1 / classes)

    def objective(flat: Tensor) -> Tensor:
        features = flat.view(classes, classes)
        fit = (sizes / sizes.sum() * cross_entropy(features @ rows.T, torch.eye(classes).double())).sum()
        return fit + decay / 2 * (sizes * features.square().sum(1)).sum()

    minimum = numerical.least(objective, classes**2, starts=STARTS, seed=0)
    unit = torch.nn.functional.normalize(minimum.point.view(classes, classes))
    return functional.nc2_etf(unit)


def supcon_value_numerical(
    classes: Classes, per_class: Count, temperature: Positive, include_self: bool
) -> float:
    def objective(flat: Tensor) -> Tensor:
        unit = torch.nn.functional.normalize(flat.view(classes * per_class, classes))
        return supcon.supcon_loss(unit, classes, temperature, include_self=include_self)

    return numerical.least(objective, classes**2 * per_class, starts=STARTS, seed=0).value


def two_linear_logit_numerical(strength: Positive) -> float:
    """Return the best of a grid of 10^6 values."""
    logits = np.linspace(0, 1, 1_000_001)
    return float(logits[((logits - 1) ** 2 / 2 + 1.5 * strength * logits ** (2 / 3)).argmin()])


def two_linear_frame(classes: Classes, strength: Positive) -> float:
    """Return the largest distance from eq. 39 at a numerical minimum of eq. 36, for n = 1 and c = `strength`.

    Distances of F and of A_2 A_1 from an orthogonal frame, and 1 - cos of the two. Raises InputError from the
    jump on, where the minimum is 0.
    """
    if strength >= two_linear.JUMP:
        raise InputError(
            f"strength: {strength:g}; from {two_linear.JUMP:g} on the minimum is 0, without a frame"
        )
    decay = strength / classes

    def objective(flat: Tensor) -> Tensor:
        second, first, features = flat.view(3, classes, classes)
        fit = (second @ first @ features - torch.eye(classes)).square().sum() / (2 * classes)
        return fit + decay / 2 * flat.square().sum()

    minimum = numerical.least(objective, 3 * classes**2, starts=STARTS, seed=0)
    second, first, features = minimum.point.view(3, classes, classes)
    both = second @ first
    cosine = torch.nn.functional.cosine_similarity(both.flatten(), features.T.flatten(), dim=0)
    return max(functional.nc2_identity(features.T), functional.nc2_identity(both), float(1 - cosine))


def two_linear_jump(distance: Annotated[float, Bound(0, 1, open_low=True)]) -> float:
    """Return z just below the jump, at a share `distance` before it."""
    return two_linear.best_logit(two_linear.JUMP * (1 - distance))


def batch_norm_value_numerical(classes: Classes, per_class: Count, decay: Positive) -> float:
    samples = classes * per_class

    def objective(flat: Tensor) -> Tensor:
        features, gamma, shift, weight = flat.split(sizes)
        square = weight.view(classes, classes)
        return batch_norm.objective(decay, features.view(samples, classes), gamma, shift, square)

    sizes = [samples * classes, classes, classes, classes**2]
    return numerical.least(objective, sum(sizes), starts=3 * STARTS, seed=0).value


def orthoplex_value_numerical(classes: Classes, per_class: Count, decay: Positive) -> float:
    return _ufm("ce", classes, per_class, classes // 2, ufm.Decay(decay, decay, None)).value


def orthoplex_cosines(classes: Classes, per_class: Count, decay: Positive) -> float:
    """Return the largest distance of a cosine between optimal features from -1 or 0, whichever is nearer."""
    cosines = narrow_cosines(classes, per_class, decay)
    return float(np.minimum(np.abs(cosines), np.abs(cosines + 1)).max())


def narrow_cosines(classes: int, per_class: int, decay: float) -> np.ndarray:
    """Return cosines (K (K-1),) between features of a numerical minimum with half the width for K classes."""
    rows = torch.nn.functional.normalize(
        _ufm("ce", classes, per_class, classes // 2, ufm.Decay(decay, decay, None)).features
    )
    cosines: np.ndarray = (rows @ rows.T)[~torch.eye(classes, dtype=torch.bool)].numpy()
    return cosines


def _ufm(
    loss: ufm.Loss, classes: int, per_class: int, width: int, decay: ufm.Decay, delta: float = 0.0
) -> numerical.NumericalOptimum:
    targets = (1 - delta) * torch.eye(classes).double() + delta / classes
    counts = torch.full((classes,), per_class)
    return numerical.minimise_ufm(LOSSES[loss], targets, counts, width, decay, starts=STARTS, seed=0)
