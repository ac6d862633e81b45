"""Networks that end with linear layers, under weight decay [2410.04887].

Z = A_L ... A_1 relu(V x), MSE |Z - y|^2/2 in the mean over samples, decay on all matrices; normal inputs.

N  samples    K  classes    h  hidden units    p  inputs
"""

import math
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

from ncpipe.config.bounds import Bound, Count, Index, Positive
from ncpipe.metrics.geometry import nc2_identity
from ncpipe.metrics.table import measure
from ncpipe.theory.numerical import descend

Classes = Annotated[int, Bound(low=2)]
Linear = Annotated[int, Bound(low=2)]
HeadMetric = Literal["nc1_trace_ratio", "nc2_identity", "nc3_cosine", "balance"]
INPUTS = 8
STEPS = 1000


def linear_balance_left(
    classes: Classes,
    per_class: Count,
    linear: Linear,
    hidden: Count,
    decay: Positive,
    time: Positive,
    seed: Index,
) -> float:
    """Return the largest |A_(l+1)^T A_(l+1) - A_l A_l^T| after a time of gradient flow, over its start."""
    inputs, targets, _ = _data(classes, per_class, seed)
    shapes = _shapes(classes, linear, hidden)
    draw = torch.Generator().manual_seed(seed)
    start = torch.cat(
        [
            torch.randn(rows * columns, generator=draw).double() / math.sqrt(columns)
            for rows, columns in shapes
        ]
    )

    def slopes(_: float, values: np.ndarray) -> np.ndarray:
        flat = torch.from_numpy(values).requires_grad_()
        (gradient,) = torch.autograd.grad(_loss(flat, shapes, inputs, targets, decay, False), flat)
        return -gradient.numpy()

    found = solve_ivp(slopes, (0, time), start.numpy(), method="DOP853", rtol=1e-9, atol=1e-11)
    return _imbalance(torch.from_numpy(found.y[:, -1]), shapes) / _imbalance(start, shapes)


def linear_balance_left_numerical(
    classes: Classes,
    per_class: Count,
    linear: Linear,
    hidden: Count,
    decay: Positive,
    time: Positive,
    seed: Index,
) -> float:
    """Return exp(-2 decay t), by which any flow of a loss of the product shrinks each difference."""
    return math.exp(-2 * decay * time)


def linear_head_metric(
    metric: HeadMetric,
    classes: Classes,
    per_class: Count,
    linear: Linear,
    hidden: Count,
    decay: Positive,
    seed: Index,
) -> float:
    """Return the given metric of the features before the last matrix where descent from a random start ends.

    balance: the largest |A_(l+1)^T A_(l+1) - A_l A_l^T| over |A_l|^2. nc2_identity: of the class means.
    """  # fmt: skip
    inputs, targets, labels = _data(classes, per_class, seed)
    shapes = _shapes(classes, linear, hidden)
    start = _drawn(shapes, seed).numpy()
    end = descend(
        lambda flat: _loss(flat, shapes, inputs, targets, decay, True), start, steps=STEPS, slope=1e-8
    )
    return _measured(metric, torch.from_numpy(end.point), shapes, inputs, labels)


def linear_head_frozen(
    metric: HeadMetric, classes: Classes, per_class: Count, hidden: Count, decay: Positive, seed: Index
) -> float:
    """Return `linear_head.metric` for two linear layers, the last of which stays as drawn [2501.19104]."""
    inputs, targets, labels = _data(classes, per_class, seed)
    shapes = _shapes(classes, 2, hidden)
    start, last = _drawn(shapes, seed).split([hidden * (INPUTS + hidden), classes * hidden])
    end = descend(
        lambda free: _loss(torch.cat([free, last]), shapes, inputs, targets, decay, True),
        start.numpy(),
        steps=STEPS,
        slope=1e-8,
    )
    return _measured(metric, torch.cat([torch.from_numpy(end.point), last]), shapes, inputs, labels)


def _drawn(shapes: list[tuple[int, int]], seed: int) -> Tensor:
    scale = torch.cat([torch.full((rows * columns,), columns**-0.5).double() for rows, columns in shapes])
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(len(scale))) * scale


def _measured(
    metric: HeadMetric, flat: Tensor, shapes: list[tuple[int, int]], inputs: Tensor, labels: Tensor
) -> float:
    matrices = _split(flat, shapes)
    if metric == "balance":
        return _imbalance(flat, shapes) / float(matrices[-1].square().sum())
    features = _features(matrices[:-1], inputs, True)
    if metric == "nc2_identity":
        return nc2_identity(torch.stack([features[labels == k].mean(0) for k in range(shapes[-1][0])]))
    rows = measure(features, labels, matrices[-1])
    return next(row.value for row in rows if row.metric == metric)


def linear_head_ratio(
    metric: HeadMetric,
    classes: Classes,
    per_class: Count,
    linear: Linear,
    fewer: Linear,
    hidden: Count,
    decay: Positive,
    seed: Index,
) -> float:
    """Return `linear_head_metric` with more linear layers over that with fewer."""
    numbers = [
        linear_head_metric(metric, classes, per_class, layers, hidden, decay, seed)
        for layers in (linear, fewer)
    ]
    return numbers[0] / numbers[1]


def _data(classes: int, per_class: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(per_class)
    means = torch.randn(classes, INPUTS, generator=draw).double()
    inputs = means[labels] + torch.randn(len(labels), INPUTS, generator=draw).double()
    return inputs, torch.eye(classes, dtype=torch.float64)[labels], labels


def _shapes(classes: int, linear: int, hidden: int) -> list[tuple[int, int]]:
    return [(hidden, INPUTS), *[(hidden, hidden)] * (linear - 1), (classes, hidden)]


def _split(flat: Tensor, shapes: list[tuple[int, int]]) -> list[Tensor]:
    parts = flat.split([rows * columns for rows, columns in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _features(matrices: list[Tensor], inputs: Tensor, relu: bool) -> Tensor:
    """Return what matrices make of inputs; relu: else a tanh, which a solver of high order can follow."""
    found = inputs @ matrices[0].T
    found = found.relu() if relu else found.tanh()
    for matrix in matrices[1:]:
        found = found @ matrix.T
    return found


def _loss(
    flat: Tensor, shapes: list[tuple[int, int]], inputs: Tensor, targets: Tensor, decay: float, relu: bool
) -> Tensor:
    outputs = _features(_split(flat, shapes), inputs, relu)
    return (outputs - targets).square().sum() / (2 * len(inputs)) + decay / 2 * flat.square().sum()


def _imbalance(flat: Tensor, shapes: list[tuple[int, int]]) -> float:
    matrices = _split(flat, shapes)[1:]
    return max(float((b.T @ b - a @ a.T).norm()) for a, b in pairwise(matrices))
