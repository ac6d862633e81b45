"""Hyperspherical uniformity of K directions that are too many for a simplex, K > d + 1, in float64.

GNC2 and UNC3 of Wu and Papyan 2024 (arXiv 2405.17767), with the kernel of Liu et al. 2023 (arXiv 2303.06484).

K  classes    d  feature width    u_k  a vector of length 1
"""

import math
from collections.abc import Iterator

from ncpipe.metrics.entry import WP24, Metric, family, metric
from ncpipe.metrics.geometry import unit_rows
from ncpipe.metrics.pairs import tiles
from ncpipe.metrics.powers_of_two import EPS
from ncpipe.metrics.statistics import ClassStatistics
from ncpipe.system.lazy_torch import Tensor, torch

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
        "[0, 1]", "R55",
    ),
    (
        "interference", "mean |cos + 1/(K-1)|", "mean over pairs of abs(cos + 1/(K−1)) of {}", "[0, K/(K−1)]",
        WP24,
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
    Papyan. cosine: the largest cosine, in [0, 1] for K > d + 1, 0 up to K = 2d for directions along axes
    (Rankin 1955). interference: mean of abs(cos + 1/(K-1)), what `nc2_equiangular_*` is for K <= d + 1.
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
