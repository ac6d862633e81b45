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
from ncpipe.metrics.powers_of_two import EPS
from ncpipe.metrics.statistics import ClassStatistics
from ncpipe.system.lazy_torch import Tensor

Array = Any  # of NumPy, which commands that only read the entries above do not wait for
MOST = 256  # classes, of each of which a quadratic program is solved
NOTE = f"; of at most {MOST} classes"


def _entries(matrix: str, name: str, which: str) -> Iterator[Metric]:
    yield Metric(
        f"gnc2_margin_{matrix}", "GNC2", "1", f"{name}: least distance of a direction to the others' hull",
        f"min over k of the distance of u_k to the convex hull of the others, u_k the directions of {which}; "
        "1 can be reached up to K = 2d", "[0, 1]", "JZWQMYZ24", scale="linear", label=f"margin ({name})",
    )  # fmt: skip
    yield Metric(
        f"gnc2_code_{matrix}", "GNC2", "0", f"{name}: distance to a softmax code",
        f"1 − `gnc2_margin_{matrix}`/ρ, ρ that of a softmax code: 1 up to K = 2d, 1 − cos(2π/K) for d = 2; "
        "NaN elsewhere", "[0, 1]", "JZWQMYZ24", label=f"distance to code ({name})",
    )  # fmt: skip


@family(*_entries("weights", "weights", "W's rows"), many=True, note=NOTE)
def weight_margin(weight: Tensor) -> tuple[float, float]:
    """Return the `margin` of the rows of W (K, d), and its distance to that of a softmax code."""
    return margin(unit_rows(weight.double()))


@family(*_entries("means", "class means", "μ_k − μ_G"), many=True, note=NOTE)
def means_margin(statistics: ClassStatistics) -> tuple[float, float]:
    """Return the same of the centred class means."""
    return margin(unit_rows(statistics.centred_means))


def margin(directions: Tensor) -> tuple[float, float]:
    """Return min_k dist(u_k, conv{u_j, j != k}) of unit vectors u (K, d), and 1 less its share of a code's.

    NaN where a vector is, and for K > MOST; the share also where no code is known.
    """
    classes, width = directions.shape
    if classes > MOST or not bool(directions.isfinite().all()):
        return math.nan, math.nan
    least = min(_distance_to_others(directions.cpu().numpy(), k) for k in range(classes))
    best = 1 - math.cos(2 * math.pi / classes) if width == 2 else 1.0 if classes <= 2 * width else math.nan
    return least, 1 - least / best


def _distance_to_others(vectors: Array, k: int) -> float:
    """Return dist(u_k, conv{u_j, j != k}) of vectors (K, d), by Lawson and Hanson's NNLS.

    With P the others less u_k, the x >= 0 nearest to |P^T x|^2 + (sum x - 1)^2 = 0 is a multiple of the
    weights of the hull's nearest point.
    """
    import numpy as np

    points = np.delete(vectors, k, 0) - vectors[k]
    rows = np.hstack([points, np.ones((len(points), 1))])
    goal = np.eye(rows.shape[1])[-1]

    def fit(used: Array) -> Array:
        best = np.zeros(len(rows))
        best[used] = np.linalg.lstsq(rows[used].T, goal, rcond=None)[0]
        return best

    x, blocked = np.zeros(len(rows)), np.zeros(len(rows), bool)  # blocked: of negative weight, to rounding
    while True:
        gains = np.where((x > 0) | blocked, 0.0, rows @ (goal - x @ rows))
        place = int(gains.argmax())
        if gains[place] <= 4 * max(rows.shape) * EPS:
            return float(np.linalg.norm(x @ points) / x.sum())
        now, used = x, (x > 0) | (np.arange(len(x)) == place)
        best = fit(used)
        if best[place] <= 0:
            blocked[place] = True
            continue
        while (low := used & (best <= 0)).any():
            now = now + (now[low] / (now[low] - best[low])).min() * (best - now)
            used &= now > EPS
            best = fit(used)
        x, blocked = best, np.zeros_like(used)
