"""Compute Spearman's rank correlation of a metric with the study's axis, and test its sign.

groups: the metric of the runs at each value of the axis.    p  values of the axis    N  runs
"""

import math
import zlib
from collections.abc import Sequence

import numpy as np
import pandas as pd

from ncpipe.config.params import Slopes

RHO = ["rho", "rho_p_value"]
PERMUTATIONS = 9999  # a p-value of 0.05 is known to 0.002
ROUNDING = 1e-9  # two permutations with the same correlation may differ by this in floating point


def rank_correlation(
    x: np.ndarray, groups: Sequence[np.ndarray], name: str, rule: Slopes, permutations: int = PERMUTATIONS
) -> tuple[float, float]:
    """Return Spearman's rho of all runs with x (p,) and the p-value of a permutation test of its sign.

    rho is Pearson's correlation of the ranks; equal values have their mean rank. It is 1 if a larger x always
    has a larger value, and less if several runs share an x. Both numbers are NaN for fewer than two
    x and if all values are equal.

    The null hypothesis is that x makes no difference to the values, so that every assignment of the values to
    the runs is equally likely. The p-value is two-sided: (1 + b)/(1 + permutations), where b is the number of
    random assignments with a correlation of at least the same size. So the test keeps its level for any
    number of runs (Phipson and Smyth 2010). There is no confidence interval: with two to five runs at each x
    none of those tried has its nominal coverage (docs/depth_rates.md, "Rank correlation").

    The random stream is seeded by `rule.seed` and the CRC-32 of `name`, so other series do not change it.
    """
    if len(groups) < 2:
        return math.nan, math.nan
    x_ranks = _unit_ranks(np.repeat(x, [len(values) for values in groups]))
    y_ranks = _unit_ranks(np.concatenate(groups))
    rho = float(x_ranks @ y_ranks)
    if math.isnan(rho):
        return math.nan, math.nan
    generator = np.random.default_rng([rule.seed, zlib.crc32(name.encode())])
    drawn = generator.permuted(np.tile(y_ranks, (permutations, 1)), axis=1) @ x_ranks
    as_large = int((np.abs(drawn) >= abs(rho) - ROUNDING).sum())
    return rho, (1 + as_large) / (1 + permutations)


def _unit_ranks(values: np.ndarray) -> np.ndarray:
    """Return the mid-ranks of values (N,), centred and of length 1; NaN if all values are equal."""
    ranks = pd.Series(values).rank().to_numpy()
    centred = ranks - ranks.mean()
    length = math.sqrt(float(centred @ centred))
    return centred / length if length else np.full(len(centred), math.nan)
