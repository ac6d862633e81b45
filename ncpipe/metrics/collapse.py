"""NC1 in float64: the scatter of samples about their class means, relative to the distances between classes.

K  classes    d  feature width    Sigma_W = 1/N sum_k sum_i (h_ki - mu_k)(h_ki - mu_k)^T
Sigma_B = 1/K sum_k (mu_k - mu_G)(mu_k - mu_G)^T with mu_G the mean of the class means [S25 sec. 3].
"""

import math

from torch import Tensor

from ncpipe.metrics.pairs import tiles
from ncpipe.metrics.scales import value_times_two_to
from ncpipe.metrics.statistics import ClassStatistics


def nc1_trace_ratio(statistics: ClassStatistics) -> float:
    """Return tr(Sigma_W)/tr(Sigma_B); lower is more collapsed, 0 at collapse [S25 Def. 3.4 NC1].

    inf where all class means coincide to rounding, also where no class has any spread.
    """
    return _ratio(within_trace(statistics), between_trace(statistics))


def nc1_pinv(statistics: ClassStatistics, spread: Tensor) -> tuple[float, int]:
    """Return tr(Sigma_W Sigma_B^+)/K and the rank of Sigma_B used; 0 at collapse [K23 eq. 4].

    spread (r,): sum_i (v_j^T(h_i - mu_y))^2/s_j^2 along each of the `between_directions`. From the SVD of the
    centred means, mu_k - mu_G = sum_j s_j u_jk v_j, the trace is 1/K sum_j v_j^T Sigma_W v_j/(s_j^2/K), so
    the sum of `spread` over N. No d x d matrix is held, nor inverted, so none is badly conditioned.
    inf with rank 0 where all class means coincide, NaN with rank 0 where a feature is not finite.
    """
    if len(spread):
        return spread.sum().item() / statistics.samples, len(spread)
    return (math.inf if bool(statistics.means.isfinite().all()) else math.nan), 0


def dnc1_trace_pinv(statistics: ClassStatistics) -> float:
    """Return tr(Sigma_W)/tr(Sigma_B^+) as S24 prints DNC1 [S24 sec. 6]; 0 at collapse.

    It grows with the fourth power of the features' scale, so compare it only between layers of one scale;
    `nc1_trace_ratio` is free of scale. The rank of Sigma_B^+ is that of `nc1_pinv`. inf where all class means
    coincide.
    """
    singular, _ = statistics.between_directions
    within = within_trace(statistics)
    if within.isnan():
        return math.nan
    ratio = _ratio(within, (statistics.classes / singular.square()).sum())
    return value_times_two_to(ratio, 4 * statistics.exponent)


def tcv(statistics: ClassStatistics) -> float:
    """Return tr(Sigma_W), the total cluster variation of the classes, in the features' squared unit.

    0 at collapse; of features twice as long four times as much. Named after Zangrando et al. [arXiv
    2402.03991]; `ncpipe.features.rank_bound` has what it bounds.
    """
    return value_times_two_to(within_trace(statistics).item(), 2 * statistics.exponent)


def cdnv(statistics: ClassStatistics) -> float:
    """Return the mean over pairs of (Var_i + Var_j)/(2 |mu_i - mu_j|^2), Var_k = 1/n_k sum_i |h_ki - mu_k|^2.

    Class-distance normalised variance, 0 at collapse, lower is more collapsed [K23 eq. 51]. Var_k is the sum
    over all coordinates. inf where any two class means coincide to rounding.
    """
    return _over_pairs(statistics, logarithm=False)[0]


def cdnv_and_log(statistics: ClassStatistics) -> tuple[float, float]:
    """Return `cdnv` and the mean over the same pairs of its logarithm, which few close pairs cannot dominate.

    The latter is -inf where two classes have no spread, and inf where any two class means coincide.
    """
    return _over_pairs(statistics, logarithm=True)


def _over_pairs(statistics: ClassStatistics, logarithm: bool) -> tuple[float, float]:
    """Return the mean over pairs of CDNV, and of its logarithm (0 unless asked for)."""
    variances = statistics.squares / statistics.counts
    total, logs, pairs = 0.0, 0.0, 0
    for tile in tiles(statistics.means):
        distances = tile.pairs(tile.distances)
        if bool((distances <= statistics.cutoff).any()):
            return math.inf, math.inf
        values = tile.pairs(tile.sums(variances)) / (2 * distances.square())
        total, pairs = total + values.sum().item(), pairs + len(values)
        if logarithm:
            logs += values.log_().sum().item()
    return total / pairs, logs / pairs


def within_trace(statistics: ClassStatistics) -> Tensor:
    """Return tr(Sigma_W) = 1/N sum |h_ki - mu_k|^2 in the statistics' unit; each sample weighs the same."""
    return statistics.squares.sum() / statistics.samples


def between_trace(statistics: ClassStatistics) -> Tensor:
    """Return tr(Sigma_B) = 1/K sum |mu_k - mu_G|^2 in the statistics' unit; each class weighs the same.

    0 where the class means coincide to rounding.
    """
    return statistics.centred_means().square().sum() / statistics.classes


def _ratio(numerator: Tensor, denominator: Tensor) -> float:
    return math.inf if denominator == 0 else (numerator / denominator).item()
