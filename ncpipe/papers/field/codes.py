"""Directions of many classes, and what depth prefers [2310.05351; 2603.20587; 2605.23087; 2410.23169].

K  classes    d  width    L  matrices, features included
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Annotated, Literal

import numpy as np
import torch
from scipy.integrate import solve_ivp
from scipy.linalg import hadamard
from scipy.optimize import minimize_scalar, nnls
from torch import Tensor

from ncpipe.config.bounds import Bound, Count, Index, Positive
from ncpipe.metrics.loss_functions import cross_entropy
from ncpipe.system.errors import InputError
from ncpipe.theory.numerical import descend

Classes = Annotated[int, Bound(low=3)]
Even = Annotated[int, Bound(low=4)]
Matrices = Annotated[int, Bound(low=2)]
Shape = Literal["orthoplex", "polygon"]
Array = np.ndarray
ANTIPODAL = -0.99  # cosine from which on two directions count as opposite
ALIVE = 0.1  # largest logit of an end that is not 0
RANK = 1e-2  # of the largest singular value, from which on one counts
EVEN = 1.01  # largest over least singular value of what counts as neural collapse


def code_margin(classes: Classes, width: Count, scale: Positive, starts: Count) -> float:
    """Return the least distance of a class's direction from the hull of the others, at a numerical minimum.

    Of cross-entropy over unit W and unit features, logits `scale` W h: the margin of a softmax code.
    """
    return one_vs_rest(_directions(classes, width, scale, starts))


def code_largest_cosine(classes: Classes, width: Count, scale: Positive, starts: Count) -> float:
    """Return the largest cosine between two classes' features at that minimum."""
    return float(_cosines(classes, width, scale, starts).max())


def code_antipodal_pairs(classes: Classes, width: Count, scale: Positive, starts: Count) -> float:
    """Return the number of pairs of classes with opposite features (cosine below -0.99) at that minimum."""
    return float((_cosines(classes, width, scale, starts) < ANTIPODAL).sum())


def one_vs_rest(rows: Array) -> float:
    """Return min_k of the distance of row k from the convex hull of the others; rows (K, d)."""
    heavy = 1e5  # of the row that makes the shares sum to 1
    distances = []
    for place in range(len(rows)):
        others = np.delete(rows, place, 0)
        system = np.vstack([others.T, np.full(len(others), heavy)])
        shares, _ = nnls(system, np.append(rows[place], heavy))
        distances.append(np.linalg.norm(shares @ others - rows[place]))
    return float(min(distances))


def _cosines(classes: int, width: int, scale: float, starts: int) -> Array:
    """Return the cosines of all pairs (K (K-1)/2,)."""
    rows = _directions(classes, width, scale, starts)
    found: Array = (rows @ rows.T)[np.triu_indices(classes, 1)]
    return found


def _directions(classes: int, width: int, scale: float, starts: int) -> Array:
    """Return unit features (K, d) of the best end; each start is led from logits of scale 4 up to `scale`."""
    size = classes * width
    targets = torch.eye(classes, dtype=torch.float64)

    def loss_at(temperature: float) -> Callable[[Tensor], Tensor]:
        def objective(flat: Tensor) -> Tensor:
            unit = torch.nn.functional.normalize(flat.view(2, classes, width), dim=-1)
            # The logarithm of so small a loss is about -temperature times the margin.
            return cross_entropy(temperature * unit[1] @ unit[0].T, targets).mean().log() / temperature

        return objective

    ends = []
    for seed in range(starts):
        point = np.random.default_rng(seed).standard_normal(2 * size)
        for temperature in np.geomspace(min(4.0, scale), scale, 6):
            rows = point.reshape(2 * classes, width)
            start = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).ravel()
            end = descend(loss_at(float(temperature)), start, steps=3000, slope=1e-9)
            point = end.point
        ends.append(end)
    rows = min(ends, key=lambda end: end.value).point[size:].reshape(classes, width)
    found: Array = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return found


def logits_of(shape: Shape | Literal["simplex"], classes: int) -> Array:
    """Return logits (K, K) of unit directions along a shape, as their Gram matrix.

    InputError for an odd number of classes and an orthoplex.
    """
    if shape == "simplex":
        found: Array = (np.eye(classes) - 1 / classes) * classes / (classes - 1)
        return found
    if shape == "orthoplex":
        if classes % 2:
            raise InputError(f"classes: {classes}; an orthoplex has an even number of vectors")
        axes = np.eye(classes // 2)
        rows = np.concatenate([axes, -axes])
    else:
        turns = 2 * np.pi * np.arange(classes) / classes
        rows = np.stack([np.cos(turns), np.sin(turns)], 1)
    return rows @ rows.T


def margin(logits: Array) -> float:
    """Return the least lead of a sample's own logit, logits (K, K), a sample of each class."""
    others = logits - np.diag(np.full(len(logits), np.inf))
    return float((np.diag(logits) - others.max(1)).min())


def depth_margin(classes: Even, matrices: Matrices, shape: Shape) -> float:
    """Return the margin of a low-rank code over the simplex's, from L matrices of the same squared norms.

    L matrices with sum |W_l|^2 = L reach Z if sum_i s_i^(2/L) = 1, s_i the singular values of Z.
    """
    return _scaled_margin(logits_of(shape, classes), matrices) / _scaled_margin(
        logits_of("simplex", classes), matrices
    )


def depth_margin_numerical(classes: Even, matrices: Matrices, shape: Shape) -> float:
    """Return the same ratio from products of built matrices."""
    margins = []
    for name in (shape, "simplex"):
        factors = balanced_factors(logits_of(name, classes), matrices)
        size = math.sqrt(sum((factor**2).sum() for factor in factors) / matrices)
        product = np.eye(classes)
        for factor in factors:
            product = (factor / size) @ product
        margins.append(margin(product))
    return margins[0] / margins[1]


def balanced_factors(product: Array, matrices: int) -> list[Array]:
    """Return square matrices whose product, the first acting first, is this; each with s^(1/L)."""
    left, sizes, right = np.linalg.svd(product)
    sizes = np.where(sizes > 1e-12 * sizes[0], sizes, 0)  # roots of rounding errors are none
    root = np.diag(sizes ** (1 / matrices))
    return [root @ right, *(root for _ in range(matrices - 2)), left @ root]


def _scaled_margin(logits: Array, matrices: int) -> float:
    sizes = np.linalg.svd(logits, compute_uv=False)
    sizes = sizes[sizes > 1e-12 * sizes[0]]
    return margin(logits) / float((sizes ** (2 / matrices)).sum() ** (matrices / 2))


def low_rank_over_dnc(classes: Even, matrices: Matrices, decay: Positive, shape: Shape) -> float:
    """Return the least cross-entropy with decay of logits along a low-rank code, over that along the simplex.

    Deep linear features model of one sample a class: sum |W_l|^2 is at least L sum_i s_i^(2/L). Both at their
    best scale other than 0.
    """
    return (
        deep_value(logits_of(shape, classes), matrices, decay)[0]
        / deep_value(logits_of("simplex", classes), matrices, decay)[0]
    )


def deep_value(logits: Array, matrices: int, decay: float) -> tuple[float, float]:
    """Return the least loss of multiples of these logits, that is no end at 0, and the multiple.

    InputError where there is no such minimum.
    """
    sizes = np.linalg.svd(logits, compute_uv=False)
    sizes = sizes[sizes > 1e-12 * sizes[0]]
    cost = decay * matrices / 2 * float((sizes ** (2 / matrices)).sum())
    leads = np.diag(logits)[:, None] - logits

    def value(log_scale: float) -> float:
        scale = math.exp(log_scale)
        return float(np.log(np.exp(-scale * leads).sum(1)).mean()) + cost * scale ** (2 / matrices)

    grid = np.linspace(-3, 6, 400)
    values = np.array([value(x) for x in grid])
    inner = [i for i in range(1, len(grid) - 1) if values[i] <= min(values[i - 1], values[i + 1])]
    if not inner:
        raise InputError(f"decay: {decay:g} leaves nothing but 0; give a smaller one")
    best = min(inner, key=lambda i: values[i])
    found = minimize_scalar(value, bounds=(grid[best - 1], grid[best + 1]), method="bounded")
    return float(found.fun), math.exp(float(found.x))


def deep_rank(classes: Classes, width: Count, matrices: Matrices, decay: Positive, starts: Count) -> float:
    """Return the rank of a deep linear model's logits, one sample a class, at the best end of its starts."""
    best = min(_deep_ends(classes, width, matrices, decay, starts), key=lambda end: end[0])
    return float(_rank(best[1]))


def deep_mean_rank(
    classes: Classes, width: Count, matrices: Matrices, decay: Positive, starts: Count
) -> float:
    """Mean rank of the logits over the ends of descents from random starts, those at 0 left out."""
    return float(np.mean([_rank(logits) for logits in _alive(classes, width, matrices, decay, starts)]))


def deep_dnc_share(
    classes: Classes, width: Count, matrices: Matrices, decay: Positive, starts: Count
) -> float:
    """Return what share of descents from random starts end at the simplex, of those that do not end at 0."""
    ends = _alive(classes, width, matrices, decay, starts)
    return float(np.mean([_is_simplex(logits) for logits in ends]))


def _alive(classes: int, width: int, matrices: int, decay: float, starts: int) -> list[Array]:
    found = [z for _, z in _deep_ends(classes, width, matrices, decay, starts) if np.abs(z).max() > ALIVE]
    if not found:
        raise InputError(f"decay: {decay:g} takes every start to 0; give a smaller one")
    return found


@cache
def _deep_ends(
    classes: int, width: int, matrices: int, decay: float, starts: int
) -> list[tuple[float, Array]]:
    """Return loss and logits (K, K), zero-sum rows, of the end of each start; inner matrices are d by d."""
    shapes = [(width, classes), *[(width, width)] * (matrices - 2), (classes, width)]
    targets = torch.eye(classes, dtype=torch.float64)

    def product(flat: Tensor) -> Tensor:
        parts = flat.split([rows * columns for rows, columns in shapes])
        found = parts[0].view(shapes[0])
        for part, shape in zip(parts[1:], shapes[1:], strict=True):
            found = part.view(shape) @ found
        return found.T

    def objective(flat: Tensor) -> Tensor:
        return cross_entropy(product(flat), targets).mean() + decay / 2 * flat.square().sum()

    ends = []
    for seed in range(starts):
        draw = np.random.default_rng(seed)
        parts = [draw.standard_normal(rows * columns) / math.sqrt(width) for rows, columns in shapes]
        end = descend(objective, np.concatenate(parts), steps=3000, slope=1e-7)
        logits = product(torch.from_numpy(end.point)).numpy()
        ends.append((end.value, logits - logits.mean(1, keepdims=True)))
    return ends


def _rank(logits: Array) -> int:
    sizes = np.linalg.svd(logits, compute_uv=False)
    return int((sizes > RANK * sizes[0]).sum())


def _is_simplex(logits: Array) -> bool:
    sizes = np.linalg.svd(logits, compute_uv=False)[: len(logits) - 1]
    return bool(sizes[0] < EVEN * sizes[-1])


def repulsion(matrices: Matrices, time: Positive, ratio: Annotated[float, Bound(low=1)]) -> float:
    """Return the growth of log(largest/least singular value) of 3 by `time`, from small ones `ratio` apart.

    K = 4, without decay, spectral start along Walsh functions; time is scaled so that the values grow as
    s' = s^(2-2/L) at first.
    """
    start = 1e-3 * np.array([ratio, 1.0, 1.0])
    scaled = time * start[0] ** (2 / matrices - 1)  # in units of the first growth
    end = spectral_flow(start, matrices, scaled)
    return math.log(end.max() / end.min()) - math.log(ratio)


def basin_share(matrices: Matrices, spread: Positive, starts: Count, seed: Index) -> float:
    """Return what share of spectral starts, with singular values 0.1 exp(spread normal), end more even.

    K = 8, seven singular values, without decay, until the largest is 60.
    """
    draw = np.random.default_rng(seed)
    even = []
    for _ in range(starts):
        start = 0.1 * np.exp(spread * draw.standard_normal(7))
        middle, end = (spectral_flow(start, matrices, math.inf, until) for until in (45.0, 60.0))
        even.append(end.max() / end.min() < middle.max() / middle.min())
    return float(np.mean(even))


def spectral_flow(start: Array, matrices: int, time: float, until: float = math.inf) -> Array:
    """Return the singular values of the logits at a time, or where the largest reaches `until`.

    Balanced L matrices, cross-entropy without decay, Z = sum_i s_i v_i v_i^T with Walsh functions v_i: then
    softmax keeps the basis, and s_i' = s_i^(2-2/L) (1 - p_i), p_i the i-th eigenvalue of the predictions, up
    to the factor L/K in time.
    """
    classes = len(start) + 1
    walsh = hadamard(classes).astype(float)

    def slopes(log_s: Array) -> Array:
        sizes = np.exp(log_s)
        logits = walsh[:, 1:] @ sizes / classes  # f(d), d the difference of two classes
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        wrong = np.array([(shares * (1 - walsh[:, i])).sum() for i in range(1, classes)])
        found: Array = sizes ** (1 - 2 / matrices) * wrong  # of log s
        return found

    def evener(clock: float, log_s: Array) -> Array:
        rates = slopes(log_s)
        return rates / rates.max() if math.isinf(time) else rates

    def reached(clock: float, log_s: Array) -> float:
        return float(log_s.max() - math.log(until)) if math.isfinite(until) else -1.0

    reached.terminal = True  # type: ignore[attr-defined]
    span = 1e3 if math.isinf(time) else time
    found = solve_ivp(evener, (0, span), np.log(start), method="LSODA", rtol=1e-9, atol=1e-11, events=reached)
    ends: Array = np.exp(found.y[:, -1])
    return ends
