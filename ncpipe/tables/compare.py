"""Compare the same experiments under several settings: rates, means at a depth, and their differences.

p  depths of a series    n  runs at a depth
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ncpipe.config.params import Slopes
from ncpipe.metrics.catalogue import series_name
from ncpipe.tables.intervals import combination_interval, standard_error
from ncpipe.tables.keys import VARIED, rows_at, symbol, x_column
from ncpipe.tables.points import LAST
from ncpipe.tables.slopes import FEWEST_DEPTHS, slope_weights

QUANTITIES = ("runs", "converged", "slope", "log10")
KEYS = ["experiment", "quantity", "series", "depth", *VARIED]
ESTIMATE = ["value", "low", "high"]
CHANGE = ["difference", "difference_low", "difference_high", "pairs"]
COLUMNS = [*KEYS, "revision", *ESTIMATE, *CHANGE]


class Results(NamedTuple):
    """Holds tables of `aggregate`: points (`points.usable_points`) and runs (with converged)."""

    points: pd.DataFrame
    runs: pd.DataFrame


class WeightedRuns(NamedTuple):
    """Holds the used runs at one depth, log10 value by seed, and their mean's weight in a combination.

    In a study with an axis, depth is the value of the axis.
    """

    depth: float
    weight: float
    values: pd.Series


Combination = list[WeightedRuns]
Lines = dict[int, dict[Any, pd.Series]]


def compare_results(
    revisions: Mapping[str, Results], experiment: str, series: Iterable[tuple[str, str]], rule: Slopes
) -> pd.DataFrame:
    """Return one row per quantity and revision of one experiment, compared with the first revision.

    series: (metric, split), of the last layer. quantity: `runs` and `converged` (counts); `slope`, of
    log10 value on log10 L; `log10`, the mean of log10 value at the deepest depth at which every revision has
    used runs. depth: that depth, else empty. value, low, high: as in `slopes.loglog_slopes`; NaN if there is
    none. In a study with an axis, `slope` is on log10 x, with a row for each depth, and `log10` has a row for
    each value x at that depth; the table then has the columns axis and x.

    difference: the value minus that of the first revision, with its interval from `difference_interval`.
    pairs: number of depths at which runs are compared as pairs, as '5 of 5'. Both are empty in the rows of
    the first revision. Counts have no interval.
    """
    rows = _counts(revisions, experiment)
    for metric, split in series:
        named = {
            name: _lines(results.points, experiment, metric, split) for name, results in revisions.items()
        }
        label = series_name(split, metric)
        for quantity, place, terms in _quantities(named):
            base = next(iter(terms.values()))
            for index, (name, combination) in enumerate(terms.items()):
                change = _change(base, combination, rule.level) if index else {}
                keys = {"quantity": quantity, "series": label, "revision": name, "pairs": ""} | place
                ends = difference_interval([], combination, rule.level) if combination else (math.nan,) * 3
                estimate = dict(zip(ESTIMATE, ends, strict=True))
                rows.append(keys | estimate | change)
    rows.sort(key=lambda row: QUANTITIES.index(row["quantity"]))
    table = pd.DataFrame(rows).assign(experiment=experiment).reindex(columns=COLUMNS)
    axis = symbol(next(iter(revisions.values())).runs)
    table = table.drop(columns=VARIED) if axis == "L" else table.assign(axis=axis)
    return table.astype({"depth": "Int64"})


def difference_interval(base: Combination, other: Combination, level: float) -> tuple[float, float, float]:
    """Return value and interval of sum w' mean' - sum w mean, over the terms of `other` (w') and `base` (w).

    If both have the same seeds at a depth, the two runs of a seed are a pair, w' y' - w y, because they share
    the seed's randomness. At other depths they count as independent. Pairs are valid whether or
    not the runs correlate; without correlation they only cost degrees of freedom. Two settings with the same
    runs differ by 0 [0, 0].

    The interval is that of a slope (`intervals.combination_interval`).
    """
    groups, weights = _groups(base, other)
    value = float(weights @ [values.mean() for values in groups])
    return (value, *combination_interval(weights, groups, level))


def difference_error(base: Combination, other: Combination) -> tuple[float, float]:
    """Return the standard error behind `difference_interval` and its degrees of freedom."""
    groups, weights = _groups(base, other)
    return standard_error(weights, groups)


def size_difference_interval(
    base: Combination, other: Combination, level: float
) -> tuple[float, float, float]:
    """Return value and interval of |b| - |a|, where a and b are the combinations of `base` and `other`.

    With u = b - a and v = b + a, |b| - |a| = max(min(u, v), min(-u, -v)). `difference_interval` gives an
    interval of u and one of v; low and high are the least and the largest value over the product of both. So
    the interval is below 0 only if the intervals of u and v have opposite signs.
    """
    one = difference_interval(base, other, level)
    both = difference_interval([term._replace(weight=-term.weight) for term in base], other, level)
    (u, u_low, u_high), (v, v_low, v_high) = one, both
    return (
        _largest(u, u, v, v),
        -_largest(-u_high, -u_low, v_low, v_high),
        _largest(u_low, u_high, v_low, v_high),
    )


def _largest(u_low: float, u_high: float, v_low: float, v_high: float) -> float:
    """Return the largest max(min(u, v), min(-u, -v)) on the rectangle; NaN if an end is NaN."""
    return float(np.maximum(np.minimum(u_high, v_high), np.minimum(-u_low, -v_low)))


def paired_depths(base: Combination, other: Combination) -> set[float]:
    """Return the depths at which both have used runs of the same seeds."""
    seeds = {term.depth: set(term.values.index) for term in base}
    return {term.depth for term in other if seeds.get(term.depth) == set(term.values.index)}


def _groups(base: Combination, other: Combination) -> tuple[list[np.ndarray], np.ndarray]:
    """Return independent groups of runs and the weights of their means in the difference."""
    paired = paired_depths(base, other)
    earlier = {term.depth: term for term in base}
    groups, weights = [], []
    for sign, terms in ((-1, base), (1, other)):
        for term in terms:
            if term.depth not in paired:
                groups.append(term.values.to_numpy())
                weights.append(sign * term.weight)
    for term in other:
        if term.depth in paired:
            before = earlier[term.depth]
            change = term.weight * term.values - before.weight * before.values[term.values.index]
            groups.append(change.to_numpy())
            weights.append(1.0)
    return groups, np.array(weights)


def _counts(revisions: Mapping[str, Results], experiment: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for quantity, count in (("runs", len), ("converged", sum)):
        for index, (name, results) in enumerate(revisions.items()):
            value = int(count(results.runs.loc[results.runs["experiment"] == experiment, "converged"]))
            change = {"difference": value - rows[-index]["value"]} if index else {}
            rows.append(
                {"quantity": quantity, "series": "", "revision": name, "value": value, "pairs": ""} | change
            )
    return rows


def _change(base: Combination, other: Combination, level: float) -> dict[str, Any]:
    if not base or not other:
        return {}
    depths = {term.depth for term in (*base, *other)}
    pairs = f"{len(paired_depths(base, other))} of {len(depths)}"
    return dict(zip(CHANGE, (*difference_interval(base, other, level), pairs), strict=True))


def _quantities(named: Mapping[str, Lines]) -> Iterator[tuple[str, dict[str, Any], dict[str, Combination]]]:
    """Yield each quantity, its depth and value of the axis if it has them, and the terms of each revision."""
    lines = sorted(set().union(*named.values()))
    for line in lines:
        slopes = {name: slope_combination(values.get(line, {})) for name, values in named.items()}
        yield "slope", {"depth": line} if line else {}, slopes
    for line in reversed(lines):
        groups = {name: values.get(line, {}) for name, values in named.items()}
        if common := set.intersection(*map(set, groups.values())):
            for place in sorted(common) if line else [max(common)]:
                means = {name: [WeightedRuns(place, 1.0, group[place])] for name, group in groups.items()}
                yield "log10", {"depth": line, "x": place} if line else {"depth": place}, means
            break


def slope_combination(groups: Mapping[Any, pd.Series]) -> Combination:
    """Return the terms whose combination is the slope on log10 L; empty for fewer than two depths.

    groups: log10 values by depth, or by another number, which then takes the place of L; empty if it is not
    positive everywhere.
    """
    if len(groups) < 2 or min(groups) <= 0:
        return []
    counts = np.array([len(values) for values in groups.values()])
    weights = slope_weights(np.log10(list(groups)), counts)
    return [WeightedRuns(d, float(w), values) for (d, values), w in zip(groups.items(), weights, strict=True)]


def drift_combination(groups: Mapping[int, pd.Series], without: int) -> Combination:
    """Return the terms whose combination is the slope without the smallest depths minus that of all.

    groups: log10 values by depth, ascending. without: how many of the smallest depths are left out. The list
    is empty if fewer than FEWEST_DEPTHS depths remain.
    """
    deep = dict(list(groups.items())[without:])
    if len(deep) < FEWEST_DEPTHS:
        return []
    weights = {term.depth: term.weight for term in slope_combination(deep)}
    return [
        term._replace(weight=weights.get(term.depth, 0.0) - term.weight) for term in slope_combination(groups)
    ]


def _lines(points: pd.DataFrame, experiment: str, metric: str, split: str) -> Lines:
    """Return the log10 values of the used runs by line, x and seed, both ascending.

    A line is a depth, and x the value of the axis; without an axis, there is one line, 0, and x is the depth.
    """
    keys = {"experiment": experiment, "layer": LAST, "metric": metric, "split": split, "used": True}
    used = rows_at(points, keys).sort_values("seed")
    x = x_column(used)
    lines: Lines = {} if x != "depth" else {0: {}}
    group: Any
    for group, values in used.set_index("seed").groupby(["depth", x])["log10"]:
        depth, at = group
        lines.setdefault(int(depth) if x != "depth" else 0, {})[at] = values
    return lines
