"""Solve the GUFM under cross-entropy with label smoothing: soft targets (1 - delta) e_y + delta/K.

The optimum keeps its directions and shrinks: smoothing adds delta (K-1)/K times the logit gap to the loss, as
more decay would. `gufm` is without it.

K  classes    d  width
"""

import math

from scipy.optimize import brentq

from ncpipe.system.errors import InputError
from ncpipe.theory.gufm import check_range


def gufm_terms(classes: int, width: int, strength: float, delta: float) -> tuple[float, float]:
    """Return cross-entropy and penalty where their sum is least, for features of norm sqrt(d).

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
    while slope * highest > 700:  # where exp ends; the root lies far below
        highest /= 2
    norm = brentq(derivative, 0.0, highest, xtol=1e-300, rtol=1e-15)
    gap = slope * norm
    fit = math.log1p((classes - 1) * math.exp(-gap)) + delta * (classes - 1) / classes * gap
    return fit, strength / 2 * classes * norm**2
