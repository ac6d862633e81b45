"""Fit slopes of log10 metric on log10 L: with intervals, a test of the line, and without small depths.

p  depths of a series
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ncpipe.config.params import Slopes
from ncpipe.metrics.study_metrics import entry
from ncpipe.tables.intervals import combination_interval
from ncpipe.tables.keys import line_keys, x_column
from ncpipe.tables.linearity import line_test
from ncpipe.tables.points import SERIES, in_order, run_counts, series_grid, usable_points
from ncpipe.tables.ranks import RHO, rank_correlation

FEWEST_DEPTHS = 3  # of a fit with depths left out
FIT = ["slope", "low", "high", "intercept", "level", "n_used", "n_depths"]
TEST = ["lack_of_fit", "df1", "df2", "p_value", "rejected"]
DRIFT = ["drift", "drift_low", "drift_high", "drifts"]


def loglog_slopes(measurements: pd.DataFrame, runs: pd.DataFrame, rule: Slopes) -> pd.DataFrame:
    """Return per line, layer, split and metric the slope and intercept of log10 value = a + b log10 L.

    Only metrics on a log scale (`metrics.catalogue`) have rows, because shares, ranks and margins follow no
    power law. A line is an experiment over its depths L; in a study with an axis, it is an experiment at one
    depth over the values of the axis. If these are not all positive there is no power law: slope and test are
    NaN, and the columns rho and rho_p_value have `ranks.rank_correlation`.

    The fit is ordinary least squares with every used run (see `points.usable_points`) as one point. slope,
    intercept: NaN for used runs at fewer than two depths. low, high: `intervals.combination_interval` at
    `level`, which is about the seeds and does not test the power law; NaN if a depth has one used run.
    n_used, n_depths: numbers of used runs and of their depths.

    lack_of_fit, df1, df2, p_value: `linearity.line_test`, of whether the depths' means lie on a line.
    rejected: p_value < 1 - level. unusable: number of selected runs without a usable value, by reason, as
    '2 zero'. n_runs, n_converged, n_selected: numbers of the line's runs.
    """
    points = usable_points(_on_log_scale(measurements), runs)
    keys = [*line_keys(runs), *SERIES]
    names = series_grid(points, runs)[keys].drop_duplicates()
    counts = run_counts(runs, line_keys(runs))
    by_series, nothing = dict(iter(points.groupby(keys))), points.iloc[:0]
    no_power = bool((runs[x_column(runs)] <= 0).any())
    rows = []
    for key in names.itertuples(index=False, name=None):
        series = by_series.get(key, nothing)
        fit = _ranks(series, "|".join(map(str, key)), rule) if no_power else replicates(series, rule).fit(0)
        rows.append(fit | {"unusable": _unusable_reasons(series)})
    columns = [*FIT, *TEST, *(RHO if "x" in runs else []), "unusable"]
    fits = pd.DataFrame(rows, columns=columns, index=names.index)
    return in_order(names.join(fits).merge(counts, how="left"), runs)


def leave_out_slopes(measurements: pd.DataFrame, runs: pd.DataFrame, rule: Slopes) -> pd.DataFrame:
    """Return the fits of `loglog_slopes` without the smallest depth, the two smallest, ... down to three.

    There is one row per series and number of depths left out, and none for a series with used runs at fewer
    than four depths. n_left_out and without: how many depths are left out, and which, as '2, 3'. drift: the
    slope minus that of all depths. drift_low, drift_high: its interval, in which what both slopes share
    cancels. Under a power law the drift is 0. drifts: whether its interval excludes 0; then the fit to all
    depths is not the rate at large L. A study with an axis has no rows: the theory makes no statement about
    large values.
    """
    points = usable_points(_on_log_scale(measurements), runs)
    keys = [*line_keys(runs), *SERIES]
    rows = [
        dict(zip(keys, key, strict=True)) | row
        for key, series in points[points["used"] & ("x" not in runs)].groupby(keys)
        for row in fits_without_small_depths(replicates(series, rule))
    ]
    columns = [*keys, "n_left_out", "without", *FIT, *TEST, *DRIFT]
    return in_order(pd.DataFrame(rows, columns=columns), runs)


def least_squares_line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return slope and intercept that minimise sum (y - a - b x)^2; needs two distinct x."""
    slope = float(slope_weights(x, np.ones(len(x))) @ y)
    return slope, float(y.mean() - slope * x.mean())


def slope_weights(x: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return w (p,) with least-squares slope w . means, for counts (p,) points at each of x (p,)."""
    centred = x - np.average(x, weights=counts)
    return counts * centred / (counts * centred**2).sum()


def turns_back(means: Sequence[float], slope: float) -> bool:
    """Return whether the last of some means lies against the slope as seen from the (lower) middle one."""
    return (means[-1] - means[(len(means) - 1) // 2]) * slope < 0


@dataclass(frozen=True)
class Replicates:
    """Holds the used runs of one series: depths (ascending) and log10 values at each."""

    depths: np.ndarray
    groups: list[np.ndarray]
    level: float

    def fit(self, start: int) -> dict[str, Any]:
        """Return the columns FIT and TEST for the depths from index `start` on."""
        x, groups = np.log10(self.depths[start:]), self.groups[start:]
        counts = np.array([len(values) for values in groups])
        slope = intercept = low = high = math.nan
        if len(x) >= 2:
            means = np.array([values.mean() for values in groups])
            weights = self.weights(start)[start:]
            slope = float(weights @ means)
            intercept = float(np.average(means - slope * x, weights=counts))
            low, high = combination_interval(weights, groups, self.level)
        test = line_test(x, groups)
        fitted = (slope, low, high, intercept, self.level, int(counts.sum()), len(x))
        return (
            dict(zip(FIT, fitted, strict=True)) | test._asdict() | {"rejected": test.p_value < 1 - self.level}
        )

    def weights(self, start: int) -> np.ndarray:
        """Return w (p,) with w . means the slope of the depths from index `start` on."""
        counts = np.array([len(values) for values in self.groups[start:]])
        return np.concatenate([np.zeros(start), slope_weights(np.log10(self.depths[start:]), counts)])


def replicates(series: pd.DataFrame, rule: Slopes) -> Replicates:
    """Return the used runs among the `usable_points` of one series."""
    by_depth = series[series["used"]].groupby(x_column(series))["log10"]
    groups = [values.to_numpy() for _, values in by_depth]
    return Replicates(np.array(list(by_depth.groups)), groups, rule.level)


def _ranks(series: pd.DataFrame, name: str, rule: Slopes) -> dict[str, Any]:
    """Return the columns FIT and TEST, without numbers, and RHO."""
    used = replicates(series, rule)
    rho = rank_correlation(used.depths, used.groups, name, rule)
    unfitted = Replicates(used.depths[:0], [], rule.level).fit(0)
    counts = {"n_used": sum(map(len, used.groups)), "n_depths": len(used.groups)}
    return unfitted | counts | dict(zip(RHO, rho, strict=True))


def fits_without_small_depths(series: Replicates) -> Iterator[dict[str, Any]]:
    """Yield the rows of `leave_out_slopes` for one series, without its keys."""
    for left_out in range(1, len(series.depths) - FEWEST_DEPTHS + 1):
        fit = series.fit(left_out)
        change = series.weights(left_out) - series.weights(0)
        low, high = combination_interval(change, series.groups, series.level)
        drift = float(change @ [values.mean() for values in series.groups])
        drifted = (drift, low, high, low > 0 or high < 0)
        without = ", ".join(str(depth) for depth in series.depths[:left_out])
        yield {"n_left_out": left_out, "without": without} | fit | dict(zip(DRIFT, drifted, strict=True))


def _on_log_scale(measurements: pd.DataFrame) -> pd.DataFrame:
    linear = {metric for metric in measurements["metric"].unique() if entry(metric).scale == "linear"}
    return measurements[~measurements["metric"].isin(linear)]


def _unusable_reasons(series: pd.DataFrame) -> str:
    reasons = series.loc[series["selected"] & ~series["used"], "reason"].value_counts(sort=False)
    return ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
