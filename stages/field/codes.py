"""Directions of classes at unit length, beyond the simplex, and what depth prefers.

[2605.20302; 2209.09211; 2310.05351; 2603.20587; 2410.23169]

K  classes    d  width    L  matrices, features included
"""

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Annotated, Literal

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from ncpipe.study import Bound, Count, Decay, InputError, Positive, cross_entropy, descend, minimise_ufm

Classes = Annotated[int, Bound(low=3)]
Even = Annotated[int, Bound(low=4)]
Matrices = Annotated[int, Bound(low=2)]
Wide = Annotated[int, Bound(low=2)]
Shape = Literal["orthoplex", "polygon"]
Array = np.ndarray
ALIVE = 0.1  # largest logit of an end that is not 0
RANK = 1e-2  # of the largest singular value, from which on one counts
EVEN = 1.01  # largest over least singular value of what counts as neural collapse


def code_largest_cosine(classes: Classes, width: Count, scale: Positive, starts: Count) -> float:
    """Return the largest cosine between two classes' features at a numerical minimum.

    Of cross-entropy over unit W and unit features, logits `scale` W h.
    """
    rows = _directions(classes, width, scale, starts)
    return float((rows @ rows.T)[np.triu_indices(classes, 1)].max())


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
    both = Decay(decay, decay, None)
    targets, counts = torch.eye(classes), torch.ones(classes)
    return minimise_ufm(cross_entropy, targets, counts, width, both, starts=8, seed=0).value


def _block_loss(size: int, classes: int, scale: float) -> float:
    """Return what the classes of one of orthogonal simplices add to the mean cross-entropy."""
    same = (size - 1) * math.exp(-scale * size / (size - 1))
    return size / classes * math.log1p(same + (classes - size) * math.exp(-scale))


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
