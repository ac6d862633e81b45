"""Describe the results of an experiment in words: rates, the test of the line, drift and runs.

`ncpipe aggregate` prints and stores the table; `ncpipe report` shows it with the short answer.
"""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from ncpipe.system.text_table import aligned
from ncpipe.tables.headlines import headline_series
from ncpipe.tables.keys import distinct, line_keys, rows_at, symbol
from ncpipe.tables.points import LAST

Titles = Mapping[str, tuple[str, str]]
CHANGES = {
    "improve": "improves",
    "worsen": "worsens",
    "show": "no clear change",
    "go": "too few runs for an interval",
    "have": "no rate",
}


def rate_table(
    slopes: pd.DataFrame, leave_out: pd.DataFrame, runs: pd.DataFrame, measured: pd.DataFrame
) -> pd.DataFrame:
    """Return texts about the rate of each line's headline series, in the order of the runs.

    Args:
        slopes, leave_out: from `slopes.loglog_slopes` and `slopes.leave_out_slopes`.
        runs, measured: of `headlines.headline_series`; lower is better in all these series.

    rate: with the interval of the signed slope, as in figures and tables. straight: the test of the line.
    drift: of the fit with the fewest depths, which shows the rate at large L. left out: values of runs that
    count, by reason.
    """
    level = f"rate ({100 * slopes['level'].max():g} % CI)"
    columns = ["line", "series", "change", level, "used", "converged", "straight", "drift", "left out"]
    rows = []
    for line in distinct(runs, line_keys(runs)):
        name = f"{line['experiment']} at L = {line['depth']}" if "depth" in line else str(line["experiment"])
        series = headline_series(rows_at(runs, line), measured)
        fewer = series_rows(leave_out, line, series)
        for title, row in series_rows(slopes, line, series).items():
            texts = [rate(row, symbol(runs)), f"{row['n_used']} of {row['n_runs']}"]
            texts += [f"{row['n_converged']} of {row['n_runs']}", _straight(row), _drift(fewer.get(title))]
            texts += ["" if pd.isna(row["unusable"]) else row["unusable"]]  # of a CSV file
            rows.append([name, title.removeprefix("the "), CHANGES[tendency(row)], *texts])
    return pd.DataFrame(rows, columns=columns)


def in_columns(table: pd.DataFrame) -> list[str]:
    """Return the lines of a table of texts, from its header on, with aligned columns."""
    return aligned([list(table.columns), *table.to_numpy().tolist()])


def short_answer(line: Mapping[str, Any], slopes: pd.DataFrame, runs: pd.DataFrame, series: Titles) -> str:
    """Return in one line which series improve, worsen or show no clear change, without numbers.

    line: keys of its rows (`keys.line_keys`): an experiment and, in a study with an axis, a depth. series: as
    {'NC1': (metric, split)}. A series improves or worsens only if the interval (or the test of a rank
    correlation) excludes 0.
    """
    line_runs = rows_at(runs, line)
    parts = [f"{title} {CHANGES[tendency(row)]}" for title, row in series_rows(slopes, line, series).items()]
    if not line_runs["converged"].all():
        left_out = int((~line_runs["selected"]).sum())
        rest = f", {left_out} left out" if left_out else ""
        parts.append(f"{line_runs['converged'].sum()} of {len(line_runs)} runs converged{rest}")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def series_rows(table: pd.DataFrame, line: Mapping[str, Any], series: Titles) -> dict[str, pd.Series]:
    """Return by title the row of each series of a line: of fits without small depths that with the fewest."""
    last = rows_at(table, {**line, "layer": LAST})
    rows = {}
    for title, (metric, split) in series.items():
        fits = rows_at(last, {"metric": metric, "split": split})
        if len(fits):
            rows[title] = fits.sort_values("n_depths").iloc[0]
    return rows


def tendency(row: Mapping[str, Any] | pd.Series) -> str:
    """Return the key of CHANGES for a row of `loglog_slopes`."""
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


def rate(row: Mapping[str, Any] | pd.Series, of: str = "L") -> str:
    """Return the power of `of` with its interval, or the rank correlation, from a row of `loglog_slopes`."""
    if not math.isnan(row.get("rho", math.nan)):
        return f"rank correlation {row['rho']:z.2f} ({p_text(row['rho_p_value'])})"
    return "" if math.isnan(row["slope"]) else power(row["slope"], row["low"], row["high"], of)


def power(slope: float, low: float, high: float, of: str = "L") -> str:
    """Return 'L^-0.42 [-0.47, -0.38]', with the interval of the signed slope unless that is NaN."""
    text = f"{of}^{slope:z.2f}"
    return text if math.isnan(low) else f"{text} [{low:z.2f}, {high:z.2f}]"


def _straight(row: pd.Series) -> str:
    if math.isnan(row["p_value"]):
        return ""
    return f"{'rejected' if row['rejected'] else 'not rejected'} ({p_text(row['p_value'])})"


def _drift(row: pd.Series | None) -> str:
    if row is None or math.isnan(row["drift_low"]):
        return ""
    to = f"to {power(row['slope'], row['low'], row['high'])}" if row["drifts"] else "none"
    return f"{to} without L = {row['without']}"


def p_text(p_value: float) -> str:
    """Return a p-value as `p = 0.013`, or `p < 0.001`."""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"
