"""Compute the number that answers a claim: about runs, from the tables of `aggregate`, or about theory.

`ncpipe.claims.verdicts` compares numbers with claims.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ncpipe.claims.calls import Calls, checked
from ncpipe.claims.ledger import EXTREMES, OVER_DEPTHS, Claim, subject
from ncpipe.claims.run_calls import Tables, of_metric, rows_of, run_calls
from ncpipe.config.params import Slopes
from ncpipe.system.errors import InputError, cut
from ncpipe.tables.compare import (
    Combination,
    WeightedRuns,
    difference_error,
    difference_interval,
    drift_combination,
    size_difference_interval,
    slope_combination,
)
from ncpipe.tables.keys import run_keys, setting_keys, symbol, x_column
from ncpipe.tables.points import LAST
from ncpipe.tables.ranks import rank_correlation
from ncpipe.tables.slopes import FEWEST_DEPTHS, turns_back

FEWEST = 2  # runs of each setting that a number needs, or all that there are
TRENDS = ("slope", "spearman")  # quantities that are about depths, or values of the axis


class Answer(NamedTuple):
    """Holds the number that answers a claim with its interval; NaN stands for missing ones, and low = high
    for an exact number.

    runs: the runs that it is computed from, as '15 of 15 runs'.
    missing: why there is no number.
    target: the number that `within` compares it with.
    p_value: of a test that the number is 0, which replaces the interval; for a line, of the test of the line.
    rejected: whether the test rejects at 1 - `slopes.level`.
    error, freedom: standard error and degrees of freedom of Student's interval; NaN for other intervals.
    turns: that a line is rejected, and that the means turn back at large x; then the slope decides nothing.
    depends: which selections of runs give which verdict, if they differ (`ncpipe.claims.selections`).
    few: why the number is of too few depths for a verdict.
    """

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    runs: str = ""
    missing: str = ""
    target: float = math.nan
    p_value: float = math.nan
    rejected: bool = False
    turns: str = ""
    depends: str = ""
    error: float = math.nan
    freedom: float = math.nan
    few: str = ""


def answer(claim: Claim, tables: Tables, rule: Slopes) -> Answer:
    """Return the number that answers a claim about runs, or why there is none (`missing`).

    `slope` and `line` are rows of slopes.csv and slopes_leave_out.csv. `spearman` is
    `ranks.rank_correlation`, and `value` and `difference` are `compare.difference_interval`. Only selected
    runs are used, except for `minimum` and `maximum`.
    """
    if claim.quantity == "difference":
        return _difference(claim, tables, rule)
    table = numbers(claim, tables)
    if isinstance(table, str):
        return Answer(missing=table)
    if isinstance(table, float):
        return Answer(table, table, table)
    if claim.quantity in EXTREMES:
        return _extreme(claim, table, tables)
    if claim.over or claim.quantity in ("value", "computed"):
        table = table[table["depth"] == (claim.depth or table["depth"].max())]
    used = table[table["used" if claim.quantity in ("slope", "line") else "counted"]]
    if why := _too_few(claim, used, table):
        return Answer(missing=why)
    runs = f"{len(used)} of {len(table)} runs"
    if claim.over and claim.quantity == "slope":
        found = _fitted_over(claim, used, rule)
    elif claim.quantity in ("slope", "line"):
        found = _fitted(claim, used, tables)
    elif claim.quantity == "spearman":
        found = _ranked_along(claim, used, tables, rule) if claim.along else _ranked(claim, used, rule)
    else:
        found = _mean(table, used, rule)
    if claim.quantity in TRENDS and not claim.over and not claim.along:
        count = used[x_column(used)].nunique() - claim.without
        if count < FEWEST_DEPTHS:
            noun = "depths" if x_column(used) == "depth" else "values"
            found = found._replace(few=f"{count} {noun}, a trend takes {FEWEST_DEPTHS}")
    return found if found.missing or found.runs else found._replace(runs=runs)


def _too_few(claim: Claim, used: pd.DataFrame, table: pd.DataFrame) -> str:
    """Return at which settings too few runs are used: fewer than FEWEST, or than there are."""
    if used.empty:
        return f"0 of {len(table)} runs have a number that is used"
    x = x_column(table)
    table = table[~table[x].isin(sorted(table[x].unique())[: claim.without])]
    counts = table.groupby(setting_keys(table)).size()
    left = used.groupby(setting_keys(table)).size().reindex(counts.index, fill_value=0)
    lacking = left[left < counts.clip(upper=FEWEST)].index.unique(x).sort_values()
    places = ", ".join(f"{value:g}" for value in lacking)
    least = f"fewer than {FEWEST} runs have a number that is used"
    return f"{least} at {symbol(table)} = {places}" if places else ""


def numbers(claim: Claim, tables: Tables) -> pd.DataFrame | float | str:
    """Return the runs that a claim is about with their values, one number of them all, or why there is none.

    The columns besides the runs' keys are value, log10, used (whether log10 counts) and counted (whether the
    value counts). Across experiments, x is the number that each experiment stands for.
    """
    if claim.over:
        return _numbers_over(claim, tables)
    own = rows_of(claim, tables.runs)
    if own.empty:
        return f"no run of {subject(claim)} in the sweep"
    keys = run_keys(tables.runs)
    if claim.quantity == "computed":
        call, arguments = checked(claim, run_calls())
        found = call.number(claim=claim, tables=tables, **arguments)
        if not isinstance(found, pd.DataFrame):
            return float(found)
        if found.empty:
            return f"{subject(claim)}: {claim.call} finds no run with what it takes"
        found = own[[*keys, "selected"]].merge(found[[*keys, "value"]], on=keys, how="left")
        return _without_logarithm(found)
    if claim.layer:
        found = rows_of(claim, tables.layer_errors)
        found = found[found["layer"] == claim.layer]
        return _without_logarithm(found) if len(found) else f"{subject(claim)}: no such layer"
    found = of_metric(claim, rows_of(claim, tables.points))
    if len(found):
        return found.assign(counted=found["selected"] & np.isfinite(found["value"]))
    if claim.metric not in own and claim.metric in tables.effective_depth:
        own = own.merge(tables.effective_depth[[*keys, claim.metric]], on=keys, how="left")
    if claim.metric not in own or claim.metric in set(tables.points["metric"]):
        return f"{subject(claim)} was not measured"
    value = own[claim.metric].astype(float)
    return _without_logarithm(own[[*keys, "selected"]].assign(value=value))


def _numbers_over(claim: Claim, tables: Tables) -> pd.DataFrame | str:
    """Return the runs of several experiments."""
    parts = []
    for name, x in claim.over.items():
        part = numbers(replace(claim, experiment=name, over={}, x=""), tables)
        if not isinstance(part, pd.DataFrame):
            return str(part)
        parts.append(part.assign(x=float(x), axis=claim.x))
    return pd.concat(parts, ignore_index=True)


def _without_logarithm(table: pd.DataFrame) -> pd.DataFrame:
    used = table["selected"] & table["value"].notna()
    return table.assign(log10=math.nan, used=used, counted=used)


def _fitted(claim: Claim, used: pd.DataFrame, tables: Tables) -> Answer:
    """Return the slope from slopes.csv or slopes_leave_out.csv."""
    fits = tables.slopes_leave_out if claim.without else tables.slopes
    rows = of_metric(claim, rows_of(replace(claim, value=None), fits))
    if claim.without:
        rows = rows[rows["n_left_out"] == claim.without]
    if len(rows) > 1:
        return Answer(missing="a study with an axis has a slope for each depth; name one")
    if rows.empty or math.isnan(rows.iloc[0]["slope"]):
        return Answer(missing="too few depths with runs that are used for a slope")
    row = rows.iloc[0]
    found = Answer(float(row["slope"]), float(row["low"]), float(row["high"]), f"{row['n_used']:.0f} runs")
    if claim.quantity == "line":
        return found._replace(p_value=float(row["p_value"]), rejected=bool(row["rejected"]))
    by_x = list(used.groupby(x_column(used)))[claim.without :]
    error, freedom = difference_error([], slope_combination({x: own["log10"] for x, own in by_x}))
    turns = _turns(by_x, row, symbol(used)) if not claim.expect.between else ""
    return found._replace(error=error, freedom=freedom, turns=turns)


def _turns(by_x: Sequence[tuple[Any, pd.DataFrame]], fit: pd.Series, name: str) -> str:
    """Return that a line is rejected and that the means turn back at large x; nothing if not."""
    means = [float(own["log10"].mean()) for _, own in by_x]
    if not fit["rejected"] or not turns_back(means, fit["slope"]):
        return ""
    middle, last = by_x[(len(by_x) - 1) // 2][0], by_x[-1][0]
    higher = "above" if fit["slope"] < 0 else "below"
    return f"a line is rejected, and the mean at {name} = {last:g} is {higher} that at {name} = {middle:g}"


def _fitted_over(claim: Claim, used: pd.DataFrame, rule: Slopes) -> Answer:
    """Fit the slope over several experiments, whose runs are taken as independent draws."""
    used = used.sort_values(["x", "seed"])
    terms = slope_combination({x: own.set_index("seed")["log10"] for x, own in used.groupby("x")})
    if not terms:
        return Answer(missing=f"too few values of {claim.x} with a logarithm")
    return _estimate([], terms, rule)


def _estimate(base: Combination, other: Combination, rule: Slopes, runs: str = "") -> Answer:
    """Return `compare.difference_interval` as a number, with its standard error."""
    value, low, high = difference_interval(base, other, rule.level)
    error, freedom = difference_error(base, other)
    return Answer(value, low, high, runs, error=error, freedom=freedom)


def _ranked(claim: Claim, used: pd.DataFrame, rule: Slopes) -> Answer:
    where = x_column(used)
    if where != "depth" and used["depth"].nunique() > 1:
        return Answer(missing="a study with an axis has a correlation for each depth; name one")
    groups = used.sort_values([where, "seed"]).groupby(where)["value"]
    x, values = np.array(list(groups.groups)), [own.to_numpy() for _, own in groups]
    why_not = f"too few values of {where}, or all values of {claim.metric} are equal"
    return _ranks(x, values, _name(claim), rule, why_not)


def _ranked_along(claim: Claim, used: pd.DataFrame, tables: Tables, rule: Slopes) -> Answer:
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


def with_along(claim: Claim, found: pd.DataFrame, tables: Tables) -> pd.DataFrame | str:
    """Return runs with the other metric of a claim as the column value_along, or why there are none."""
    other = numbers(
        replace(claim, metric=claim.along, split=claim.along_split or claim.split, along=""), tables
    )
    if not isinstance(other, pd.DataFrame):
        return str(other)
    keys = run_keys(found)
    both = found.merge(other[[*keys, "value"]], on=keys, suffixes=("", "_along")).sort_values(keys)
    return both.dropna(subset=["value", "value_along"])


def _mean(table: pd.DataFrame, used: pd.DataFrame, rule: Slopes) -> Answer:
    if "x" in table and table["x"].nunique() > 1:
        return Answer(missing="a study with an axis has a mean for each value; name one")
    depth = int(table["depth"].iloc[0])
    terms = [WeightedRuns(depth, 1.0, used.sort_values("seed").set_index("seed")["value"])]
    return _estimate([], terms, rule, f"{len(used)} of {len(table)} runs at L = {depth}")


def _extreme(claim: Claim, table: pd.DataFrame, tables: Tables) -> Answer:
    if claim.minus:
        other = numbers(replace(claim, metric=claim.minus, minus=""), tables)
        if not isinstance(other, pd.DataFrame):
            return Answer(missing=str(other))
        keys = run_keys(table)
        table = (table.set_index(keys)["value"] - other.set_index(keys)["value"]).reset_index()
    values = table["value"].dropna()
    if values.empty:
        return Answer(missing="no run has a value")
    value = float(values.min() if claim.quantity == "minimum" else values.max())
    return Answer(value, value, value, f"{len(values)} runs")


def _difference(claim: Claim, tables: Tables, rule: Slopes) -> Answer:
    assert claim.versus is not None
    other = replace(claim, **{key: value for key, value in asdict(claim.versus).items() if value is not None})
    sides: list[Combination] = []
    for each in (other, claim):
        side = _side(each, tables)
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


def _side(claim: Claim, tables: Tables) -> Combination | Answer:
    """Return the terms of one side's number, or why there is none."""
    table = numbers(claim, tables)
    if not isinstance(table, pd.DataFrame):
        return Answer(missing=str(table))
    if claim.of not in OVER_DEPTHS:
        table = table[table["depth"] == (claim.depth or table["depth"].max())]
    used = table[table["counted" if claim.of == "value" else "used"]].sort_values(["depth", "seed"])
    if why := _too_few(claim, used, table):
        return Answer(missing=f"{subject(claim)}: {why}")
    if used.duplicated(["depth", "seed"]).any():
        return Answer(missing="a study with an axis has a number for each value; name one")
    column = "value" if claim.of == "value" else "log10"
    if used[column].isna().any():
        return Answer(missing=f"{claim.metric} has no logarithm here; take of: value")
    tables_by_depth = (own for _, own in used.groupby("depth"))
    groups = {int(own["depth"].iloc[0]): own.set_index("seed")[column] for own in tables_by_depth}
    if claim.of not in OVER_DEPTHS:
        return [WeightedRuns(depth, 1.0, values) for depth, values in groups.items()]
    terms = drift_combination(groups, claim.without) if claim.of == "bend" else slope_combination(groups)
    return terms or Answer(missing=f"too few depths with runs that are used for a {claim.of}")


def _name(claim: Claim) -> str:
    """Return the name of a number's random stream for permutations."""
    return "|".join([claim.experiment, LAST, claim.split, claim.metric])


def evaluate(claim: Claim, calls: Calls) -> Answer:
    """Return the exact number of a claim's call; its `target` is the number of `against`.

    Raises InputError, which begins with the claim's id, for an unknown call, a missing, unknown or bad
    argument, arguments outside the theory's range or whose number is not finite, and `numerical` if the call
    has no check.
    """
    call, arguments = checked(claim, calls)
    try:
        value = _finite(call.number, arguments)
        if claim.against is None:
            return Answer(value, value, value)
        twin = call.check if claim.against == "numerical" else None
        other = _finite(twin, arguments) if twin else claim.against
    except InputError as error:
        raise InputError(cut(f"claims.yaml: {claim.id}.args: {error}")) from None
    assert isinstance(other, float)
    return Answer(value, value, value, target=other)


def _finite(function: Callable[..., float], arguments: Mapping[str, Any]) -> float:
    """Return a function's number; raise InputError if the arguments are too extreme to compute it."""
    try:
        value = function(**arguments)
    except InputError:
        raise
    except (ArithmeticError, ValueError, RuntimeError) as error:  # of solvers, beyond the range of float64
        text = " ".join(str(error).split())
        raise InputError(f"too extreme, the number cannot be computed ({text}); give others") from None
    if not math.isfinite(value):
        raise InputError(f"the number is {value:g} with these; give others")
    return value
