"""Slopes of log10 metric on log10 L, with bootstrap intervals over seeds."""

import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ncpipe.params import Slopes
from ncpipe.tables.points import LAST, SERIES, in_order, series_grid, usable_points

SERIES_KEYS = ["experiment", *SERIES]


def loglog_slopes(measurements: pd.DataFrame, runs: pd.DataFrame, rule: Slopes) -> pd.DataFrame:
    """One row per experiment, layer, split and metric: slope and intercept of log10 value = a + b log10 L.

    Ordinary least squares with every used run (see `points.usable_points`) as one point. slope, intercept:
    NaN for used runs at fewer than two depths. low, high: `bootstrap_interval` at `level`. n_used, n_depths:
    used runs and the depths they are at. n_runs, n_converged: the experiment's.
    """
    points = usable_points(measurements, runs)
    names = series_grid(points, runs)[SERIES_KEYS].drop_duplicates()
    counts = runs.groupby("experiment", as_index=False).agg(
        n_runs=("converged", "size"), n_converged=("converged", "sum")
    )
    used = dict(iter(points[points["used"]].groupby(SERIES_KEYS)))
    rows = [
        _fit(used.get(key, points.iloc[:0]), "|".join(key), rule)
        for key in names.itertuples(index=False, name=None)
    ]
    columns = ["slope", "low", "high", "intercept", "level", "n_used", "n_depths"]
    fits = pd.DataFrame(rows, columns=columns, index=names.index)
    return in_order(names.join(fits).merge(counts, how="left"), runs)


def least_squares_line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Slope and intercept that minimise sum (y - a - b x)^2; needs two distinct x."""
    slope = float(_slope_weights(x) @ y)
    return slope, float(y.mean() - slope * x.mean())


def bootstrap_interval(depth: np.ndarray, log10: np.ndarray, name: str, rule: Slopes) -> tuple[float, float]:
    """Percentile bootstrap interval of the slope on log10 depth; NaN if no depth has two runs.

    Runs are drawn with replacement within each depth: the depths are chosen, the runs at each are
    independent draws (seed 0 at L = 2 shares nothing with seed 0 at L = 3). The slope is a fixed
    combination of the depths' means. A depth with n runs gives n - 1 draws, not n, so that the variance of
    its mean is the unbiased s^2 / n (s^2 with ddof = 1): n draws give (n - 1) / n of that, a third too
    little at three seeds (McCarthy and Snowden 1985; Rao and Wu 1988). A depth with one run adds no
    spread. The interval is about seeds only; it does not say that a power law fits. With normal errors at
    five depths a 95 % interval covers 91 % (three seeds) and 93 % (five seeds).

    The stream is seeded by `rule.seed` and the CRC-32 of `name`, so other series do not move it. The
    points' order matters within a depth: give them by depth and seed.
    """
    depths, counts = np.unique(depth, return_counts=True)
    if len(depths) < 2 or counts.max() < 2:
        return math.nan, math.nan
    weights = _slope_weights(np.log10(depth))
    generator = np.random.default_rng([rule.seed, zlib.crc32(name.encode())])
    slopes = np.zeros(rule.draws)
    for value, count in zip(depths, counts, strict=True):
        here = depth == value
        drawn = generator.integers(count, size=(rule.draws, max(count - 1, 1)))
        slopes += weights[here].sum() * log10[here][drawn].mean(axis=1)
    low, high = np.quantile(slopes, [(1 - rule.level) / 2, (1 + rule.level) / 2])
    return float(low), float(high)


def slope_sentence(row: Mapping[str, Any] | pd.Series) -> str:
    """One row of `loglog_slopes` in words."""
    name = f"{row['experiment']}: {row['metric']}"
    if row["split"] == "test":
        name += " on test"
    if row["layer"] != LAST:
        name += f" at layer {row['layer']}"
    runs = f"{row['n_converged']} of {row['n_runs']} runs converged"
    if row["n_used"] < row["n_converged"]:
        runs += f", {row['n_used']} of them with a usable value"
    if math.isnan(row["slope"]):
        return f"{name} has no slope: usable runs at fewer than two depths, {runs}"
    interval = "(no interval: one run per depth)"
    if not math.isnan(row["low"]):
        interval = f"[{row['low']:z.2f}, {row['high']:z.2f}] ({100 * row['level']:g} % CI)"
    return f"{name} scales as L^{row['slope']:z.2f} {interval}, {runs}"


def _fit(points: pd.DataFrame, name: str, rule: Slopes) -> tuple[float, ...]:
    depth, log10 = points["depth"].to_numpy(), points["log10"].to_numpy()
    n_depths = len(np.unique(depth))
    slope = intercept = math.nan
    if n_depths >= 2:
        slope, intercept = least_squares_line(np.log10(depth), log10)
    low, high = bootstrap_interval(depth, log10, name, rule)
    return slope, low, high, intercept, rule.level, len(points), n_depths


def _slope_weights(x: np.ndarray) -> np.ndarray:
    """w with least-squares slope = w . y."""
    centred = x - x.mean()
    return centred / (centred @ centred)
