"""NC0, NC2 and NC3 of whole matrices: how close class means and weights are to a simplex ETF.

Distances to a simplex ETF are NaN for K > d + 1, where none exists; `uniformity.py` has the metrics for that
case.

K  classes    d  feature width    E_K = I - 11^T/K, |.| the Frobenius norm. All in float64.
"""

import math

import torch
from torch import Tensor

from ncpipe.metrics.scales import (
    largest_entry,
    row_scales,
    size_exponent,
    times_two_to,
    value_times_two_to,
)
from ncpipe.metrics.spectrum import condition_number
from ncpipe.metrics.statistics import ClassStatistics


def simplex_fits(classes: int, width: int) -> bool:
    """Return whether K vectors of d coordinates can be a simplex ETF: K <= d + 1."""
    return classes <= width + 1


def simplex_etf_gram(classes: int) -> Tensor:
    """Return E_K = I_K - 11^T/K (K, K), up to scale the Gram matrix of a simplex equiangular tight frame.

    S25 prints E_K without the 1/K, which is the Gram matrix of no frame (it has a negative eigenvalue).
    """
    return torch.eye(classes, dtype=torch.float64) - 1 / classes


def nc0_row_sum(weight: Tensor) -> float:
    """Return |sum_k W_k|^2/K of the rows of W (K, d), NC0 [ZCML26].

    0 is necessary for NC2 and NC3, whose simplex ETF has rows that add up to 0; it is not sufficient. The
    value grows with the square of W's scale, so W = 0 gives 0 too.
    """
    exponent = size_exponent(largest_entry(weight))
    total = times_two_to(weight.double(), -exponent).sum(0)
    return value_times_two_to(total.square().sum().item() / len(weight), 2 * exponent)


def nc0_relative(weight: Tensor) -> float:
    """Return |sum_k W_k|^2/(K |W|^2) of W (K, d): `nc0_row_sum` over |W|^2, free of scale.

    In [0, 1] by Cauchy-Schwarz; 0 where the rows add up to 0, 1 where they are all equal. NaN for W = 0.
    """
    rows = scaled(weight)
    return (rows.sum(0).square().sum() / (len(rows) * rows.square().sum())).item()


def nc2_etf(weight: Tensor) -> float:
    """Return min_{c >= 0} |W W^T - c E_K|_F/|W W^T|_F with E_K = I - 11^T/K; W (K, d) [S25 Def. 3.4 NC2A].

    In [0, 1]; 0 where the rows of W are a simplex ETF. NaN for W = 0 and for K > d + 1.
    """
    if not simplex_fits(*weight.shape):
        return math.nan
    return _distance_to_ray(weight, simplex_etf_gram(len(weight)))


def nc2_identity(weight: Tensor) -> float:
    """Return min_{c >= 0} |W W^T - c I_K|_F/|W W^T|_F; W (K, d) [S25 Def. 3.4 NC2B].

    In [0, 1]; 0 where the rows of W are orthogonal and of one length. NaN for W = 0 and for K > d + 1.
    """
    if not simplex_fits(*weight.shape):
        return math.nan
    return _distance_to_ray(weight, torch.eye(len(weight), dtype=torch.float64))


def nc2_means(statistics: ClassStatistics) -> float:
    """Return |M M^T/|M M^T| - E_K/sqrt(K-1)|, M the centred class means at length 1 [K23 eq. 7].

    In [0, 2]; 0 where the centred means point along a simplex ETF. NaN where one is 0 to rounding, and for
    K > d + 1.
    """
    if not simplex_fits(*statistics.means.shape):
        return math.nan
    rows = unit_rows(statistics.centred_means())
    return _distance_to_etf(rows @ rows.T)


def nc3_duality(statistics: ClassStatistics, weight: Tensor) -> float:
    """Return |A M^T/|A M^T| - E_K/sqrt(K-1)| with A = W (K, d), M as in `nc2_means` [K23 eq. 8].

    In [0, 2]; 0 where W is M up to scale, and M is a simplex ETF. A common shift of W's rows counts, unless
    it is orthogonal to all centred means. NaN for W = 0, where a centred mean is 0 to rounding, and for
    K > d + 1.
    """
    if not simplex_fits(*weight.shape):
        return math.nan
    return _distance_to_etf(scaled(weight) @ unit_rows(statistics.centred_means()).T)


def nc2_equinorm(vectors: Tensor) -> float:
    """Return the standard deviation over the mean of the lengths of K vectors (K, d) [Papyan et al. 2020].

    Of the centred class means or the rows of W; 0 where all are of one length. NaN where all are 0.
    """
    rows = vectors.double()
    lengths = (rows / row_scales(rows.reshape(1, -1))).norm(dim=1)
    return (lengths.std(correction=0) / lengths.mean()).item()


def nc2_equiangular(vectors: Tensor) -> float:
    """Return the mean over pairs of abs(cos + 1/(K-1)) of K vectors (K, d) [Papyan et al. 2020].

    Of the centred class means or the rows of W; 0 where they point along a simplex ETF. NaN where one is 0,
    and for K > d + 1.
    """
    if not simplex_fits(*vectors.shape):
        return math.nan
    rows = unit_rows(vectors.double())
    cosines = rows @ rows.T
    first, second = torch.triu_indices(len(rows), len(rows), 1, device=rows.device).unbind()
    return (cosines[first, second] + 1 / (len(rows) - 1)).abs().mean().item()


def nc2_condition(statistics: ClassStatistics) -> float:
    """Return the condition number of the uncentred class means (K, d), S24's DNC2 [S24 sec. 6].

    1 where the means are orthogonal and of one length; inf where they are dependent to float64 rounding.
    """
    return condition_number(statistics.singular, statistics.means.shape)


def unit_rows(vectors: Tensor) -> Tensor:
    """Return every row divided by its length, at any scale; NaN for a row of zeros."""
    rows = vectors / row_scales(vectors)
    return rows / rows.norm(dim=1, keepdim=True)


def scaled(matrix: Tensor) -> Tensor:
    """Return the matrix over its largest entry, in float64, so that its squares stay in range."""
    return matrix.double() / matrix.abs().max().double()


def _distance_to_ray(weight: Tensor, direction: Tensor) -> float:
    rows = scaled(weight)
    gram = rows @ rows.T
    direction = direction.to(gram.device)
    scale = ((gram * direction).sum() / direction.square().sum()).clamp(min=0)
    return ((gram - scale * direction).norm() / gram.norm()).item()


def _distance_to_etf(gram: Tensor) -> float:
    target = simplex_etf_gram(len(gram)).to(gram.device) / (len(gram) - 1) ** 0.5
    return (gram / gram.norm() - target).norm().item()
