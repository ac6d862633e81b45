"""Hyperspherical uniformity of K directions that are too many for a simplex, K > d + 1, in float64.

GNC2 and UNC3 of Wu and Papyan 2024 (arXiv 2405.17767), with the kernel of Liu et al. 2023 (arXiv 2303.06484).

K  classes    d  feature width    u_k  a vector of length 1
"""

import math

import torch
from torch import Tensor

from ncpipe.metrics.geometry import unit_rows
from ncpipe.metrics.pairs import tiles
from ncpipe.metrics.statistics import ClassStatistics

NAMES = ("gnc2_energy", "gnc2_spread", "gnc2_cosine", "gnc2_interference")


def weight_uniformity(weight: Tensor) -> dict[str, float]:
    """Return `gnc2_*_weights` of W (K, d), see `uniformity`."""
    directions = unit_rows(weight.double())
    rounding = directions.new_full((len(weight),), max(weight.shape) * 2.0**-52)
    return {f"{name}_weights": value for name, value in uniformity(directions, rounding).items()}


def means_uniformity(statistics: ClassStatistics) -> dict[str, float]:
    """Return `gnc2_*_means` of the centred class means, see `uniformity`."""
    centred = statistics.centred_means()
    rounding = statistics.cutoff / torch.linalg.vector_norm(centred, dim=1)
    return {f"{name}_means": value for name, value in uniformity(unit_rows(centred), rounding).items()}


def uniformity(directions: Tensor, rounding: Tensor) -> dict[str, float]:
    """Return mean and spread over pairs of log(1/|u_i - u_j|) of u (K, d), and two summaries of the cosines.

    gnc2_energy: the mean, hyperspherical energy; lower is more even, at least -log(2K/(K-1))/2, which only a
    simplex reaches. gnc2_spread: the standard deviation over the pairs, 0 for a simplex alone; GNC2 of Wu and
    Papyan. gnc2_cosine: the largest cosine, in [0, 1] for K > d + 1, 0 up to K = 2d for directions along axes
    (Rankin 1955). gnc2_interference: mean of abs(cos + 1/(K-1)), what `nc2_equiangular` is for K <= d + 1.
    Directions at most rounding_i + rounding_j apart coincide: energy and spread inf, cosine 1, interference
    NaN. All NaN where a direction is.
    """
    if not bool(directions.isfinite().all()):
        return dict.fromkeys(NAMES, math.nan)
    nearest, pairs, mean, squares, interference = math.inf, 0, 0.0, 0.0, 0.0
    simplex = 1 / (len(directions) - 1)
    for tile in tiles(directions):
        distances = tile.pairs(tile.distances)
        if not len(distances):  # of a last tile of one class
            continue
        if bool((distances <= tile.pairs(tile.sums(rounding))).any()):
            return dict(zip(NAMES, (math.inf, math.inf, 1.0, math.nan), strict=True))
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
    found = mean, math.sqrt(squares / pairs), 1 - nearest**2 / 2, interference / pairs
    return dict(zip(NAMES, found, strict=True))


def uniform_duality(statistics: ClassStatistics, weight: Tensor) -> dict[str, float]:
    """Return mean and spread over classes of cos(W_k, mu_k - mu_G); W (K, d) [Wu and Papyan 2024, UNC3].

    unc3_cosine: the mean, 1 at self-duality. unc3_spread: the standard deviation, 0 where every class is
    aligned alike, whatever that alignment is. Both NaN for a row of zeros and for a mean at the centre.
    """
    rows, means = unit_rows(weight.double()), unit_rows(statistics.centred_means())
    cosines = (rows * means).sum(1)
    return {"unc3_cosine": cosines.mean().item(), "unc3_spread": cosines.std(correction=0).item()}
