"""Describe the results of an experiment in words: rates, runs, linearity and drift.

`ncpipe aggregate` prints and stores the sentences; `ncpipe report` shows both kinds of sentence.
"""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from ncpipe.tables.keys import distinct, line_keys, rows_at, symbol
from ncpipe.tables.points import LAST

Titles = Mapping[str, tuple[str, str]]


def experiment_sentences(
    slopes: pd.DataFrame, leave_out: pd.DataFrame, runs: pd.DataFrame, series: Mapping[str, Titles]
) -> list[str]:
    """Return `experiment_sentence` of every line, in the order of the runs. series: by experiment."""
    return [
        experiment_sentence(line, slopes, leave_out, runs, series[str(line["experiment"])])
        for line in distinct(runs, line_keys(runs))
    ]


def experiment_sentence(
    line: Mapping[str, Any],
    slopes: pd.DataFrame,
    leave_out: pd.DataFrame,
    runs: pd.DataFrame,
    series: Titles,
) -> str:
    """Return rates with intervals, converged runs, log-linearity and drift in one sentence.

    Args:
        line: keys of its rows (`keys.line_keys`): an experiment and, in a study with an axis, a depth.
        slopes, leave_out: from `slopes.loglog_slopes` and `slopes.leave_out_slopes`.
        runs: with the columns converged and selected.
        series: what to report, as {'NC1': (metric, split)}, of the last layer and such that lower is better.

    'improves as L^-0.42 [-0.47, -0.38]' has the interval of the signed slope, as figures and tables do. A
    series 'improves' or 'worsens' only if the interval excludes 0. Drifts are those of the fits with the
    fewest depths, which show the rate at large L.
    """
    own, of = rows_at(runs, line), symbol(runs)
    name = f"{line['experiment']} at L = {line['depth']}" if "depth" in line else str(line["experiment"])
    if not own["selected"].any():
        return f"{name}: {counted(own)}, so it has no rates."
    rows, fewer = _rows(slopes, line, series), _rows(leave_out, line, series)
    first = next((title for title, row in rows.items() if not math.isnan(row["low"])), None)
    rates = [f"{title} {rate(row, level=title == first, of=of)}" for title, row in rows.items()]
    linearity = ", ".join(_linearity(rows, of))
    clauses = [", ".join([*rates, counted(own)]), *_left_out(rows)]
    clauses += [f"log-linearity {linearity}"] if linearity else []
    return f"{name}: {'; '.join([*clauses, *_drifts(fewer)])}."


def short_answer(line: Mapping[str, Any], slopes: pd.DataFrame, runs: pd.DataFrame, series: Titles) -> str:
    """Return in one short sentence which series improve, worsen or show no clear change, without numbers.

    Takes the arguments of `experiment_sentence`. As there, a series improves or worsens only if the interval
    (or the test of a rank correlation) excludes 0.
    """
    own, of = rows_at(runs, line), symbol(runs)
    if not own["selected"].any():
        return f"{counted(own)}, so there are no rates."
    titles: dict[str, list[str]] = {}
    for title, row in _rows(slopes, line, series).items():
        titles.setdefault(tendency(row), []).append(title)
    clauses = []
    for verb, (singular, ending) in TENDENCIES.items():
        if named := titles.get(verb):
            clauses.append(f"{_and(named)} {verb if len(named) > 1 else singular}{ending.format(of=of)}")
    if not own["converged"].all():
        clauses.append(counted(own))
    text = "; ".join(clauses)
    return f"{text[:1].upper()}{text[1:]}."


def counted(runs: pd.DataFrame) -> str:
    """Return how many runs converged and how many enter no mean and slope, in words."""
    converged, left_out = int(runs["converged"].sum()), int((~runs["selected"]).sum())
    rest = f" and {left_out} {'is' if left_out == 1 else 'are'} left out" if left_out else ""
    return f"{converged} of {len(runs)} runs converged{rest}"


TENDENCIES = {  # in the order of a sentence: plural verb, singular verb, rest of the clause
    "improve": ("improves", " with {of}"),
    "worsen": ("worsens", " with {of}"),
    "show": ("shows", " no clear change with {of}"),
    "go": ("goes", " with {of}, with too few runs for an interval"),
    "have": ("has", " no rate"),
}


def tendency(row: Mapping[str, Any] | pd.Series) -> str:
    """Return the verb of TENDENCIES for a row of `loglog_slopes`."""
    if not math.isnan(row.get("rho", math.nan)):
        if row["rho_p_value"] >= 1 - row["level"]:
            return "show"
        return "improve" if row["rho"] < 0 else "worsen"
    if math.isnan(row["slope"]):
        return "have"
    if math.isnan(row["low"]):
        return "go"
    if row["low"] <= 0 <= row["high"]:
        return "show"
    return "improve" if row["slope"] < 0 else "worsen"


def rate(row: Mapping[str, Any] | pd.Series, level: bool = False, of: str = "L") -> str:
    """Return a verb and the power of L with its interval, from a series' row of `loglog_slopes`.

    level: whether to add the confidence level. of: name of the x axis. A row with a rank correlation instead
    of a power gives a verb and the correlation with its p-value.
    """
    if not math.isnan(row.get("rho", math.nan)):
        return _rank_correlation(row, of)
    slope, low, high = row["slope"], row["low"], row["high"]
    if math.isnan(slope):
        return f"has no rate (usable values at fewer than two {_axis_noun(of)}s)"
    if math.isnan(low):
        return f"goes as {power(slope, low, high, of)} (one run a {_axis_noun(of)}, so no interval)"
    kind = f"{100 * row['level']:g} % CI"
    if low <= 0 <= high:
        return f"shows no clear change with {of} ({power(slope, low, high, of)}{level * f', {kind}'})"
    verb = "improves" if slope < 0 else "worsens"
    return f"{verb} as {power(slope, low, high, of)}{level * f' ({kind})'}"


def _rank_correlation(row: Mapping[str, Any] | pd.Series, of: str) -> str:
    rho, p_value = row["rho"], row["rho_p_value"]
    clear = p_value < 1 - row["level"]
    verb = ("improves" if rho < 0 else "worsens") if clear else "shows no clear change"
    return f"{verb} with {of} (Spearman's rho {rho:z.2f}, {p_text(p_value)})"


def _axis_noun(of: str) -> str:
    return "depth" if of == "L" else "value"


def power(slope: float, low: float, high: float, of: str = "L") -> str:
    """Return 'L^-0.42 [-0.47, -0.38]', with the interval of the signed slope unless that is NaN."""
    text = f"{of}^{slope:z.2f}"
    return text if math.isnan(low) else f"{text} [{low:z.2f}, {high:z.2f}]"


def _rows(table: pd.DataFrame, line: Mapping[str, Any], series: Titles) -> dict[str, pd.Series]:
    """Return by title the row of each series with the fewest depths."""
    last = rows_at(table[table["layer"] == LAST], line)
    rows = {}
    for title, (metric, split) in series.items():
        fits = last[(last["metric"] == metric) & (last["split"] == split)]
        if len(fits):
            rows[title] = fits.sort_values("n_depths").iloc[0]
    return rows


def _left_out(rows: Mapping[str, pd.Series]) -> list[str]:
    values = [f"of {title}: {row['unusable']}" for title, row in rows.items() if row["unusable"]]
    return [f"left out {' and '.join(values)}"] if values else []


def _linearity(rows: Mapping[str, pd.Series], of: str) -> list[str]:
    tested = {title: row for title, row in rows.items() if not math.isnan(row["p_value"])}
    rejected = [f"{title} ({p_text(row['p_value'])})" for title, row in tested.items() if row["rejected"]]
    kept = [f"{title} ({p_text(row['p_value'])})" for title, row in tested.items() if not row["rejected"]]
    untested = [title for title, row in rows.items() if title not in tested and not math.isnan(row["slope"])]
    parts = []
    if rejected:
        parts.append(f"rejected for {_and(rejected)}")
    if kept:
        parts.append(f"not rejected for {_and(kept)}")
    if untested:
        parts.append(
            f"untested for {_and(untested)} (it takes differing runs at each of three {_axis_noun(of)}s)"
        )
    return parts


def _drifts(fewer: Mapping[str, pd.Series]) -> list[str]:
    with_interval = {title: row for title, row in fewer.items() if not math.isnan(row["drift_low"])}
    clauses = []
    for without in dict.fromkeys(row["without"] for row in with_interval.values()):
        rows = {title: row for title, row in with_interval.items() if row["without"] == without}
        parts = [
            f"{title} drifts to {power(row['slope'], row['low'], row['high'])}"
            for title, row in rows.items()
            if row["drifts"]
        ]
        without_drift = [title for title, row in rows.items() if not row["drifts"]]
        if without_drift:
            verb = "show" if len(without_drift) > 1 else "shows"
            parts.append(f"{_and(without_drift)} {verb} no drift")
        clauses.append(f"without L = {without} {', '.join(parts)}")
    return clauses


def p_text(p_value: float) -> str:
    """Return a p-value as `p = 0.013`, or `p < 0.001`."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
