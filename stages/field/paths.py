"""From the data to collapsed features: a cost of transport and a flow [2210.16658].

N  samples    K  classes    d  width
"""

from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
import torch
from scipy.integrate import solve_ivp

from ncpipe import measure
from ncpipe.study import Bound, Count, Index, NonNegative, Positive, numerical

Classes = Annotated[int, Bound(low=2)]
Part = Literal["nc1", "within", "between"]
Array = np.ndarray


def anchored_within(
    classes: Classes,
    per_class: Count,
    width: Count,
    separation: Positive,
    decay: Positive,
    pull: Positive,
    seed: Index,
) -> float:
    """Return NC1 of optimal features over NC1 of their data, which they pay pull |h - x|^2/2 to leave.

    A features model with squared error, decay on W, and in place of the features' decay the cost of their
    transport from the data, by the sample [2210.16658, eq. 2: lambda_W = K decay, lambda_H = 0, beta = pull].
    """
    start, labels = _samples(classes, per_class, width, separation, seed)
    targets = torch.eye(classes, dtype=torch.float64)[torch.from_numpy(labels)]
    data = torch.from_numpy(start)

    def objective(flat: torch.Tensor) -> torch.Tensor:
        weight, features = flat.split([classes * width, data.numel()])
        features = features.view_as(data)
        fit = (features @ weight.view(classes, width).T - targets).square().sum() / (2 * len(data))
        moved = (features - data).square().sum() / (2 * len(data))
        return fit + decay / 2 * weight.square().sum() + pull * moved

    draw = np.random.default_rng(seed)
    first = np.concatenate([draw.standard_normal(classes * width) / width, start.ravel()])
    end = numerical.descend(objective, first, steps=5000, slope=1e-10)
    features = end.point[classes * width :].reshape(start.shape)
    return _nc1(features, labels) / _nc1(start, labels)


def central_flow_step(
    part: Part,
    classes: Classes,
    per_class: Count,
    width: Count,
    separation: Positive,
    weight: Positive,
    features: NonNegative,
    time: Positive,
    seed: Index,
) -> float:
    """Return the largest wrong step of a logarithm on the flow of H, W at its best for H, between 20 times.

    The flow is dH/dt = W^T (Y - W H) - lambda_H H [2210.16658, eq. 4].
    A step up is wrong for NC1, and for exp(2 lambda_H t) times the variance within classes (`within`).
    A step down is wrong for exp(2 lambda_H t) times the variance between them (`between`).
    """
    start, labels = _samples(classes, per_class, width, separation, seed)
    targets = np.eye(classes)[labels]
    ridge = per_class * weight * np.eye(width)

    def slopes(_: float, flat: Array) -> Array:
        now = flat.reshape(start.shape)
        best = np.linalg.solve(now.T @ now + ridge, now.T @ targets)
        slope: Array = ((targets - now @ best) @ best.T - features * now).ravel()
        return slope

    times = np.linspace(0, time, 21)
    found = solve_ivp(slopes, (0, time), start.ravel(), method="DOP853", t_eval=times, rtol=1e-9, atol=1e-12)
    logs = [_log_part(part, flat.reshape(start.shape), labels) for flat in found.y.T]
    grown = 0.0 if part == "nc1" else 2 * features * (times[1] - times[0])
    steps = [after - before + grown for before, after in pairwise(logs)]
    return -min(steps) if part == "between" else max(steps)


def _log_part(part: Part, features: Array, labels: Array) -> float:
    means = np.stack([features[labels == k].mean(0) for k in range(labels.max() + 1)])
    within = np.square(features - means[labels]).sum(1).mean()
    between = np.square(means - means.mean(0)).sum(1).mean()
    return float(np.log({"nc1": within / between, "within": within, "between": between}[part]))


def _samples(classes: int, per_class: int, width: int, separation: float, seed: int) -> tuple[Array, Array]:
    """Return samples (N, d), normal about K drawn means, and labels (N,)."""
    draw = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), per_class)
    means = separation * draw.standard_normal((classes, width))
    return means[labels] + draw.standard_normal((len(labels), width)), labels


def _nc1(features: Array, labels: Array) -> float:
    rows = measure(torch.from_numpy(features), torch.from_numpy(labels))
    return next(row.value for row in rows if row.metric == "nc1_trace_ratio")
