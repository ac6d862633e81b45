"""More classes than a simplex has corners: softmax codes and orthogonal simplices.

[2310.05351; 2603.20587, as 2608.05852 states it]

K  classes    d  width    m = K - d  simplices
"""

import math
from collections.abc import Iterator
from typing import Annotated

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar

from ncpipe.study import Bound, InputError, Positive, cross_entropy, numerical, ufm

Classes = Annotated[int, Bound(low=3)]
Wide = Annotated[int, Bound(low=2)]
Array = np.ndarray


def code_margin(classes: Classes, width: Wide) -> float:
    """Return the largest least distance of K unit vectors to the convex hull of the others in d dimensions.

    That of a softmax code: of the simplex, of the regular polygon, and up to K = 2d of orthogonal simplices.
    InputError elsewhere.
    """
    if classes <= width + 1:
        return classes / (classes - 1)
    if width == 2:
        return 1 - math.cos(2 * math.pi / classes)
    _simplices(classes, width)
    return 1.0


def code_margin_numerical(classes: Classes, width: Wide) -> float:
    """Return the same by sequential quadratic programs, the best of four starts.

    It is the largest margin t of logits w_j h_k at unit length: (w_k - w_j) h_k >= t for all j and k.
    """
    wrong = ~np.eye(classes, dtype=bool)

    def unit(point: Array) -> tuple[Array, Array]:
        rows = point[:-1].reshape(2, classes, width)
        weight, features = rows / np.linalg.norm(rows, axis=2, keepdims=True)
        return weight, features

    def leads(point: Array) -> Array:
        weight, features = unit(point)
        logits = features @ weight.T
        return (np.diag(logits)[:, None] - logits)[wrong] - point[-1]

    def at(seed: int) -> float:
        start = np.append(np.random.default_rng(seed).standard_normal(2 * classes * width), 0.0)
        rule = {"type": "ineq", "fun": leads}
        found = minimize(lambda x: -x[-1], start, method="SLSQP", constraints=rule, options={"maxiter": 500})
        return float(leads(np.append(found.x[:-1], 0.0)).min())

    return max(at(seed) for seed in range(4))


def _simplices(classes: int, width: int) -> list[tuple[int, ...]]:
    """Return the ways to have K = d + m vectors as m orthogonal simplices, largest first."""

    def split(left: int, parts: int, most: int) -> Iterator[tuple[int, ...]]:
        if parts == 1:
            yield from [(left,)] if left <= most else []
            return
        for size in range(min(most, left - 2 * (parts - 1)), 1, -1):
            yield from ((size, *rest) for rest in split(left - size, parts - 1, size))

    if not width + 2 <= classes <= 2 * width:
        raise InputError(f"classes: {classes}, width: {width}; orthogonal simplices are d + 2 to 2d vectors")
    return list(split(classes, classes - width, classes))


def cold_over_even(classes: Classes, width: Wide, scale: Positive) -> float:
    """Return the cross-entropy of a simplex and antipodal pairs, over that of the most even simplices.

    At unit length, logits `scale` cos.
    """
    ways = _simplices(classes, width)
    cold, even = (sum(_block_loss(n, classes, scale) for n in way) for way in (ways[0], ways[-1]))
    return cold / even


def simplices_value(classes: Classes, width: Wide, decay: Positive) -> float:
    """Return the least cross-entropy with decay of features and classifiers along orthogonal simplices.

    One sample a class, decay of both. Each simplex has its scale.
    """

    def least(size: int) -> float:
        def value(gap: float) -> float:
            return _block_loss(size, classes, gap) + decay * size * gap

        highest = 1 + math.log(classes) / decay  # beyond, the decay alone exceeds the value at 0
        found = minimize_scalar(value, bounds=(0.0, highest), method="bounded", options={"xatol": 1e-10})
        return float(found.fun)

    return min(sum(map(least, way)) for way in _simplices(classes, width))


def simplices_value_numerical(classes: Classes, width: Wide, decay: Positive) -> float:
    """Return the least such loss of any features and classifiers, by L-BFGS from eight starts."""
    both = ufm.Decay(decay, decay, None)
    targets, counts = torch.eye(classes), torch.ones(classes)
    return numerical.minimise_ufm(cross_entropy, targets, counts, width, both, starts=8, seed=0).value


def _block_loss(size: int, classes: int, scale: float) -> float:
    """Return what the classes of one of orthogonal simplices add to the mean cross-entropy."""
    same = (size - 1) * math.exp(-scale * size / (size - 1))
    return size / classes * math.log1p(same + (classes - size) * math.exp(-scale))
