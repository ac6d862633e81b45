"""Circle or simplex in modular addition: what each costs [2606.08985].

K  classes    s  length of the logits' unit, the same for both shapes
"""

import math
from typing import Annotated

import numpy as np
from codes import deep_value, logits_of

from ncpipe.study import Bound, Positive

Classes = Annotated[int, Bound(low=3)]
Array = np.ndarray


def entropy_advantage(classes: Classes, scale: Positive) -> float:
    """Return the cross-entropy of a circle's K directions less a simplex's, logits `scale` times cosines."""
    return _fit(logits_of("polygon", classes), scale) - _fit(logits_of("simplex", classes), scale)


def norm_advantage(classes: Classes) -> float:
    """Return the nuclear norm of K unit rows along a simplex less that of K unit rows on a circle."""
    simplex = math.sqrt(classes * (classes - 1))  # K - 1 singular values sqrt(K/(K-1))
    return simplex - math.sqrt(2 * classes)  # two singular values sqrt(K/2)


def norm_advantage_numerical(classes: Classes) -> float:
    """Return the same difference from built rows."""
    turns = 2 * np.pi * np.arange(classes) / classes
    circle = np.stack([np.cos(turns), np.sin(turns)], 1)
    simplex = (np.eye(classes) - 1 / classes) * math.sqrt(classes / (classes - 1))
    return float(np.linalg.norm(simplex, "nuc") - np.linalg.norm(circle, "nuc"))


def critical_decay(classes: Classes, scale: Positive) -> float:
    """Return the decay of the nuclear norm at which both cost the same; above it the circle costs less."""
    return entropy_advantage(classes, scale) / norm_advantage(classes)


def entropy_slope(classes: Classes, scale: Positive) -> float:
    """Return the slope of log `entropy_advantage` on log K from K to 2 K."""
    return math.log2(entropy_advantage(2 * classes, scale) / entropy_advantage(classes, scale))


def norm_slope(classes: Classes) -> float:
    """Return the slope of log `norm_advantage` on log K from K to 2 K."""
    return math.log2(norm_advantage(2 * classes) / norm_advantage(classes))


def critical_slope(classes: Classes, scale: Positive) -> float:
    """Return the slope of log `critical_decay` on log K from K to 2 K."""
    return math.log2(critical_decay(2 * classes, scale) / critical_decay(classes, scale))


def circle_over_simplex(classes: Classes, decay: Positive) -> float:
    """Return the least cross-entropy with decay of free W and features on a circle, over that on a simplex.

    Each at its best scale; one sample a class.
    """
    return (
        deep_value(logits_of("polygon", classes), 2, decay)[0]
        / deep_value(logits_of("simplex", classes), 2, decay)[0]
    )


def _fit(cosines: Array, scale: float) -> float:
    """Mean cross-entropy of logits `scale` times these."""
    leads = np.diag(cosines)[:, None] - cosines
    return float(np.log(np.exp(-scale * leads).sum(1)).mean())
