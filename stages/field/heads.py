"""Networks that end with two linear layers, the last of which stays as drawn [2501.19104].

Z = A_2 A_1 relu(V x), MSE |Z - y|^2/2 in the mean over samples, decay on all matrices;
normal inputs.

N  samples    K  classes    h  hidden units    p  inputs
"""

from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from ncpipe import measure
from ncpipe.study import Bound, Count, Index, Positive, numerical

Classes = Annotated[int, Bound(low=2)]
HeadMetric = Literal["nc1_trace_ratio", "balance"]
INPUTS = 8
STEPS = 1000


def linear_head_frozen(
    metric: HeadMetric, classes: Classes, per_class: Count, hidden: Count, decay: Positive, seed: Index
) -> float:
    """Return the given metric of the features before the last matrix where descent from a random start ends.

    balance: |A_2^T A_2 - A_1 A_1^T| over |A_2|^2.
    """
    inputs, targets, labels = _data(classes, per_class, seed)
    shapes = [(hidden, INPUTS), (hidden, hidden), (classes, hidden)]
    start, last = _drawn(shapes, seed).split([hidden * (INPUTS + hidden), classes * hidden])
    end = numerical.descend(
        lambda free: _loss(torch.cat([free, last]), shapes, inputs, targets, decay),
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
    hidden, before, last = _split(flat, shapes)
    if metric == "balance":
        return float((last.T @ last - before @ before.T).norm() / last.square().sum())
    rows = measure(_features([hidden, before], inputs), labels, last)
    return next(row.value for row in rows if row.metric == metric)


def _data(classes: int, per_class: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(per_class)
    means = torch.randn(classes, INPUTS, generator=draw).double()
    inputs = means[labels] + torch.randn(len(labels), INPUTS, generator=draw).double()
    return inputs, torch.eye(classes, dtype=torch.float64)[labels], labels


def _split(flat: Tensor, shapes: list[tuple[int, int]]) -> list[Tensor]:
    parts = flat.split([rows * columns for rows, columns in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _features(matrices: list[Tensor], inputs: Tensor) -> Tensor:
    found = (inputs @ matrices[0].T).relu()
    for matrix in matrices[1:]:
        found = found @ matrix.T
    return found


def _loss(
    flat: Tensor, shapes: list[tuple[int, int]], inputs: Tensor, targets: Tensor, decay: float
) -> Tensor:
    outputs = _features(_split(flat, shapes), inputs)
    return (outputs - targets).square().sum() / (2 * len(inputs)) + decay / 2 * flat.square().sum()
