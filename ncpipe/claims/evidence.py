"""Compute the number that answers a claim about runs, with its interval, from the tables of `aggregate`.

`ncpipe.claims.theory` answers claims without runs; `ncpipe.claims.verdicts` compares numbers with claims.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ncpipe.claims.ledger import (
    OVER_DEPTHS,
    Across,
    DepthBound,
    Difference,
    Extreme,
    Line,
    Measured,
    Slope,
    Spearman,
    Value,
    subject,
)
from ncpipe.config.params import Slopes
from ncpipe.metrics.catalogue import series_name
from ncpipe.tables.compare import (
    Term,
    Terms,
    difference_error,
    difference_interval,
    drift_terms,
    size_difference_interval,
    slope_terms,
)
from ncpipe.tables.keys import run_keys, x_column
from ncpipe.tables.points import LAST
from ncpipe.tables.ranks import rank_correlation

LEAST_SHARE = 0.5  # of a number's runs that must be used


class Answer(NamedTuple):
    """Holds the number that answers a claim with its interval; NaN stands for missing ones, and low = high
    for an exact number.

    runs: the runs that it is computed from, as '15 of 15 runs'.
    missing: why there is no number.
    target: the number that `within` compares it with.
    p_value: of a test that the number is 0, which replaces the interval; for a line, of the test of the line.
    rejected: whether the test rejects at 1 - `slopes.level`.
    error, freedom: standard error and degrees of freedom of Student's interval; NaN for other intervals.
    depends: which selections of runs give which verdict, if they differ (`ncpipe.claims.selections`).
    """

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    runs: str = ""
    missing: str = ""
    target: float = math.nan
    p_value: float = math.nan
    rejected: bool = False
    depends: str = ""
    error: float = math.nan
    freedom: float = math.nan


@dataclass(frozen=True)
class Tables:
    """Holds the tables that `aggregate` writes."""

    points: pd.DataFrame
    runs: pd.DataFrame
    slopes: pd.DataFrame
    slopes_leave_out: pd.DataFrame
    separation: pd.DataFrame
    effective_depth: pd.DataFrame
    layer_errors: pd.DataFrame
    history: pd.DataFrame


def answer(claim: Measured, tables: Tables, rule: Slopes) -> Answer:
    """Return the number that answers a claim about runs, or why there is none (`missing`).

    `slope` and `line` are rows of slopes.csv and slopes_leave_out.csv. `spearman` is
    `ranks.rank_correlation`, and `value` and `difference` are `compare.difference_interval`. Only selected
    runs are used, except for `minimum` and `maximum`.
    """
    if isinstance(claim, Difference):
        return _difference(claim, tables, rule)
    over = claim.over if isinstance(claim, Across) else None
    table = numbers(claim, tables)
    if isinstance(table, str):
        return Answer(missing=table)
    if isinstance(claim, Extreme):
        return _extreme(claim, table, tables)
    if over or isinstance(claim, Value | DepthBound):
        table = table[table["depth"] == (claim.depth or table["depth"].max())]
    used = table[table["counted" if isinstance(claim, Value | Spearman | DepthBound) else "used"]]
    if len(used) < LEAST_SHARE * len(table) or used.empty:
        return Answer(missing=f"{len(used)} of {len(table)} runs have a number that is used")
    runs = f"{len(used)} of {len(table)} runs"
    if isinstance(claim, Slope) and over:
        found = _fitted_over(claim, over, used, rule)
    elif isinstance(claim, Slope | Line):
        found = _fitted(claim, used, tables)
    elif isinstance(claim, Spearman):
        found = _ranked_along(claim, used, tables, rule) if claim.along else _ranked(claim, used, rule)
    elif isinstance(claim, Value):
        found = _mean(claim, table, used, rule)
    elif isinstance(claim, DepthBound):
        found = _beyond_bound(claim, table, used, tables, rule)
    else:
        raise TypeError(claim.quantity)
    return found if found.missing or found.runs else found._replace(runs=runs)


def numbers(claim: Measured, tables: Tables) -> pd.DataFrame | str:
    """Return the runs that a claim is about with their values, or why there are none.

    The columns besides the runs' keys are value, log10, used (whether log10 counts) and counted (whether the
    value counts). Across experiments, x is the number that each experiment stands for.
    """
    if isinstance(claim, Across) and claim.over:
        return _numbers_over(claim, claim.over, tables)
    own = _at(tables.runs, claim.experiment, claim.depth, claim.value)
    if own.empty:
        return f"no run of {subject(claim)} in the sweep"
    keys = run_keys(tables.runs)
    if claim.quantity in ("layer_rise", "since_fit"):
        found = (_layer_rises if claim.quantity == "layer_rise" else _since_fit)(claim, tables)
        if found.empty:
            return f"{subject(claim)}: no layers or no history"
        return _without_logarithm(own[[*keys, "selected"]].merge(found, on=keys, how="left"))
    if isinstance(claim, Spearman) and claim.layer:
        found = _at(tables.layer_errors, claim.experiment, claim.depth, claim.value)
        found = found[found["layer"] == claim.layer]
        return _without_logarithm(found) if len(found) else f"{subject(claim)}: no such layer"
    if claim.quantity == "layer_slope":
        found = _named(tables.separation, claim).rename(columns={"slope": "value"})
        found = own[[*keys, "selected"]].merge(found[[*keys, "value"]], on=keys, how="left")
        return _without_logarithm(found)
    found = _named(_at(tables.points, claim.experiment, claim.depth, claim.value), claim)
    if len(found):
        return found.assign(counted=found["selected"] & np.isfinite(found["value"]))
    if claim.metric not in own and claim.metric in tables.effective_depth:
        own = own.merge(tables.effective_depth[[*keys, claim.metric]], on=keys, how="left")
    if claim.metric not in own or claim.metric in set(tables.points["metric"]):
        return f"{subject(claim)} was not measured"
    value = own[claim.metric].astype(float)
    return _without_logarithm(own[[*keys, "selected"]].assign(value=value))


def _numbers_over(claim: Across, over: Mapping[str, float], tables: Tables) -> pd.DataFrame | str:
    """Return the runs of several experiments."""
    parts = []
    for name, x in over.items():
        part = numbers(replace(claim, experiment=name, over=None, x=""), tables)
        if isinstance(part, str):
            return part
        parts.append(part.assign(x=float(x), axis=claim.x))
    return pd.concat(parts, ignore_index=True)


def _layer_rises(claim: Measured, tables: Tables) -> pd.DataFrame:
    """Return run keys and value: the largest rise from one layer to the next."""
    own = _at(tables.layer_errors, claim.experiment, claim.depth, claim.value).sort_values("position")
    groups = own.groupby(run_keys(own))["value"]
    return groups.agg(lambda errors: float(np.diff(errors).max())).reset_index()


def _since_fit(claim: Measured, tables: Tables) -> pd.DataFrame:
    """Return run keys and value: log10 metric at the last kept epoch minus that at the first fitted epoch.

    The first fitted epoch is the first kept epoch without a train error. Runs without one have no row.
    """
    own = _at(tables.history, claim.experiment, claim.depth, claim.value)
    column = series_name(claim.split, claim.metric)
    keys = run_keys(own)
    if column not in own:
        return own[keys].assign(value=math.nan).iloc[:0]
    kept = own[(own[column] > 0) & (own["train_error"] == 0)].sort_values("epoch")
    ends = np.log10(kept.set_index(keys)[column]).groupby(keys)
    return (ends.last() - ends.first()).rename("value").reset_index()


def _without_logarithm(table: pd.DataFrame) -> pd.DataFrame:
    used = table["selected"] & table["value"].notna()
    return table.assign(log10=math.nan, used=used, counted=used)


def _named(table: pd.DataFrame, claim: Measured) -> pd.DataFrame:
    rows = (table["metric"] == claim.metric) & (table["split"] == claim.split)
    return table[rows & (table["layer"] == LAST)] if "layer" in table else table[rows]


def _at(
    table: pd.DataFrame, experiment: str, depth: int | None = None, value: float | None = None
) -> pd.DataFrame:
    table = table[table["experiment"] == experiment]
    table = table if depth is None else table[table["depth"] == depth]
    return table if value is None else table[table["x"] == value]


def _fitted(claim: Slope | Line, used: pd.DataFrame, tables: Tables) -> Answer:
    """Return the slope from slopes.csv or slopes_leave_out.csv."""
    rows = _named(
        _at(tables.slopes_leave_out if claim.without else tables.slopes, claim.experiment, claim.depth), claim
    )
    if claim.without:
        rows = rows[rows["n_left_out"] == claim.without]
    if len(rows) > 1:
        return Answer(missing="a study with an axis has a slope for each depth; name one")
    if rows.empty or math.isnan(rows.iloc[0]["slope"]):
        return Answer(missing="too few depths with runs that are used for a slope")
    row = rows.iloc[0]
    found = Answer(float(row["slope"]), float(row["low"]), float(row["high"]), f"{row['n_used']:.0f} runs")
    if isinstance(claim, Line):
        return found._replace(p_value=float(row["p_value"]), rejected=bool(row["rejected"]))
    by_x = list(used.groupby(x_column(used)))[claim.without :]
    error, freedom = difference_error([], slope_terms({x: own["log10"] for x, own in by_x}))
    return found._replace(error=error, freedom=freedom)


def _fitted_over(claim: Slope, over: Mapping[str, float], used: pd.DataFrame, rule: Slopes) -> Answer:
    """Fit the slope over several experiments, whose runs are taken as independent draws."""
    used = used.sort_values(["x", "seed"])
    terms = slope_terms({x: own.set_index("seed")["log10"] for x, own in used.groupby("x")})
    if not terms:
        return Answer(missing=f"too few values of {claim.x} with a logarithm")
    return _estimate([], terms, rule)


def _estimate(base: Terms, other: Terms, rule: Slopes, runs: str = "") -> Answer:
    """Return `compare.difference_interval` as a number, with its standard error."""
    value, low, high = difference_interval(base, other, rule.level)
    error, freedom = difference_error(base, other)
    return Answer(value, low, high, runs, error=error, freedom=freedom)


def _beyond_bound(
    claim: DepthBound, table: pd.DataFrame, used: pd.DataFrame, tables: Tables, rule: Slopes
) -> Answer:
    """Return the mean error minus the estimated bound, with the interval of the mean."""
    depth = int(table["depth"].iloc[0])
    own = _at(tables.effective_depth, claim.experiment, depth)["effective_depth"].mean()
    bounds = []
    for name, share in claim.over.items():
        fitted = _at(tables.effective_depth, name, depth)
        if len(fitted):
            bounds.append((1 + claim.alpha) * share + float(own >= fitted["effective_depth"].min()))
    if not bounds or math.isnan(own):
        return Answer(missing="no effective depths to compare")
    error = _mean(claim, table, used, rule)
    return error._replace(**{end: getattr(error, end) - min(bounds) for end in ("value", "low", "high")})


def _ranked(claim: Spearman, used: pd.DataFrame, rule: Slopes) -> Answer:
    where = x_column(used)
    if where != "depth" and used["depth"].nunique() > 1:
        return Answer(missing="a study with an axis has a correlation for each depth; name one")
    groups = used.sort_values([where, "seed"]).groupby(where)["value"]
    x, values = np.array(list(groups.groups)), [own.to_numpy() for _, own in groups]
    why_not = f"too few values of {where}, or all values of {claim.metric} are equal"
    return _ranks(x, values, _name(claim), rule, why_not)


def _ranked_along(claim: Spearman, used: pd.DataFrame, tables: Tables, rule: Slopes) -> Answer:
    """Return the rank correlation with another metric over all runs, of every depth and value."""
    both = with_along(claim, used, tables)
    if isinstance(both, str):
        return Answer(missing=both)
    groups = [np.array([value]) for value in both["value"]]
    name = f"{_name(claim)}|{claim.along_split or claim.split}|{claim.along}"
    why_not = f"all values of {claim.metric} or of {claim.along} are equal"
    return _ranks(both["value_along"].to_numpy(), groups, name, rule, why_not)


def _ranks(x: np.ndarray, groups: list[np.ndarray], name: str, rule: Slopes, why_not: str) -> Answer:
    rho, p_value = rank_correlation(x, groups, name, rule)
    if math.isnan(rho):
        return Answer(missing=why_not)
    return Answer(rho, p_value=p_value, rejected=p_value < 1 - rule.level)


def with_along(claim: Spearman, found: pd.DataFrame, tables: Tables) -> pd.DataFrame | str:
    """Return runs with the other metric of a claim as the column value_along, or why there are none."""
    other = numbers(
        replace(claim, metric=claim.along, split=claim.along_split or claim.split, along=""), tables
    )
    if isinstance(other, str):
        return other
    keys = run_keys(found)
    both = found.merge(other[[*keys, "value"]], on=keys, suffixes=("", "_along")).sort_values(keys)
    return both.dropna(subset=["value", "value_along"])


def _mean(claim: Measured, table: pd.DataFrame, used: pd.DataFrame, rule: Slopes) -> Answer:
    if "x" in table and table["x"].nunique() > 1:
        return Answer(missing="a study with an axis has a mean for each value; name one")
    depth = int(table["depth"].iloc[0])
    terms = [Term(depth, 1.0, used.sort_values("seed").set_index("seed")["value"])]
    return _estimate([], terms, rule, f"{len(used)} of {len(table)} runs at L = {depth}")


def _extreme(claim: Extreme, table: pd.DataFrame, tables: Tables) -> Answer:
    if claim.minus:
        other = numbers(replace(claim, metric=claim.minus, minus=""), tables)
        if isinstance(other, str):
            return Answer(missing=other)
        keys = run_keys(table)
        table = (table.set_index(keys)["value"] - other.set_index(keys)["value"]).reset_index()
    values = table["value"].dropna()
    if values.empty:
        return Answer(missing="no run has a value")
    value = float(values.min() if claim.quantity == "minimum" else values.max())
    return Answer(value, value, value, f"{len(values)} runs")


def _difference(claim: Difference, tables: Tables, rule: Slopes) -> Answer:
    own = {key: getattr(claim, key) for key in ("experiment", "depth", "value", "metric", "split")}
    other = own | {key: value for key in own if (value := getattr(claim.versus, key)) is not None}
    sides: list[Terms] = []
    for keys in (other, own):
        side = _side(claim, keys, tables)
        if isinstance(side, Answer):
            return side
        sides.append(side)
    if claim.of not in OVER_DEPTHS:  # both sides count as one depth, so that runs of one seed are pairs
        sides = [[term._replace(depth=0) for term in side] for side in sides]
    counts = [sum(len(term.values) for term in side) for side in reversed(sides)]
    runs = f"{counts[0]} against {counts[1]} runs"
    if claim.of == "bend":
        return Answer(*size_difference_interval(sides[0], sides[1], rule.level), runs)
    return _estimate(sides[0], sides[1], rule, runs)


def _side(claim: Difference, keys: dict[str, Any], tables: Tables) -> Terms | Answer:
    """Return the terms of one side's number, or why there is none."""
    side = replace(claim, **keys)
    table = numbers(side, tables)
    if isinstance(table, str):
        return Answer(missing=table)
    if claim.of not in OVER_DEPTHS:
        table = table[table["depth"] == (keys["depth"] or table["depth"].max())]
    used = table[table["counted" if claim.of == "value" else "used"]].sort_values(["depth", "seed"])
    if len(used) < LEAST_SHARE * len(table) or used.empty:
        return Answer(
            missing=f"{len(used)} of {len(table)} runs of {subject(side)} have a number that is used"
        )
    if used.duplicated(["depth", "seed"]).any():
        return Answer(missing="a study with an axis has a number for each value; name one")
    column = "value" if claim.of == "value" else "log10"
    if used[column].isna().any():
        return Answer(missing=f"{side.metric} has no logarithm here; take of: value")
    tables_by_depth = (own for _, own in used.groupby("depth"))
    groups = {int(own["depth"].iloc[0]): own.set_index("seed")[column] for own in tables_by_depth}
    if claim.of not in OVER_DEPTHS:
        return [Term(depth, 1.0, values) for depth, values in groups.items()]
    terms = drift_terms(groups, claim.without) if claim.of == "bend" else slope_terms(groups)
    return terms or Answer(missing=f"too few depths with runs that are used for a {claim.of}")


def _name(claim: Measured) -> str:
    """Return the name of a number's random stream for permutations."""
    return "|".join([claim.experiment, LAST, claim.split, claim.metric])
