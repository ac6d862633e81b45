"""NC0, NC2 and NC3 of whole matrices: how close class means and weights are to a simplex ETF.

Distances to a simplex ETF are NaN for K > d + 1, where none exists; `uniformity.py` has the metrics for that
case.

K  classes    d  feature width    E_K = I - 11^T/K, |.| the Frobenius norm. All in float64.
"""

import math

from ncpipe.metrics.entry import P20, S24, S25, metric
from ncpipe.metrics.powers_of_two import (
    largest_entry,
    row_scales,
    size_exponent,
    times_two_to,
    value_times_two_to,
)
from ncpipe.metrics.spectrum import condition_number
from ncpipe.metrics.statistics import ClassStatistics
from ncpipe.system.lazy_torch import Tensor, torch


def simplex_fits(classes: int, width: int) -> bool:
    """Return whether K vectors of d coordinates can be a simplex ETF: K <= d + 1."""
    return classes <= width + 1


def simplex_etf_gram(classes: int) -> Tensor:
    """Return E_K = I_K - 11^T/K (K, K), up to scale the Gram matrix of a simplex equiangular tight frame.

    S25 prints E_K without the 1/K, which is the Gram matrix of no frame (it has a negative eigenvalue).
    """
    return torch.eye(classes, dtype=torch.float64, device="cpu") - 1 / classes


@metric(
    "NC0", "0", "squared length of the sum of W's rows, over K",
    "‖Σ_k W_k‖²/K; grows with the square of scale", "[0, ∞)", "ZCML26", order=2, rounding="none", label="NC0",
)  # fmt: skip
def nc0_row_sum(weight: Tensor) -> float:
    """Return squared length of the sum of W's rows, over K.

    0 is necessary for NC2 and NC3, whose simplex ETF has rows that add up to 0; it is not sufficient. W = 0
    gives 0 too.
    """
    exponent = size_exponent(largest_entry(weight))
    total = times_two_to(weight.double(), -exponent).sum(0)
    return value_times_two_to(total.square().sum().item() / len(weight), 2 * exponent)


@metric(
    "NC0", "0", "squared length of the sum of W's rows, over K ‖W‖²",
    "‖Σ_k W_k‖²/(K ‖W‖²); 1 where all rows are equal", "[0, 1]", "ZCML26 divided by ‖W‖²", order=2,
    label="NC0 (relative)",
)  # fmt: skip
def nc0_relative(weight: Tensor) -> float:
    """Return the share, at most 1 by Cauchy-Schwarz; NaN for W = 0."""
    rows = scaled(weight)
    return (rows.sum(0).square().sum() / (len(rows) * rows.square().sum())).item()


@metric(
    "NC2", "0", "distance of the weights to a simplex ETF", "min_{c ≥ 0} ‖WWᵀ − cE‖/‖WWᵀ‖", "[0, 1]",
    f"{S25} (NC2A; printed E lacks the 1/K)", order=1, label="NC2 (ETF)", headline=True,
)  # fmt: skip
def nc2_etf(weight: Tensor) -> float:
    """Return the distance; NaN for W = 0 and for K > d + 1."""
    if not simplex_fits(*weight.shape):
        return math.nan
    return _distance_to_ray(weight, simplex_etf_gram(len(weight)))


@metric(
    "NC2", "0", "distance of the weights to an orthogonal frame",
    "min_{c ≥ 0} ‖WWᵀ − cI‖/‖WWᵀ‖; 0 at collapse without bias under MSE", "[0, 1]", f"{S25} (NC2B)", order=1,
    label="NC2 (identity)", headline=True,
)  # fmt: skip
def nc2_identity(weight: Tensor) -> float:
    """Return the distance; NaN for W = 0 and for K > d + 1."""
    if not simplex_fits(*weight.shape):
        return math.nan
    return _distance_to_ray(weight, torch.eye(len(weight), dtype=torch.float64, device=weight.device))


@metric(
    "NC2", "0", "distance of the class means to a simplex ETF", "‖MMᵀ/‖MMᵀ‖ − E/√(K−1)‖", "[0, √2]",
    "K23 eq. 7", order=1, label="NC2 (class means)",
)  # fmt: skip
def nc2_means(statistics: ClassStatistics) -> float:
    """Return the distance; NaN where a centred mean is 0 to rounding, and for K > d + 1."""
    if not simplex_fits(*statistics.means.shape):
        return math.nan
    rows = unit_rows(statistics.centred_means)
    return _distance_to_etf(rows @ rows.T)


@metric(
    "NC2", "0", "spread of the weights' lengths over their mean",
    "standard deviation over mean of the lengths of W's rows", "[0, √(K−1)]", P20, order=1,
)  # fmt: skip
def nc2_equinorm_weights(weight: Tensor) -> float:
    """Return the spread; NaN where all are 0."""
    return _equinorm(weight.double())


@metric(
    "NC2", "0", "spread of the class means' lengths over their mean",
    "standard deviation over mean of the lengths of μ_k − μ_G", "[0, √(K−1)]", P20, order=1,
)  # fmt: skip
def nc2_equinorm_means(statistics: ClassStatistics) -> float:
    """Return the spread; NaN where all are 0."""
    return _equinorm(statistics.centred_means)


@metric(
    "NC2", "0", "mean |cos + 1/(K-1)| of the weights", "mean over pairs of W's rows of abs(cos + 1/(K−1))",
    "[0, K/(K−1)]", P20, order=1,
)  # fmt: skip
def nc2_equiangular_weights(weight: Tensor) -> float:
    """Return the mean; NaN where a row is 0, and for K > d + 1."""
    return _equiangular(weight.double())


@metric(
    "NC2", "0", "mean |cos + 1/(K-1)| of the class means",
    "mean over pairs of μ_k − μ_G of abs(cos + 1/(K−1))", "[0, K/(K−1)]", P20, order=1,
)  # fmt: skip
def nc2_equiangular_means(statistics: ClassStatistics) -> float:
    """Return the mean; NaN where a centred mean is 0, and for K > d + 1."""
    return _equiangular(statistics.centred_means)


@metric(
    "NC2", "1 or inf", "condition number of the class means, not centred",
    "condition number of the class means, **not** centred: 1 if orthogonal, ∞ for a simplex about 0",
    "[1, ∞]", S24,
)  # fmt: skip
def nc2_condition(statistics: ClassStatistics) -> float:
    """Return S24's DNC2; inf where the means are dependent up to rounding of the features' type."""
    of_type = max(statistics.rounding, statistics.entry_rounding)
    return condition_number(statistics.singular, statistics.means.shape, of_type)


@metric(
    "NC3", "0", "weights times class means: distance to a simplex ETF", "‖WMᵀ/‖WMᵀ‖ − E/√(K−1)‖", "[0, 2]",
    "K23 eq. 8", order=1,
)  # fmt: skip
def nc3_duality(statistics: ClassStatistics, weight: Tensor) -> float:
    """Return weights times class means: distance to a simplex ETF.

    0 where W is M up to scale, and M is a simplex ETF. A common shift of W's rows counts, unless it is
    orthogonal to all centred means. NaN for W = 0, where a centred mean is 0 to rounding, and for K > d + 1.
    """
    if not simplex_fits(*weight.shape):
        return math.nan
    return _distance_to_etf(scaled(weight) @ unit_rows(statistics.centred_means).T)


def unit_rows(vectors: Tensor) -> Tensor:
    """Return every row divided by its length, at any scale; NaN for a row of zeros."""
    rows = vectors / row_scales(vectors)
    return rows / rows.norm(dim=1, keepdim=True)


def scaled(matrix: Tensor) -> Tensor:
    """Return the matrix over its largest entry, in float64, so that its squares stay in range."""
    matrix = matrix.double()
    largest = matrix.abs().max()
    return matrix / largest if largest > 0 else matrix


def _equinorm(rows: Tensor) -> float:
    """Return the standard deviation over the mean of the lengths of K vectors (K, d)."""
    lengths = (rows / row_scales(rows.reshape(1, -1))).norm(dim=1)
    return (lengths.std(correction=0) / lengths.mean()).item()


def _equiangular(vectors: Tensor) -> float:
    """Return the mean over pairs of abs(cos + 1/(K-1)) of K vectors (K, d)."""
    if not simplex_fits(*vectors.shape):
        return math.nan
    rows = unit_rows(vectors)
    cosines = rows @ rows.T
    first, second = torch.triu_indices(len(rows), len(rows), 1, device=rows.device).unbind()
    return (cosines[first, second] + 1 / (len(rows) - 1)).abs().mean().item()


def _distance_to_ray(weight: Tensor, direction: Tensor) -> float:
    rows = scaled(weight)
    gram = rows @ rows.T
    direction = direction.to(gram.device)
    scale = ((gram * direction).sum() / direction.square().sum()).clamp(min=0)
    return ((gram - scale * direction).norm() / gram.norm()).item()


def _distance_to_etf(gram: Tensor) -> float:
    target = simplex_etf_gram(len(gram)).to(gram.device) / (len(gram) - 1) ** 0.5
    return (gram / gram.norm() - target).norm().item()
