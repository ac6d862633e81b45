"""Solve the generalised unconstrained features model in closed form [S25 Def. 3.5, Lemma 4.2].

    min over W (K, d) and |x_i| = sqrt(d), x_i^T 1 = 0 of  loss(W X + b) + lambda_L/2 |W|^2

for classes of equal size, with cross-entropy or 1/(2N) |f - Y|^2, without bias (b = 0) or with a b that is
learned and not penalised. The proofs use |x_i| <= sqrt(d) only, so that features which LN's eps has shortened
cannot go below these values either. Bars are means over classes.

CE: g(t) = log(1 + (K-1) exp(-t K/(K-1))) is convex and decreasing, and a sample's loss is at least
g(z_k - z_bar). By Jensen the fit is at least g of the mean of (w_k - w_bar)^T x + b_k - b_bar, and
(w_k - w_bar)^T x <= sqrt(d) |w_k - w_bar|.
MSE without bias: drop the logits of wrong classes; K problems (w_k^T x - 1)^2/(2K) + lambda_L |w_k|^2/2
remain.
MSE with bias: the best bias centres and ridge regression gives W. Y^T Y centred is n times a projector of
rank K - 1, and tr X^T X <= N d; apply Cauchy-Schwarz.

K  classes    d  feature width
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from scipy.optimize import brentq
from torch import Tensor

from ncpipe.system.errors import InputError
from ncpipe.theory.frames import simplex_frame, zero_sum_basis

Loss = Literal["ce", "mse"]


@dataclass(frozen=True)
class Optimum:
    """A global minimiser of a features model, float64.

    fit, penalty: the parts of the value. weight (K, d); features (K, d), one for all samples of a class; bias
    (K,), None in a model without one. A minimiser is unique up to rotations and, where adding a number to all
    logits costs nothing, up to the mean of the bias, which is 0 here.
    """

    fit: float
    penalty: float
    weight: Tensor
    features: Tensor
    bias: Tensor | None

    @property
    def value(self) -> float:
        """The least regularised loss."""
        return self.fit + self.penalty


def optimal_value(loss: Loss, classes: int, width: int, strength: float, bias: bool) -> float:
    """Return L*_GUFM, the least regularised loss; arguments and errors as of `optimum`."""
    check_range(loss, classes, width, strength, bias)
    fit, penalty, _ = _solve(loss, classes, width, strength, bias)
    return fit + penalty


def optimum(loss: Loss, classes: int, width: int, strength: float, bias: bool) -> Optimum:
    """Return a minimiser: features and rows of W along a simplex ETF or (MSE without bias) orthogonal.

    strength: lambda_L. bias: whether one is learned. Raises InputError where no closed form holds, see
    `check_range`.
    """
    check_range(loss, classes, width, strength, bias)
    fit, penalty, norm = _solve(loss, classes, width, strength, bias)
    frame = torch.eye(classes).double() if _orthogonal(loss, bias) else simplex_frame(classes)
    directions = frame @ zero_sum_basis(width)[: frame.shape[1]]
    offset = torch.full((classes,), 1 / classes if loss == "mse" else 0.0, dtype=torch.float64)
    return Optimum(fit, penalty, norm * directions, width**0.5 * directions, offset if bias else None)


def smoothed_terms(classes: int, width: int, strength: float, delta: float) -> tuple[float, float]:
    """Return cross-entropy with labels (1 - delta) e_y + delta/K and penalty where their sum is least.

    The optimum keeps its directions and shrinks: smoothing adds delta (K-1)/K times the logit gap to the
    loss, as more decay would. For features of norm sqrt(d):

    min over w of log(1 + (K-1) e^-g) + delta (K-1)/K g + lambda_L/2 K w^2, g = w sqrt(d) K/(K-1), with a
    bias or without; there the increasing derivative in w is 0.
    """
    if not 0 <= delta < 1:
        raise InputError(f"smoothing: {delta:g}; expected 0 or more, and less than 1")
    check_range("ce", classes, width, strength, bias=False)
    slope = math.sqrt(width) * classes / (classes - 1)

    def derivative(norm: float) -> float:
        wrong = (classes - 1) / (math.exp(slope * norm) + classes - 1)
        return slope * (delta * (classes - 1) / classes - wrong) + strength * classes * norm

    highest = math.sqrt(width) / (classes * strength)  # the loss falls at most as fast as its first step
    highest = min(highest, 700 / slope)  # where exp ends; the root of any lambda_L lies below
    norm = _root(derivative, highest, xtol=1e-300, rtol=1e-15)
    gap = slope * norm
    fit = math.log1p((classes - 1) * math.exp(-gap)) + delta * (classes - 1) / classes * gap
    return fit, strength / 2 * classes * norm**2


def check_range(loss: Loss, classes: int, width: int, strength: float, bias: bool) -> None:
    """Raise InputError unless the closed form holds.

    It needs a known loss; two classes; lambda_L > 0, as the infimum is not attained without it; and room for
    the frame among the vectors of sum 0: d >= K, or d >= K + 1 for MSE without bias.
    """
    check_loss(loss)
    if classes < 2:
        raise InputError(f"classes: {classes}; the features model needs at least 2")
    if not (strength > 0 and math.isfinite(strength)):
        raise InputError(f"lambda_L: {strength:g}; an optimum exists only for a positive one")
    least = classes + 1 if _orthogonal(loss, bias) else classes
    if width < least:
        raise InputError(
            f"width: {width} is below {least}, which {classes} classes need for a closed-form optimum"
        )


def check_loss(loss: str, known: tuple[str, ...] = get_args(Loss)) -> None:
    """Raise InputError for a loss that a model does not know."""
    if loss not in known:
        raise InputError(f"loss: {loss!r}; expected one of {', '.join(known)}")


def _orthogonal(loss: Loss, bias: bool) -> bool:
    return loss == "mse" and not bias


def _solve(loss: Loss, classes: int, width: int, strength: float, bias: bool) -> tuple[float, float, float]:
    """Return fit, penalty and |w_k| at the optimum."""
    if loss == "ce":
        norm = _ce_norm(classes, width, strength)
        fit = math.log1p((classes - 1) * math.exp(-_logit_gap(classes, width, norm)))
    else:
        directions = classes - bias  # in which the targets, centred if there is a bias, vary
        denominator = width + strength * directions
        norm = directions / classes * width**0.5 / denominator
        fit = directions / (2 * classes) * (strength * directions / denominator) ** 2
    return fit, strength / 2 * classes * norm**2, norm


def _ce_norm(classes: int, width: int, strength: float) -> float:
    """Return the root w of the derivative of log(1 + (K-1) exp(-logit gap)) + lambda_L/2 K w^2."""

    def slope(norm: float) -> float:
        odds = math.exp(-_logit_gap(classes, width, norm))  # of one wrong class
        return strength * norm - width**0.5 * odds / (1 + (classes - 1) * odds)

    highest = width**0.5 / (classes * strength)  # the second term is at most its value at 0
    return _root(slope, highest, xtol=sys.float_info.min)


def _root(increasing: Callable[[float], float], highest: float, **tolerances: float) -> float:
    """Return the root in [0, highest]; its upper end where rounding puts it there, as for huge penalties."""
    if increasing(highest) <= 0:
        return highest
    return float(brentq(increasing, 0.0, highest, maxiter=5000, **tolerances))


def _logit_gap(classes: int, width: int, norm: float) -> float:
    """Return the right logit minus any other, where W and X lie along one simplex ETF."""
    return norm * width**0.5 * classes / (classes - 1)
