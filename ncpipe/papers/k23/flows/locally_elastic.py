"""Simulate locally elastic networks as a stochastic differential equation [K23 3.2.2, 3.2.3].

    dF~ = B mean(F) dt + sigma dW,    d mean(F)/dt = B mean(F)    [eq. 42, 43]

A sample moves along the class means f_j (not along the representative samples: their noise does not feed
back), with impact alpha of its own class and beta of the others: block (i, j) of B is E_ij T_ij/K, E = (alpha
- beta) I + beta 11^T. T is the identity, or turns every impact to the residual of its source, T_ij = d_j
d_j^T/|d_j|^2 with d_j = e_j - 1/K [eq. 46].

K  classes    m  width    T  times    means (K, m)
"""

import math

import numpy as np
from scipy.linalg import expm

from ncpipe.study import InputError


def residuals(classes: int) -> np.ndarray:
    """Return d_j (K, K), rows e_j - 1/K: a simplex ETF."""
    rows: np.ndarray = np.eye(classes) - 1 / classes
    return rows


def drift(classes: int, own: float, other: float) -> np.ndarray:
    """Return B (K K, K K) for impacts alpha = own and beta = other along the residuals, m = K.

    Its rates are (alpha - beta)/K once, along the residuals, (alpha + beta/(K-1))/K K - 1 times, and 0 in the
    K (K-1) other directions. K23's multiplicities after eq. 46 are permuted.
    """
    impact, rows = (own - other) * np.eye(classes) + other, residuals(classes)
    blocks: np.ndarray = np.einsum("ij,jk,jl->ikjl", impact, rows, rows) / (classes - 1)
    return blocks.reshape(classes**2, -1)


def means_at(start: np.ndarray, matrix: np.ndarray, time: float) -> np.ndarray:
    """Return class means (K, m) at a time [eq. 43]."""
    means: np.ndarray = (expm(time * matrix) @ start.ravel()).reshape(start.shape)
    return means


def etf_error(means: np.ndarray) -> float:
    """Return |M M^T/|M M^T| - E_K/sqrt(K-1)| of the centred means (K, m), 0 for a simplex ETF [K23 eq. 7]."""
    centred = means - means.mean(0)
    gram = centred @ centred.T
    goal = residuals(len(means)) / math.sqrt(len(means) - 1)
    return float(np.linalg.norm(gram / np.linalg.norm(gram) - goal))


def etf_slope(classes: int, own: float, other: float) -> float:
    """Return the slope in t of log `etf_error`: beta/(K-1), or -(alpha - beta)/K for alpha < -beta/(K-1).

    Only for beta < 0 and alpha > beta do class means go to an ETF. nu = min(alpha - beta, alpha + (K-1) beta)
    > 0, K23's condition for separation, does not imply beta < 0. Raises InputError elsewhere, and for two
    classes, whose means are always an ETF.
    """
    if classes < 3 or not other < min(0, own):
        raise InputError(
            f"classes {classes}, own {own:g}, other {other:g}; need at least 3 classes, other below 0 and own"
        )
    return (max(own + other / (classes - 1), 0) - (own - other)) / classes


def log_separation(classes: int, strength: float, power: float, time: float) -> float:
    """Return log(|f_i - f_j|/sqrt(t)) at t, from 0 at t = 1, T = I and alpha - beta = strength/t^power.

    Differences of class means grow by exp(int_1^t (alpha - beta)/K), the noise as sqrt(t): many samples are
    separable in the end iff this goes to infinity, that is for power < 1, and for power = 1 iff strength >
    K/2.
    """
    if power == 1:
        grown = strength / classes * math.log(time)
    else:
        grown = strength / classes * (time ** (1 - power) - 1) / (1 - power)
    return grown - math.log(time) / 2
