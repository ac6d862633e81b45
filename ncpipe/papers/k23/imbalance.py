"""Solve the features model with unequal classes: minority collapse, and a fixed simplex [K23 3.1.6].

K_A majority classes of R n_B samples and K_B minority classes of n_B, N all samples. Two models: decay on A
and on every sample's features as in `ufm`, and Fang et al.'s bounds on mean squared norms [eq. 34], in which
features weigh by class. Both are convex in the logits with a nuclear norm, so that classes of one size are
alike at some optimum. The minority's contrast is the length of its classifier rows about their mean; it falls
to 0 before the majority's does.

K  classes    z  logits of the K classes' samples
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, minimize

from ncpipe.system.errors import InputError

SEARCH = (1e-9, 1.0)  # ends of the interval that the multiplier of a norm bound is searched on


@dataclass(frozen=True)
class Classes:
    """K_A and K_B classes, `minority` samples in each of the K_B and ratio times as many in the others."""

    majorities: int
    minorities: int
    minority: int
    ratio: float

    def __post_init__(self) -> None:
        if min(self.majorities, self.minorities, self.minority) < 1:
            raise InputError("majorities, minorities and samples of a minority must be at least 1 each")
        if not self.ratio >= 1:
            raise InputError(f"ratio: {self.ratio:g}; a majority is at least as large as a minority")

    @property
    def samples(self) -> float:
        return self.minority * (self.majorities * self.ratio + self.minorities)


def minority_threshold(classes: Classes) -> float:
    """Return sqrt(n_B)/N: minority contrast is 0 iff sqrt(lambda_A lambda_F) is at least this.

    Exact for cross-entropy and MSE, whatever the bias: at contrast 0 its derivative of the loss is -n_B/N for
    each direction and that of the nuclear norm sqrt(n_B) sqrt(lambda_A lambda_F).
    """
    return math.sqrt(classes.minority) / classes.samples


def largest_ratio(majorities: int, minorities: int, minority: int, decay: float) -> float:
    """Return R* = (1/(sqrt(n_B) decay) - K_B)/K_A, from which on minorities collapse; below 1: at any ratio.

    decay: sqrt(lambda_A lambda_F).
    """
    return (1 / (math.sqrt(minority) * decay) - minorities) / majorities


def mse_logits(counts: Sequence[int], decay: float) -> np.ndarray:
    """Return z_k = max(1 - N decay/sqrt(n_k), 0), a class's own logit under MSE without bias; others are 0.

    Rows of A stay orthogonal and shrink to 0, so that the angle between minority rows never closes: a
    minority is lost by its length. decay: sqrt(lambda_A lambda_F).
    """
    sizes = np.asarray(counts, dtype=float)
    found: np.ndarray = np.maximum(1 - sizes.sum() * decay / np.sqrt(sizes), 0)
    return found


# Bounds on norms


@dataclass(frozen=True)
class Peeled:
    """Optimum of eq. 34: cross-entropy, contrasts of both groups, the bound's multiplier."""

    value: float
    majority_contrast: float
    minority_contrast: float
    multiplier: float


def layer_peeled(classes: Classes, weight_bound: float, feature_bound: float) -> Peeled:
    """Return the least sum_k n_k/N CE(z_k) with |Z|_* <= K sqrt(Omega_A Omega_F), Z (K, K) [eq. 34].

    The minority's contrast is 0 iff the bound's multiplier is at least n_B/N. Raises InputError unless both
    bounds are positive.
    """
    if not min(weight_bound, feature_bound) > 0:
        raise InputError(f"bounds {weight_bound:g} and {feature_bound:g}; both must be positive")
    bound = (classes.majorities + classes.minorities) * math.sqrt(weight_bound * feature_bound)

    def excess(log_multiplier: float) -> float:
        return _penalised(classes, math.exp(log_multiplier))[1] - bound

    ends = [math.log(end) for end in SEARCH]
    if excess(ends[0]) < 0:
        raise InputError(
            f"bounds {weight_bound:g} and {feature_bound:g} are too loose to solve for numerically"
        )
    multiplier = math.exp(brentq(excess, *ends, xtol=1e-12))
    (a, b, *_), _, fit = _penalised(classes, multiplier)
    return Peeled(fit, a, b, multiplier)


def _penalised(classes: Classes, multiplier: float) -> tuple[np.ndarray, float, float]:
    """Minimise cross-entropy + multiplier |Z|_*; return (a, b, U, V), |Z|_* and the cross-entropy.

    Z = a (I - u_A u_A^T) + b (I - u_B u_B^T) + [u_A u_B] U V^T [u_A u_B]^T, u the groups' unit vectors of
    equal entries; |U V^T|_* is the least (|U|^2 + |V|^2)/2.
    """

    def parts(flat: np.ndarray) -> tuple[float, float]:
        a, b = flat[:2]
        left, right = flat[2:6].reshape(2, 2), flat[6:].reshape(2, 2)
        norm = (classes.majorities - 1) * a + (classes.minorities - 1) * b + (flat[2:] ** 2).sum() / 2
        return _cross_entropy(classes, a, b, left @ right.T), float(norm)

    def objective(flat: np.ndarray) -> float:
        fit, norm = parts(flat)
        return fit + multiplier * norm

    start = np.array([1.0, 1.0, 1.0, -0.5, -0.5, 1.0, 1.0, -0.4, -0.6, 1.0])
    bounds = [(0, None)] * 2 + [(None, None)] * 8
    options = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 5000, "maxfun": 200_000}
    found = minimize(objective, start, jac="3-point", method="L-BFGS-B", bounds=bounds, options=options)
    fit, norm = parts(found.x)
    return found.x, norm, fit


def _cross_entropy(classes: Classes, a: float, b: float, block: np.ndarray) -> float:
    """Return sum_k n_k/N CE(z_k) of the symmetric logits; block (2, 2): sample's group x logit's group."""
    counts = classes.majorities, classes.minorities
    sizes = classes.ratio * classes.minority, classes.minority
    total = 0.0
    for group, contrast in ((0, a), (1, b)):
        levels = [block[group, other] / math.sqrt(counts[group] * counts[other]) for other in (0, 1)]
        own = levels[group] - contrast / counts[group]  # of a wrong class of the same group
        right = own + contrast
        logits = np.array([right, own, levels[1 - group]])
        weights = np.array([1, counts[group] - 1, counts[1 - group]])
        norm = right + math.log(float((weights * np.exp(logits - right)).sum()))
        total += counts[group] * sizes[group] / classes.samples * (norm - right)
    return total


# A fixed classifier


def fixed_etf_length(classes: int, samples: float, length: float, decay: float) -> float:
    """Return the length of every sample's best features for a fixed simplex with rows of `length`.

    Cross-entropy plus decay/2 times all squared features: the samples do not meet, so the least is along the
    sample's own row and of one length, however unequal the classes are: NC1 and NC2 are 0 at every ratio.
    """
    if classes < 2 or not min(samples, length, decay) > 0:
        raise InputError("a fixed simplex needs 2 classes, and samples, length and decay above 0")
    slope = length * classes / (classes - 1)  # of the logit gap in the features' length

    def derivative(size: float) -> float:
        odds = math.exp(-slope * size)
        return samples * decay * size - slope * (classes - 1) * odds / (1 + (classes - 1) * odds)

    return float(brentq(derivative, 0.0, slope / (samples * decay), xtol=1e-15))
