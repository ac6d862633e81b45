"""Directions of classes at unit length, and what depth prefers [2605.20302; 2209.09211; 2410.23169].

K  classes    d  width    L  matrices, features included
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Annotated, Literal

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from ncpipe.study import Bound, Count, InputError, Positive, cross_entropy, numerical

Classes = Annotated[int, Bound(low=3)]
Even = Annotated[int, Bound(low=4)]
Matrices = Annotated[int, Bound(low=2)]
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
            end = numerical.descend(loss_at(float(temperature)), start, steps=3000, slope=1e-9)
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
        end = numerical.descend(objective, np.concatenate(parts), steps=3000, slope=1e-7)
        logits = product(torch.from_numpy(end.point)).numpy()
        ends.append((end.value, logits - logits.mean(1, keepdims=True)))
    return ends


def _rank(logits: Array) -> int:
    sizes = np.linalg.svd(logits, compute_uv=False)
    return int((sizes > RANK * sizes[0]).sum())


def _is_simplex(logits: Array) -> bool:
    sizes = np.linalg.svd(logits, compute_uv=False)[: len(logits) - 1]
    return bool(sizes[0] < EVEN * sizes[-1])
