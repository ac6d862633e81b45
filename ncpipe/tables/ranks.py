"""Spearman's rank correlation with the study's axis, for values of which not all have a logarithm.

groups: per value of the axis the log10 values of its runs.    p  values of the axis    n  runs at one
"""

import math
import zlib
from collections.abc import Sequence

import numpy as np
import pandas as pd

from ncpipe.params import Slopes
from ncpipe.tables.intervals import spread

RHO = ["rho", "rho_low", "rho_high"]


def rank_correlation(
    x: np.ndarray, groups: Sequence[np.ndarray], name: str, rule: Slopes
) -> tuple[float, float, float]:
    """Spearman's rho of all runs with x (p,), and its bootstrap interval at `rule.level`.

    rho is Pearson's correlation of the ranks, equal values sharing their mean rank: 1 where a larger x always
    comes with a larger value, though never quite 1 where several runs share an x. NaN for fewer than two x.

    The interval is that of percentiles, of draws of as many runs at each x: the mean there plus deviations
    scaled to the unbiased variance, drawn with replacement. An x with one run takes those of all others;
    where none has two runs the interval is NaN. The stream is that of `intervals.drawn_means`.
    """
    if len(groups) < 2:
        return math.nan, math.nan, math.nan
    where = np.repeat(x, [len(values) for values in groups])
    rho = float(_correlation(where, np.concatenate(groups)[np.newaxis])[0])
    deviations = [spread(values) for values in groups if len(values) > 1]
    if not deviations:
        return rho, math.nan, math.nan
    generator = np.random.default_rng([rule.seed, zlib.crc32(name.encode())])
    anyone = np.concatenate(deviations)
    parts = []
    for values in groups:
        pool = values.mean() + (spread(values) if len(values) > 1 else anyone)
        parts.append(pool[generator.integers(len(pool), size=(rule.draws, len(values)))])
    drawn = _correlation(where, np.concatenate(parts, axis=1))
    low, high = np.quantile(drawn, [(1 - rule.level) / 2, (1 + rule.level) / 2])
    return rho, float(low), float(high)


def _correlation(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Correlation of the ranks of x (N,) with those of each row of y (m, N)."""
    first = pd.Series(x).rank().to_numpy()
    ranks = pd.DataFrame(y).rank(axis=1).to_numpy()
    first, ranks = first - first.mean(), ranks - ranks.mean(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return (ranks @ first) / np.sqrt(np.square(ranks).sum(axis=1) * np.square(first).sum())
