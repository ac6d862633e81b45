"""Compute confidence intervals of linear combinations of means, with few runs behind each mean.

groups: the log10 values of the runs at each depth.    p  depths    n  runs at a depth
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

ROUNDING = 1e-13  # of log10 values and their means


def combination_interval(
    weights: np.ndarray, groups: Sequence[np.ndarray], level: float
) -> tuple[float, float]:
    """Return the interval of weights . means (p,): value ± t standard errors; NaN if a depth has one run.

    The variance is sum w^2 s^2/n, with s^2 of each depth's own runs (ddof = 1). t is Student's quantile at
    Satterthwaite's degrees of freedom [Satterthwaite 1946; Welch 1947], which account for the few runs behind
    each variance. One run says nothing about its depth's spread. A value that is rounding has 0 in its
    interval.

    Runs count as independent of each other and of runs at other depths (docs/depth_rates.md has the effect of
    shared seeds). In simulations with normal errors (`benchmarks/interval_coverage.py`) 95 % intervals cover
    94.5 to 95.4 % with five seeds, 93.6 to 96.2 % with three and 91 to 98 % with two, at five and seven
    depths, for deviations that are equal or change tenfold over the depths.
    """
    error, freedom = standard_error(weights, groups)
    if math.isnan(error):
        return math.nan, math.nan
    value = float(weights @ [values.mean() for values in groups])
    reach = error * float(special.stdtrit(freedom, (1 + level) / 2)) if error else 0.0
    low, high = value - reach, value + reach
    if abs(value) <= ROUNDING * np.abs(weights).sum():  # as of a metric that is the same in all runs
        return min(low, 0.0), max(high, 0.0)
    return low, high


def standard_error(weights: np.ndarray, groups: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the standard error of weights . means and its degrees of freedom; NaN if a depth has one run.

    As in `combination_interval`; with an error of 0 the freedom is infinite.
    """
    if min(map(len, groups), default=0) < 2:
        return math.nan, math.nan
    runs = np.array([len(values) for values in groups])
    parts = np.square(weights) * [values.var(ddof=1) for values in groups] / runs
    variance = float(parts.sum())
    freedom = variance**2 / float((parts**2 / (runs - 1)).sum()) if variance else math.inf
    return math.sqrt(variance), freedom
