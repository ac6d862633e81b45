"""Hyperspherical uniformity of K directions that are too many for a simplex, K > d + 1, in float64.

GNC2 and UNC3 are of Wu and Papyan 2024 (arXiv 2405.17767), with the kernel of Liu et al. 2023 (arXiv
2303.06484). A softmax code is K unit vectors whose least distance to the convex hull of the others is the
largest that d dimensions allow [Jiang et al. 2024, arXiv 2310.05351]. Up to K = 2d it is 1: by Radon's
theorem for any code, and by the vectors of an orthoplex. In the plane it is that of the regular polygon.

K  classes    d  feature width    u_k  a vector of length 1
"""

import math
from collections.abc import Iterator
from typing import Any

from ncpipe.metrics.entry import WP24, Metric, family, metric
from ncpipe.metrics.geometry import unit_rows
from ncpipe.metrics.pairs import tiles
from ncpipe.metrics.powers_of_two import EPS
from ncpipe.metrics.statistics import ClassStatistics
from ncpipe.system.lazy_torch import Tensor, torch

Array = Any  # of NumPy, which commands that only read the entries do not wait for
MOST = 256  # classes, of each of which a quadratic program is solved
NOTE = f"; of at most {MOST} classes"
SUMMARIES = (
    (
        "energy", "mean log inverse distance of directions",
        "mean over pairs of log(1/‖u_i − u_j‖), u_k the directions of {}", "[−½ log(2K/(K−1)), ∞]", "LYWS23",
    ),
    (
        "spread", "spread of log inverse distances of directions",
        "standard deviation over pairs of log(1/‖u_i − u_j‖), u_k the directions of {}", "[0, ∞]", WP24,
    ),
    (
        "cosine", "largest cosine of two", "largest cosine of two of {}; 0 can be reached up to K = 2d",
        "[−1/(K−1), 1]", "R55",
    ),
    (
        "interference", "mean |cos + 1/(K-1)|", "mean over pairs of abs(cos + 1/(K−1)) of {}", "[0, K/(K−1)]",
        "P20, interference in WP24",
    ),
)  # fmt: skip


def _entries(matrix: str, name: str, which: str, label: str) -> Iterator[Metric]:
    for kind, meaning, formula, interval, source in SUMMARIES:
        spread = kind == "spread"
        yield Metric(
            f"gnc2_{kind}_{matrix}", "GNC2", "least", f"{name}: {meaning}", formula.format(which), interval,
            source, scale="log" if spread else "linear", label=label if spread else "",
            headline=spread and matrix == "weights",
        )  # fmt: skip


@family(*_entries("weights", "weights", "W's rows", "GNC2"), many=True)
def weight_uniformity(weight: Tensor) -> tuple[float, ...]:
    """Return the `uniformity` of the rows of W (K, d)."""
    directions = unit_rows(weight.double())
    return uniformity(directions, directions.new_full((len(weight),), max(weight.shape) * EPS))


@family(*_entries("means", "class means", "μ_k − μ_G", "GNC2 (class means)"), many=True)
def means_uniformity(statistics: ClassStatistics) -> tuple[float, ...]:
    """Return the `uniformity` of the centred class means."""
    centred = statistics.centred_means
    rounding = statistics.cutoff / torch.linalg.vector_norm(centred, dim=1)
    return uniformity(unit_rows(centred), rounding)


def uniformity(directions: Tensor, rounding: Tensor) -> tuple[float, float, float, float]:
    """Return mean and spread over pairs of log(1/|u_i - u_j|) of u (K, d), and two summaries of the cosines.

    energy: the mean, hyperspherical energy; lower is more even, at least -log(2K/(K-1))/2, which only a
    simplex reaches. spread: the standard deviation over the pairs, 0 for a simplex alone; GNC2 of Wu and
    Papyan. cosine: the largest cosine, at least -1/(K-1), for K > d + 1 at least 0, which directions along
    axes reach up to K = 2d (Rankin 1955). interference: mean of abs(cos + 1/(K-1)), what `nc2_equiangular_*`
    is for K <= d + 1.
    Directions at most rounding_i + rounding_j apart coincide: energy and spread inf, cosine 1, interference
    NaN. All NaN where a direction is.
    """
    if not bool(directions.isfinite().all()):
        return math.nan, math.nan, math.nan, math.nan
    nearest, pairs, mean, squares, interference = math.inf, 0, 0.0, 0.0, 0.0
    simplex = 1 / (len(directions) - 1)
    for tile in tiles(directions):
        distances = tile.pairs(tile.distances)
        if not len(distances):  # of a last tile of one class
            continue
        if bool((distances <= tile.pairs(tile.sums(rounding))).any()):
            return math.inf, math.inf, 1.0, math.nan
        nearest = min(nearest, distances.min().item())
        logs = -distances.log()
        # Means and squared deviations of parts to those of the whole: no E[x^2] - E[x]^2.
        count, centre = len(logs), logs.mean().item()
        shift = centre - mean
        squares += (logs - centre).square().sum().item() + shift**2 * pairs * count / (pairs + count)
        mean += shift * count / (pairs + count)
        pairs += count
        cosines = distances.square_().mul_(-0.5).add_(1 + simplex)
        interference += cosines.abs_().sum().item()
    return mean, math.sqrt(squares / pairs), 1 - nearest**2 / 2, interference / pairs


@metric(
    "UNC3", "1", "mean cosine of a row of weights and its class mean", "mean over k of cos(W_k, μ_k − μ_G)",
    "[−1, 1]", WP24, scale="linear", note="; higher is nearer", many=True,
)  # fmt: skip
def unc3_cosine(statistics: ClassStatistics, weight: Tensor) -> float:
    """Return the mean; NaN for a row of zeros and for a mean at the centre."""
    return alignments(statistics, weight).mean().item()


@metric(
    "UNC3", "0", "spread over classes of the cosine of a row of weights and its mean",
    "standard deviation over k of cos(W_k, μ_k − μ_G)", "[0, 1]", WP24, many=True,
)  # fmt: skip
def unc3_spread(statistics: ClassStatistics, weight: Tensor) -> float:
    """Return the spread; 0 where every class is aligned alike, NaN as of `unc3_cosine`."""
    return alignments(statistics, weight).std(correction=0).item()


def alignments(statistics: ClassStatistics, weight: Tensor) -> Tensor:
    """Return the cosine (K,) of each row of weights and its centred class mean; NaN for a zero vector."""
    return (unit_rows(weight.double()) * unit_rows(statistics.centred_means)).sum(1)


def _code_entries(matrix: str, name: str, which: str) -> Iterator[Metric]:
    yield Metric(
        f"gnc2_margin_{matrix}", "GNC2", "1 up to K = 2d",
        f"{name}: least distance of a direction to the others' hull",
        f"min over k of the distance of u_k to the convex hull of the others, u_k the directions of {which}; "
        "K/(K−1) can be reached up to K = d + 1, 1 up to 2d", "[0, K/(K−1)]", "JZWQMYZ24", scale="linear",
        label=f"margin ({name})",
    )  # fmt: skip
    yield Metric(
        f"gnc2_code_{matrix}", "GNC2", "0", f"{name}: distance to a softmax code",
        f"1 − `gnc2_margin_{matrix}`/ρ, ρ that of a softmax code: K/(K−1) up to K = d + 1, 1 up to 2d, "
        "1 − cos(2π/K) for d = 2; "
        "NaN elsewhere", "[0, 1]", "JZWQMYZ24", label=f"distance to code ({name})",
    )  # fmt: skip


@family(*_code_entries("weights", "weights", "W's rows"), many=True, note=NOTE)
def weight_margin(weight: Tensor) -> tuple[float, float]:
    """Return the `margin` of the rows of W (K, d), and its distance to that of a softmax code."""
    return margin(unit_rows(weight.double()))


@family(*_code_entries("means", "class means", "μ_k − μ_G"), many=True, note=NOTE)
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
    if classes <= width + 1:
        best = classes / (classes - 1)  # of a simplex
    elif width == 2:
        best = 1 - math.cos(2 * math.pi / classes)
    else:
        best = 1.0 if classes <= 2 * width else math.nan
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
