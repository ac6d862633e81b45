"""Margins of K directions that are too many for a simplex, K > d + 1, and their distance to a softmax code.

A softmax code is K unit vectors whose least distance to the convex hull of the others is the largest that d
dimensions allow [Jiang et al. 2024, arXiv 2310.05351]. Up to K = 2d it is 1: by Radon's theorem for any code,
and by the vectors of an orthoplex. In the plane it is that of the regular polygon.

K  classes    d  feature width    u_k  a vector of length 1
"""

import math
from collections.abc import Iterator
from typing import Any

from ncpipe.metrics.entry import Metric, family
from ncpipe.metrics.geometry import unit_rows
from ncpipe.metrics.statistics import ClassStatistics
from ncpipe.system.lazy_torch import Tensor, torch

Array = Any  # of NumPy, which commands that only read the entries above do not wait for
EPS = 2.0**-52
MOST = 256  # classes, of each of which a quadratic program is solved
NOTE = f"; of at most {MOST} classes"


def _entries(matrix: str, name: str, which: str) -> Iterator[Metric]:
    margin = (
        f"min over k of the distance of u_k to the convex hull of the others, u_k the directions of {which}"
    )
    yield Metric(
        f"gnc2_margin_{matrix}", "GNC2", "1", f"{name}: least distance of a direction to the others' hull",
        f"{margin}; 1 can be reached up to K = 2d", "[0, 1]", "JZWQMYZ24", scale="linear",
    )  # fmt: skip
    yield Metric(
        f"gnc2_code_{matrix}", "GNC2", "0", f"{name}: distance to a softmax code",
        f"1 − `gnc2_margin_{matrix}`/ρ, ρ that of a softmax code: 1 up to K = 2d, 1 − cos(2π/K) for d = 2; "
        "NaN elsewhere", "[0, 1]", "JZWQMYZ24",
        label=f"distance to code ({name})",
    )  # fmt: skip


@family(*_entries("weights", "weights", "W's rows"), many=True, note=NOTE)
def weight_margin(weight: Tensor) -> tuple[float, float]:
    """Return the `margin` of the rows of W (K, d), and its distance to that of a softmax code."""
    rounding = torch.full((len(weight),), max(weight.shape) * EPS, dtype=torch.float64, device="cpu")
    return _with_distance(unit_rows(weight.double()), rounding.numpy())


@family(*_entries("means", "class means", "μ_k − μ_G"), many=True, note=NOTE)
def means_margin(statistics: ClassStatistics) -> tuple[float, float]:
    """Return the same of the centred class means."""
    centred = statistics.centred_means()
    rounding = statistics.cutoff / centred.norm(dim=1)
    return _with_distance(unit_rows(centred), rounding.cpu().numpy())


def code_margin(classes: int, width: int) -> float:
    """Return the margin of a softmax code of K classes in d dimensions; NaN where none is known."""
    if width >= classes - 1:
        return classes / (classes - 1)
    if width == 2:
        return 1 - math.cos(2 * math.pi / classes)
    return 1.0 if classes <= 2 * width else math.nan


def margin(directions: Array, rounding: Array) -> float:
    """Return min_k dist(u_k, conv{u_j, j != k}) of unit vectors u (K, d).

    0 where two of them are at most rounding_i + rounding_j apart. NaN where one is, and for K > MOST.
    """
    import numpy as np

    if len(directions) > MOST or not np.isfinite(directions).all():
        return math.nan
    found = math.inf
    for k, own in enumerate(directions):
        others = np.delete(directions, k, 0) - own
        if (np.linalg.norm(others, axis=1) <= np.delete(rounding, k) + rounding[k]).any():
            return 0.0
        found = min(found, _least_norm(others))
    return found


def _least_norm(points: Array) -> float:
    """Return the least length in the convex hull of points (m, d), by Lawson and Hanson's NNLS.

    The x >= 0 nearest to |P^T x|^2 + (sum x - 1)^2 = 0 is a multiple of the weights of that point.
    """
    import numpy as np

    rows = np.hstack([points, np.ones((len(points), 1))])
    goal = np.eye(rows.shape[1])[-1]
    used: list[int] = []
    blocked: list[int] = []  # points whose weight would be negative, to rounding
    x = np.zeros(0)
    while True:
        gains = rows @ (goal - x @ rows[used])
        gains[used + blocked] = 0
        place = int(gains.argmax())
        if gains[place] <= 4 * max(rows.shape) * EPS:
            return float(np.linalg.norm(x @ points[used]) / x.sum())
        trial, now = [*used, place], np.append(x, 0.0)
        best = np.linalg.lstsq(rows[trial].T, goal, rcond=None)[0]
        if best[-1] <= 0:
            blocked.append(place)
            continue
        while best.min() <= 0:
            low = best <= 0
            now += (now[low] / (now[low] - best[low])).min() * (best - now)
            kept = now > EPS
            trial, now = [point for point, keep in zip(trial, kept, strict=True) if keep], now[kept]
            best = np.linalg.lstsq(rows[trial].T, goal, rcond=None)[0]
        used, x, blocked = trial, best, []


def _with_distance(directions: Tensor, rounding: Array) -> tuple[float, float]:
    found = margin(directions.cpu().numpy(), rounding)
    return found, 1 - found / code_margin(*directions.shape)
