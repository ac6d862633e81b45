"""Gradient descent and spectral descent on a linear model of unbalanced classes [2510.22980].

Class means are orthonormal in R^K, the noise is isotropic; y is one-hot. The mean of |W x - y|^2/2 over the
distribution has the gradient W S - M, with M = sum_k pi_k e_k mu_k^T and S = sum_k pi_k mu_k mu_k^T + s^2 I.
Spectral descent steps along U V^T of the gradient's singular value decomposition.

K  classes    pi_k  priors    s  noise    L  matrices, W = W_L ... W_1
"""

from typing import Annotated, Literal, NamedTuple

import numpy as np

from ncpipe.config.bounds import Bound, Count, NonNegative

Classes = Annotated[int, Bound(low=2)]
Ratio = Annotated[float, Bound(low=1)]
OpenFraction = Annotated[float, Bound(0, 1, open_low=True, open_high=True)]
Name = Literal["gradient", "normalised", "spectral"]
Array = np.ndarray
STEP = 1e-3
START = 1e-2  # of the product's singular values, where there is more than one matrix
MOST = 2_000_000  # steps


class _Problem(NamedTuple):
    means: Array  # (K, K), rows orthonormal
    cross: Array  # M
    second: Array  # S
    noise: float


def component_ratio(
    descent: Name, classes: Classes, ratio: Ratio, noise: NonNegative, share: OpenFraction, matrices: Count
) -> float:
    """Return the least learned component over the largest, once that has reached a share of its target.

    A component is the response e_k^T W mu_k; the priors fall from the first to the last class by `ratio`.
    """
    problem = _problem(classes, ratio, noise)
    learned = _components(problem, _descend(problem, descent, share, matrices))
    return float(learned.min() / learned.max())


def balanced_gap(
    classes: Classes, ratio: Ratio, noise: NonNegative, share: OpenFraction, matrices: Count
) -> float:
    """Return spectral descent's class-balanced loss less gradient descent's, by equally many steps.

    Both steps have the same largest singular value; spectral descent goes to `share` of the largest target.
    """
    problem = _problem(classes, ratio, noise)
    steps = 0
    spectral = _start(classes, matrices)
    while _components(problem, _product(spectral)).max() < share * _targets(problem).max() and steps < MOST:
        spectral, steps = _stepped(problem, "spectral", spectral), steps + 1
    other = _start(classes, matrices)
    for _ in range(steps):
        other = _stepped(problem, "normalised", other)
    return _balanced_loss(problem, _product(spectral)) - _balanced_loss(problem, _product(other))


def _problem(classes: int, ratio: float, noise: float) -> _Problem:
    priors = np.geomspace(ratio, 1, classes)
    priors /= priors.sum()
    means = np.linalg.qr(np.random.default_rng(0).standard_normal((classes, classes)))[0]
    second = (means.T * priors) @ means + noise**2 * np.eye(classes)
    return _Problem(means, priors[:, None] * means, second, noise)


def _descend(problem: _Problem, descent: Name, share: float, matrices: int) -> Array:
    """Return W where its largest component has reached a share of its own target."""
    factors, targets = _start(len(problem.means), matrices), _targets(problem)
    for _ in range(MOST):
        learned = _components(problem, _product(factors))
        if learned.max() >= share * targets[learned.argmax()]:
            break
        factors = _stepped(problem, descent, factors)
    return _product(factors)


def _start(classes: int, matrices: int) -> list[Array]:
    """Return 0 for one matrix, else equal multiples of orthonormal ones, so that no component is ahead."""
    if matrices == 1:
        return [np.zeros((classes, classes))]
    means = np.linalg.qr(np.random.default_rng(0).standard_normal((classes, classes)))[0]
    scale = START ** (1 / matrices)
    return [scale * means, *(scale * np.eye(classes) for _ in range(matrices - 1))]


def _stepped(problem: _Problem, descent: Name, factors: list[Array]) -> list[Array]:
    gradient = _product(factors) @ problem.second - problem.cross
    found = []
    for place, factor in enumerate(factors):
        after = _product([np.eye(len(gradient)), *factors[place + 1 :]])
        before = _product([np.eye(len(gradient)), *factors[:place]])
        found.append(factor - STEP * _direction(after.T @ gradient @ before.T, descent))
    return found


def _direction(gradient: Array, descent: Name) -> Array:
    if descent == "gradient":
        return gradient
    left, sizes, right = np.linalg.svd(gradient)
    if descent == "normalised":
        scaled: Array = gradient / sizes[0]
        return scaled
    turned: Array = left @ right
    return turned


def _product(factors: list[Array]) -> Array:
    """Multiply factors, of which the first acts first."""
    found = factors[0]
    for factor in factors[1:]:
        found = factor @ found
    return found


def _components(problem: _Problem, weight: Array) -> Array:
    found: Array = np.einsum("kd,kd->k", weight, problem.means)
    return found


def _targets(problem: _Problem) -> Array:
    return _components(problem, np.linalg.solve(problem.second, problem.cross.T).T)


def _balanced_loss(problem: _Problem, weight: Array) -> float:
    """Mean over classes of E|W x - e_k|^2/2."""
    errors = problem.means @ weight.T - np.eye(len(weight))
    return float((errors**2).sum() / (2 * len(weight)) + problem.noise**2 * (weight**2).sum() / 2)
