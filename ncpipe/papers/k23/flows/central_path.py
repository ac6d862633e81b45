"""Follow the central path: features under MSE with the least-squares classifier [K23 eq. 30, 31].

With the best A and b for the features, no decay, and white within-class scatter Sigma_W = I, the MSE is

    L = 1/2 sum_j 1/(K + omega_j^2)

of the singular values omega_j of the centred class means, j = 1..K-1: features with larger, equal omega_j
have collapsed further. Two flows keep Sigma_W = I. The tangent flow, that of eq. 31 as printed, projects the
gradient on the white features; renormalising after every step, the text's words, multiplies all features by
Sigma_W^(-1/2) and so lengthens the means too.

K  classes    n  samples of a class    N = K n    m  width    features (N, m), ordered by class
"""

import math
from typing import Literal

import numpy as np
from scipy.optimize import brentq

from ncpipe.system.errors import InputError

Kind = Literal["tangent", "whitening"]


def signal(features: np.ndarray, classes: int) -> np.ndarray:
    """Return omega_j (K-1,), descending: singular values of Sigma_W^(-1/2) times the centred class means."""
    white = whitened(features, classes)
    _, _, means = parts(white, classes)
    values: np.ndarray = np.linalg.svd(means - means.mean(0), compute_uv=False)[: classes - 1]
    return values


def whitened(features: np.ndarray, classes: int) -> np.ndarray:
    """Return features times Sigma_W^(-1/2); raise InputError if Sigma_W is singular (N - K < width)."""
    _, within, _ = parts(features, classes)
    values, vectors = np.linalg.eigh(within.T @ within / len(features))
    if values[0] <= values[-1] * len(values) * np.finfo(float).eps:
        spanned = f"{len(features)} samples of {classes} classes span too little"
        raise InputError(f"{spanned} of {len(values)} dimensions to be whitened")
    found: np.ndarray = features @ (vectors / np.sqrt(values)) @ vectors.T
    return found


def parts(features: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return class means for every sample (N, m), deviations from them (N, m), and the means (K, m)."""
    means = features.reshape(classes, -1, features.shape[1]).mean(1)
    spread = np.repeat(means, len(features) // classes, axis=0)
    return spread, features - spread, means


def velocity(features: np.ndarray, classes: int, kind: Kind) -> np.ndarray:
    """Return the flow of white, centred features (N, m): the negative gradient, projected to Sigma_W = I."""
    spread, within, means = parts(features, classes)
    samples = len(features)
    scatter = features.T @ features / samples
    solved = np.linalg.solve(scatter, means.T).T  # rows Sigma_F^-1 mu_k
    # L = const - tr(M^T Sigma_F^-1 M)/(2 K^2): through the means, and through Sigma_F
    up = np.repeat(solved, samples // classes, axis=0) / (classes * samples)
    down = features @ (solved.T @ solved) / (classes**2 * samples)
    gradient = down - up
    step = -(gradient - gradient.mean(0))
    change = (step.T @ within + within.T @ step) / samples  # of Sigma_W
    found: np.ndarray = step - (within if kind == "tangent" else within + spread) @ change / 2
    return found


def follow(features: np.ndarray, classes: int, kind: Kind, time: float, steps: int) -> np.ndarray:
    """Whiten and centre features (N, m), and integrate their flow by the classical Runge-Kutta method."""
    here = whitened(features - features.mean(0), classes)
    size = time / steps
    for _ in range(steps):
        first = velocity(here, classes, kind)
        second = velocity(here + size / 2 * first, classes, kind)
        third = velocity(here + size / 2 * second, classes, kind)
        fourth = velocity(here + size * third, classes, kind)
        here = here + size / 6 * (first + 2 * second + 2 * third + fourth)
    return here


def clock(omega: float, classes: int, per_class: int, kind: Kind) -> float:
    """Return the time at which a singular value is omega, up to a constant that depends on its start.

    n (K^2 log omega + K omega^2 + omega^4/4) for the tangent flow: omega ~ (4 t/n)^(1/4), so that NC1 ~
    t^(-1/2). N (K log omega + omega^2/2) for whitening: omega ~ (2 t/N)^(1/2) and NC1 ~ 1/t.
    """
    if kind == "tangent":
        return per_class * (classes**2 * math.log(omega) + classes * omega**2 + omega**4 / 4)
    return classes * per_class * (classes * math.log(omega) + omega**2 / 2)


def signal_at(omega: float, time: float, classes: int, per_class: int, kind: Kind) -> float:
    """Return omega(t) from omega(0) = omega."""
    goal = clock(omega, classes, per_class, kind) + time
    highest = 2 * omega
    while clock(highest, classes, per_class, kind) < goal:
        highest *= 2
    return float(
        brentq(lambda value: clock(value, classes, per_class, kind) - goal, omega, highest, xtol=1e-14)
    )
