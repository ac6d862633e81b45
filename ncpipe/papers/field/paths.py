"""Straight lines from the data to collapsed features [2405.00985].

N  samples    K  classes    d  width
"""

from itertools import pairwise
from typing import Annotated

import numpy as np
import torch

from ncpipe.config.bounds import Bound, Count, Index, Positive
from ncpipe.metrics.table import measure_arrays
from ncpipe.papers.field.descent import descend
from ncpipe.theory.frames import simplex_frame

Classes = Annotated[int, Bound(low=2)]
Array = np.ndarray


def line_rise(classes: Classes, per_class: Count, width: Count, separation: Positive, seed: Index) -> float:
    """Largest rise of NC1 over NC1 at the start, between 20 steps on lines from samples to a simplex.

    Samples are normal about K drawn means; each goes straight to its class's vertex of the simplex that is
    nearest to the means. Along another rotation of it NC1 may rise.
    """
    start, end, labels = _ends(classes, per_class, width, separation, seed)
    found = [_nc1((1 - t) * start + t * end, labels) for t in np.linspace(0, 0.99, 21)]
    return max(after - before for before, after in pairwise(found)) / found[0]


def anchored_within(
    classes: Classes,
    per_class: Count,
    width: Count,
    separation: Positive,
    decay: Positive,
    pull: Positive,
    seed: Index,
) -> float:
    """NC1 of optimal features over NC1 of the data, where features pay pull |h - x|^2/2 to leave their data.

    A features model with squared error, decay on W, and in place of the features' decay the cost of their
    transport from the data, by the sample.
    """
    start, _, labels = _ends(classes, per_class, width, separation, seed)
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
    end = descend(objective, first, steps=5000, slope=1e-10)
    features = end.point[classes * width :].reshape(start.shape)
    return _nc1(features, labels) / _nc1(start, labels)


def _ends(
    classes: int, per_class: int, width: int, separation: float, seed: int
) -> tuple[Array, Array, Array]:
    """Samples (N, d), their vertices (N, d) and labels (N,)."""
    draw = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), per_class)
    means = separation * draw.standard_normal((classes, width))
    simplex = simplex_frame(classes).numpy()
    # The rotation of the simplex that is nearest to the means: then these lines are the shortest transport.
    left, _, right = np.linalg.svd((means - means.mean(0)).T @ simplex, full_matrices=False)
    frame = simplex @ (left @ right).T
    return means[labels] + draw.standard_normal((len(labels), width)), frame[labels], labels


def _nc1(features: Array, labels: Array) -> float:
    rows = measure_arrays(torch.from_numpy(features), torch.from_numpy(labels))
    return next(row.value for row in rows if row.metric == "nc1_trace_ratio")
