"""NC1 in float64: the scatter of samples about their class means, relative to the distances between classes.

K  classes    d  feature width    Sigma_W = 1/N sum_k sum_i (h_ki - mu_k)(h_ki - mu_k)^T
Sigma_B = 1/K sum_k (mu_k - mu_G)(mu_k - mu_G)^T with mu_G the mean of the class means [S25 sec. 3].
"""

import math

from ncpipe.metrics.entry import S24, S25, WP24, Metric, family, metric
from ncpipe.metrics.powers_of_two import value_times_two_to
from ncpipe.metrics.statistics import ClassStatistics
from ncpipe.system.lazy_torch import Tensor


@metric(
    "NC1", "0", "within-class over between-class variance", "tr Σ_W / tr Σ_B", "[0, ∞]", S25, order=2,
    label="NC1", headline=True,
)  # fmt: skip
def nc1_trace_ratio(statistics: ClassStatistics) -> float:
    """Return the ratio; inf where all class means coincide to rounding, even if no class has any spread."""
    return ratio(within_trace(statistics), between_trace(statistics))


@family(
    Metric(
        "nc1_pinv", "NC1", "0", "within-class over between-class variance by direction, over K",
        "tr(Σ_W Σ_B⁺)/K, Σ_B⁺ of rank at most K−1", "[0, ∞]", "K23 eq. 4", order=2, rounding="features",
    ),
    Metric(
        "nc1_pinv_rank", "NC1", "min(K-1, d)", "rank of the pseudoinverse in nc1_pinv",
        "rank of Σ_B⁺ in `nc1_pinv`", "0..min(K−1, d)", scale="linear", where="every, both; no direction",
    ),
)  # fmt: skip
def nc1_pinv(statistics: ClassStatistics, spread: Tensor) -> tuple[float, int]:
    """Return tr(Sigma_W Sigma_B^+)/K and the rank of Sigma_B used.

    spread (r,): sum_i (v_j^T(h_i - mu_y))^2/s_j^2 along each of the `between_directions`. From the SVD of the
    centred means, mu_k - mu_G = sum_j s_j u_jk v_j, the trace is 1/K sum_j v_j^T Sigma_W v_j/(s_j^2/K), so
    the sum of `spread` over N. No d x d matrix is held, nor inverted, so none is badly conditioned.
    inf with rank 0 where all class means coincide, NaN with rank 0 where a feature is not finite.
    """
    if len(spread):
        return spread.sum().item() / statistics.samples, len(spread)
    return (math.inf if bool(statistics.means.isfinite().all()) else math.nan), 0


@metric(
    "NC1", "0", "within-class variance over trace of the pseudoinverse",
    "tr Σ_W / tr Σ_B⁺; grows with the fourth power of scale", "[0, ∞]", f"{S24}, as printed", order=2,
    rounding="none",
)  # fmt: skip
def dnc1_trace_pinv(statistics: ClassStatistics) -> float:
    """Return within-class variance over trace of the pseudoinverse.

    Compare it only between layers of one scale; `nc1_trace_ratio` is free of scale. The rank of Sigma_B^+ is
    that of `nc1_pinv`. inf where all class means coincide.
    """
    singular, _ = statistics.between_directions
    within = within_trace(statistics)
    if within.isnan():
        return math.nan
    value = ratio(within, (statistics.classes / singular.square()).sum())
    return value_times_two_to(value, 4 * statistics.exponent)


@metric(
    "NC1", "0", "total cluster variation: within-class variance as it is",
    "tr Σ_W; grows with the square of scale", "[0, ∞]", "ZDBGT24 by name, formula ours", order=2,
    rounding="none", label="TCV",
)  # fmt: skip
def tcv(statistics: ClassStatistics) -> float:
    """Return the variation; `ncpipe.features.rank_bound` has what it bounds."""
    return value_times_two_to(within_trace(statistics).item(), 2 * statistics.exponent)


@metric(
    "NC1", "0", "class variance over squared distance, mean over pairs",
    "mean over pairs of (Var_i + Var_j)/(2‖μ_i − μ_j‖²)", "[0, ∞]", "K23 eq. 51", order=2,
)  # fmt: skip
def cdnv(statistics: ClassStatistics) -> float:
    """Return the mean; inf where any two class means coincide to rounding."""
    return statistics.pair_ratios[0]


@metric(
    "NC1", "−inf", "logarithm of class variance over squared distance, mean over pairs",
    "mean over pairs of log((Var_i + Var_j)/(2‖μ_i − μ_j‖²))", "[−∞, ∞]", WP24, scale="linear", many=True,
)  # fmt: skip
def cdnv_log(statistics: ClassStatistics) -> float:
    """Return the mean, which few close pairs cannot dominate; -inf where two classes have no spread."""
    return statistics.pair_ratios[1]


def within_trace(statistics: ClassStatistics) -> Tensor:
    """Return tr(Sigma_W) = 1/N sum |h_ki - mu_k|^2 in the statistics' unit; each sample weighs the same."""
    return statistics.squares.sum() / statistics.samples


def between_trace(statistics: ClassStatistics) -> Tensor:
    """Return tr(Sigma_B) = 1/K sum |mu_k - mu_G|^2 in the statistics' unit; each class weighs the same.

    0 where the class means coincide to rounding.
    """
    return statistics.centred_means.square().sum() / statistics.classes


def ratio(numerator: Tensor, denominator: Tensor) -> float:
    """Return the ratio of two scalars; inf where the denominator is 0."""
    return math.inf if denominator == 0 else (numerator / denominator).item()


@metric(
    "norm", "-", "root mean square length of features", "√(1/N Σ ‖h‖²)", "[0, ∞)",
    "R26, whose fn is the mean length", label="feature norm",
)  # fmt: skip
def feature_norm(statistics: ClassStatistics) -> float:
    """Return the length, not about a mean; 0 for features of 0."""
    energy = statistics.squares + statistics.counts * statistics.means.square().sum(1)
    return value_times_two_to((energy.sum() / statistics.samples).sqrt().item(), statistics.exponent)
