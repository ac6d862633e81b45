"""Minimise features models numerically where no closed form is known, float64.

These are unbalanced classes, soft labels, widths too small for the frame, and any loss of logits and targets.
`gufm` and `ufm` have the closed forms. Points are distinct targets, not samples: for fixed W each sample's
feature is chosen by its own loss alone (GUFM), and a convex loss and the decay both fall when samples of one
target move to their mean (UFM), so samples of one target share a feature at the optimum.

M  points    K  classes    d  feature width    S  starts
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from ncpipe.models.loss_functions import Loss
from ncpipe.system.errors import InputError
from ncpipe.theory.ufm import Decay

Parts = tuple[Tensor, Tensor, Tensor | None]
STEPS = 20_000  # of L-BFGS, which ends long before
SLOPE = 1e-8  # largest derivative at which it ends: flat directions are quartic here, so values err by 1e-10


@dataclass(frozen=True)
class Minimum:
    """The best end of all starts.

    point: the free numbers there. values (S,): where each start ended, ascending; unless the problem is
    convex an end may be a local minimum. slope: largest derivative at the best one.
    """

    value: float
    point: Tensor
    values: Tensor
    slope: float


class End(NamedTuple):
    """Where one descent stopped: the loss, the free numbers, the largest derivative."""

    value: float
    point: np.ndarray
    slope: float


def descend(
    objective: Callable[[Tensor], Tensor],
    start: np.ndarray,
    *,
    steps: int = STEPS,
    slope: float = SLOPE,
) -> End:
    """Return the end of L-BFGS from a start, after at most `steps` or at a largest derivative of `slope`."""

    def evaluate(values: np.ndarray) -> tuple[float, np.ndarray]:
        flat = torch.from_numpy(values).requires_grad_()
        value = objective(flat)
        (gradient,) = torch.autograd.grad(value, flat)
        return value.item(), gradient.numpy()

    options = {"maxiter": steps, "maxfun": 2 * steps, "maxcor": 20, "ftol": 0.0, "gtol": slope}
    end = minimize(evaluate, start, jac=True, method="L-BFGS-B", options=options)
    return End(float(end.fun), end.x, float(np.abs(end.jac).max()))


def least(objective: Callable[[Tensor], Tensor], size: int, *, starts: int, seed: int) -> Minimum:
    """Minimise by L-BFGS from `starts` standard normal draws of `size` numbers, all from one generator."""
    generator = torch.Generator().manual_seed(seed)
    draws = (torch.randn(size, dtype=torch.float64, generator=generator) for _ in range(starts))
    ends = [descend(objective, draw.numpy()) for draw in draws]
    best = min(ends, key=lambda end: end.value)
    values = torch.tensor(sorted(end.value for end in ends), dtype=torch.float64)
    return Minimum(best.value, torch.from_numpy(best.point), values, best.slope)


@dataclass(frozen=True)
class NumericalOptimum:
    """The best end point of all starts.

    weight (K, d), features (M, d), bias (K,) or None; values and slope as of `Minimum`.
    """

    value: float
    weight: Tensor
    features: Tensor
    bias: Tensor | None
    values: Tensor
    slope: float

    def agreeing(self, tolerance: float) -> int:
        """Return how many starts ended within `tolerance` of the best."""
        return int((self.values <= self.value + tolerance).sum())


def minimise_gufm(
    loss: Loss,
    targets: Tensor,
    counts: Tensor,
    width: int,
    strength: float,
    bias: bool,
    *,
    starts: int,
    seed: int,
) -> NumericalOptimum:
    """Minimise mean loss + lambda_L/2 |W|^2 over |x_i| = sqrt(d), x_i^T 1 = 0 [S25 Def. 3.5].

    loss: logits (M, K), targets (M, K) -> (M,), see `losses`. targets: one row a point; counts (M,): its
    number of samples. Raises InputError for a width below 2, where no such x exists, and strength <= 0.
    """
    if width < 2 or not strength > 0:
        raise InputError(f"width {width}, lambda_L {strength:g}; need a width of at least 2, lambda_L > 0")
    targets, counts = _points(targets, counts, starts)

    def parts(free: Parts) -> Parts:
        weight, features, offset = free
        centred = features - features.mean(1, keepdim=True)
        return weight, width**0.5 * centred / centred.norm(dim=1, keepdim=True), offset

    def objective(weight: Tensor, features: Tensor, offset: Tensor | None) -> Tensor:
        fit = _mean_loss(loss, targets, counts, weight, features, offset)
        return fit + strength / 2 * weight.square().sum()

    return _minimise(objective, parts, targets, width, bias, starts, seed)


def minimise_ufm(
    loss: Loss, targets: Tensor, counts: Tensor, width: int, decay: Decay, *, starts: int, seed: int
) -> NumericalOptimum:
    """Minimise mean loss + lambda_A/2 |A|^2 + lambda_F/2 |F|^2 + lambda_b/2 |b|^2 [K23 eq. 21, 28].

    Arguments as of `minimise_gufm`; |F|^2 counts a point's feature once for each of its samples. The loss is
    convex in the logits.
    """
    targets, counts = _points(targets, counts, starts)

    def objective(weight: Tensor, features: Tensor, offset: Tensor | None) -> Tensor:
        fit = _mean_loss(loss, targets, counts, weight, features, offset)
        lengths = (counts * features.square().sum(1)).sum()
        value = fit + decay.weight / 2 * weight.square().sum() + decay.features / 2 * lengths
        return value if offset is None else value + (decay.bias or 0.0) / 2 * offset.square().sum()

    return _minimise(objective, lambda free: free, targets, width, decay.bias is not None, starts, seed)


def _points(targets: Tensor, counts: Tensor, starts: int) -> tuple[Tensor, Tensor]:
    """Return both in float64; raise InputError unless they fit together."""
    if targets.ndim != 2 or counts.shape != targets.shape[:1] or not bool((counts > 0).all()):
        shapes = f"targets {tuple(targets.shape)}, counts {tuple(counts.shape)}"
        raise InputError(f"{shapes}; expected (M, K) and M positive numbers of samples")
    if starts < 1:
        raise InputError(f"starts: {starts}; at least one is needed")
    return targets.double(), counts.double()


def _mean_loss(
    loss: Loss, targets: Tensor, counts: Tensor, weight: Tensor, features: Tensor, offset: Tensor | None
) -> Tensor:
    logits = features @ weight.T if offset is None else features @ weight.T + offset
    return (counts / counts.sum() * loss(logits, targets)).sum()


def _minimise(
    objective: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    parts: Callable[[Parts], Parts],
    targets: Tensor,
    width: int,
    bias: bool,
    starts: int,
    seed: int,
) -> NumericalOptimum:
    """Minimise by L-BFGS from `starts` draws; `parts` maps free numbers to W, X and b."""
    points, classes = targets.shape
    sizes = [classes * width, points * width, classes * bias]

    def split(flat: Tensor) -> Parts:
        weight, features, offset = flat.split(sizes)
        free = weight.view(classes, width), features.view(points, width), offset if bias else None
        return parts(free)

    best = least(lambda flat: objective(*split(flat)), sum(sizes), starts=starts, seed=seed)
    return NumericalOptimum(best.value, *split(best.point), best.values, best.slope)
