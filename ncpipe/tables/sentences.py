"""Summarise the depth sweep of an experiment in one sentence."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ncpipe.tables.keys import rows_at, symbol
from ncpipe.tables.points import LAST

Titles = Mapping[str, tuple[str, str]]


def experiment_sentence(
    line: Mapping[str, Any],
    slopes: pd.DataFrame,
    leave_out: pd.DataFrame,
    runs: pd.DataFrame,
    series: Titles,
    failures: Sequence[str] = (),
) -> str:
    """Return rates with intervals, converged runs, log-linearity and drift in one sentence.

    line: keys of its rows (`keys.line_keys`), an experiment and, in a study with an axis, a depth. slopes,
    leave_out: of `slopes.loglog_slopes` and `slopes.leave_out_slopes`; runs: with converged. series: what to
    report, as {'NC1': (metric, split)}, of the last layer and such that lower is better. failures: of
    `convergence.failures`, reported where none of the runs converged.

    'improves as L^-0.42 [-0.47, -0.38]' has the interval of the signed slope, as figures and tables do. A
    series 'improves' or 'worsens' only if the interval excludes 0. Of the fits without small depths it takes
    those with the fewest depths, which show the rate at large L.
    """
    own, name, of = rows_at(runs, line)["converged"], _subject(line), symbol(runs)
    if not own.any():
        return f"{'; '.join([f'{name}: 0 of {len(own)} runs converged, so it has no rates', *failures])}."
    rows, fewer = _rows(slopes, line, series), _rows(leave_out, line, series)
    first = next((title for title, row in rows.items() if not math.isnan(row["low"])), None)
    rates = [f"{title} {rate(row, level=title == first, of=of)}" for title, row in rows.items()]
    clauses = [
        ", ".join([*rates, f"{int(own.sum())} of {len(own)} runs converged"]),
        *_left_out_values(rows),
        *_linearity(rows, of),
        *_drifts(fewer),
    ]
    return f"{name}: {'; '.join(clauses)}."


def _subject(line: Mapping[str, Any]) -> str:
    return f"{line['experiment']} at L = {line['depth']}" if "depth" in line else str(line["experiment"])


def short_answer(line: Mapping[str, Any], slopes: pd.DataFrame, runs: pd.DataFrame, series: Titles) -> str:
    """Return in one short sentence which series improve, worsen or show no clear change; no numbers.

    Arguments as those of `experiment_sentence`. As there, a series improves or worsens only where the
    interval (or the test of a rank correlation) leaves out 0.
    """
    own, of = rows_at(runs, line)["converged"], symbol(runs)
    if not own.any():
        return f"None of {len(own)} runs converged, so there are no rates."
    titles: dict[str, list[str]] = {}
    for title, row in _rows(slopes, line, series).items():
        titles.setdefault(tendency(row), []).append(title)
    clauses = []
    for verb, (singular, ending) in TENDENCIES.items():
        if named := titles.get(verb):
            clauses.append(f"{_and(named)} {verb if len(named) > 1 else singular}{ending.format(of=of)}")
    if not own.all():
        clauses.append(f"{int(own.sum())} of {len(own)} runs converged")
    text = "; ".join(clauses)
    return f"{text[:1].upper()}{text[1:]}."


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

    level: whether to add the confidence level. of: name of the x axis. With ranks in place of a power,
    returns a verb and the rank correlation with its p-value.
    """
    if not math.isnan(row.get("rho", math.nan)):
        return _tendency(row, of)
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


def _tendency(row: Mapping[str, Any] | pd.Series, of: str) -> str:
    rho, p_value = row["rho"], row["rho_p_value"]
    clear = p_value < 1 - row["level"]
    verb = ("improves" if rho < 0 else "worsens") if clear else "shows no clear change"
    return f"{verb} with {of} (Spearman's rho {rho:z.2f}, {p_text(p_value)})"


def _axis_noun(of: str) -> str:
    return "depth" if of == "L" else "value"


def power(slope: float, low: float, high: float, of: str = "L") -> str:
    """Return 'L^-0.42 [-0.47, -0.38]': the interval of the signed slope; none where it is NaN."""
    written = f"{of}^{slope:z.2f}"
    return written if math.isnan(low) else f"{written} [{low:z.2f}, {high:z.2f}]"


def _rows(table: pd.DataFrame, line: Mapping[str, Any], series: Titles) -> dict[str, pd.Series]:
    """Return the row of each series by title; of several the one with the fewest depths."""
    last = rows_at(table[table["layer"] == LAST], line)
    rows = {}
    for title, (metric, split) in series.items():
        own = last[(last["metric"] == metric) & (last["split"] == split)]
        if len(own):
            rows[title] = own.sort_values("n_depths").iloc[0]
    return rows


def _left_out_values(rows: Mapping[str, pd.Series]) -> list[str]:
    found = [f"of {title}: {row['unusable']}" for title, row in rows.items() if row["unusable"]]
    return [f"left out {' and '.join(found)}"] if found else []


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
    return [f"log-linearity {', '.join(parts)}"] if parts else []


def _drifts(fewer: Mapping[str, pd.Series]) -> list[str]:
    known = {title: row for title, row in fewer.items() if not math.isnan(row["drift_low"])}
    clauses = []
    for without in dict.fromkeys(row["without"] for row in known.values()):
        here = {title: row for title, row in known.items() if row["without"] == without}
        moved = [
            f"{title} drifts to {power(row['slope'], row['low'], row['high'])}"
            for title, row in here.items()
            if row["drifts"]
        ]
        stayed = [title for title, row in here.items() if not row["drifts"]]
        if stayed:
            moved.append(f"{_and(stayed)} {'show' if len(stayed) > 1 else 'shows'} no drift")
        clauses.append(f"without L = {without} {', '.join(moved)}")
    return clauses


def p_text(p_value: float) -> str:
    """Return a p-value as `p = 0.013`, or `p < 0.001`."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
