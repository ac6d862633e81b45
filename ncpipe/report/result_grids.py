"""Build the report's tables of powers, of claims and of experiments side by side (`ncpipe.report.grids`)."""

import dataclasses
import math
import re
from collections import Counter
from typing import Any

import pandas as pd

from ncpipe.claims.verdicts import counted_verdict
from ncpipe.config.params import Slopes
from ncpipe.metrics.catalogue import series_name
from ncpipe.metrics.study_metrics import entry
from ncpipe.report.chart_data import plain
from ncpipe.report.first_screen import axis_note, letter
from ncpipe.report.grids import Cell, Grid, cell, data_uri, estimate, grid
from ncpipe.report.words import WORDS
from ncpipe.tables.compare import Results, compare_results
from ncpipe.tables.headlines import HEADLINES, headline_series
from ncpipe.tables.keys import x_column
from ncpipe.tables.rates import p_text, power

VERDICTS = ("disagrees", "undecided", "agrees")  # in the order of the table
CLAIM_TEXTS = ["ref", "author", "statement", "about", "quantity", "expected", "runs", "scale", "reason"]
RULE = (
    "A claim is a sentence that a number can answer. It agrees only if its whole interval, or a test of its "
    "sign (p), is as expected."
)
POWER_HEADINGS = {
    "rho": "Spearman's rho", "rho_p_value": "p of rho", "p_value": "p of a line", "unusable": "left out",
}  # fmt: skip
POWER_COLUMNS = (
    "experiment", "depth", "metric", "split", "power", "Spearman's rho", "p of rho", "p of a line",
    "runs used", "left out",
)  # fmt: skip


def power_grids(slopes: pd.DataFrame, of: str, csv: bytes) -> list[Grid]:
    """Return a table with the powers of the headline metrics, and a folded one with those of other series.

    slopes: from `slopes.loglog_slopes`. of: name of the x axis. csv: the whole table as a file.
    """
    fits, note = list(slopes.itertuples()), axis_note(of)
    powers: list[Any] = [_power(fit, letter(of)) for fit in fits]
    metrics: list[Any] = [Cell(plain(name), full=entry(name).meaning) for name in slopes["metric"]]
    table = slopes.rename(columns=POWER_HEADINGS).assign(
        power=powers,
        metric=metrics,
        **{"runs used": [f"{fit.n_used:.0f} of {fit.n_runs:.0f}" for fit in fits]},
    )
    first = slopes["metric"].isin(HEADLINES) & (slopes["split"] != "test")
    title, folded = "Powers of the last layer's metrics", f"Powers of the other {(~first).sum()} series"
    heads = grid("slopes", title, table[first], POWER_COLUMNS, note, csv)
    others = grid("slopes-others", folded, table[~first], POWER_COLUMNS, note)
    return [heads, *([dataclasses.replace(others, folded=folded)] if others.rows else [])]


def _power(fit: Any, of: str) -> Cell:
    if math.isnan(fit.slope):
        return Cell("")
    full = f"{fit.slope!r}" + ("" if math.isnan(fit.low) else f" [{fit.low!r}, {fit.high!r}]")
    return Cell(power(fit.slope, fit.low, fit.high, of), fit.slope, full)


def claim_grids(table: pd.DataFrame, csv: bytes) -> list[Grid]:
    """Return a table of the claims with a number, disagreements first, and a folded one of the others.

    table: from `verdicts.ledger_table`. csv: the same as a file.
    """
    table = table.assign(**{name: table[name].astype(object).fillna("") for name in CLAIM_TEXTS})
    answered = table[table["value"].notna()]
    rows = [row for verdict in VERDICTS for row in answered[answered["verdict"] == verdict].itertuples()]
    others = list(table[table["value"].isna()].itertuples())
    columns = ["verdict", "claim", "number", "expected", "runs"]
    grids = [Grid("claims", "Claims", RULE, columns, list(map(_claim_row, rows)), data_uri(csv))]
    if others:
        noun = "claim" if len(others) == 1 else "claims"
        title = f"{len(others)} more {noun} of claims.yaml, without a number here"
        why = [
            [Cell(str(row.statement), note=f"{row.ref} · {row.id}"), Cell(str(row.reason))] for row in others
        ]
        grids.append(Grid("claims-not-run", title, "", ["claim", "why"], why, "", title))
    return grids


def side_by_side(runs: pd.DataFrame, points: pd.DataFrame, rule: Slopes) -> list[Grid]:
    """Return a table that compares rates and deepest means of every experiment with those of the first.

    Only of metrics that are headlines of both: NC2 under the squared error may be another one. Empty for one
    experiment and in a study with an axis. Runs of equal seed are compared as pairs
    (`compare.difference_interval`). runs: with converged. points: from `points.usable_points`.
    """
    names = list(dict.fromkeys(runs["experiment"]))
    if len(names) < 2 or x_column(runs) != "depth":
        return []
    first, together = names[0], "all"
    sides = {
        name: Results(
            *(table[table["experiment"] == name].assign(experiment=together) for table in (points, runs))
        )
        for name in names
    }
    own = {name: headline_series(runs[runs["experiment"] == name], points) for name in names}
    titles = {
        name: {series_name(split, metric): title for title, (metric, split) in series.items()}
        for name, series in own.items()
    }
    table = compare_results(sides, together, own[first].values(), rule)
    table = table[table["series"] != ""]
    rows = []
    for _, group in table.groupby(["quantity", "series"], sort=False):
        base = cell(group["value"].iloc[0])
        what = titles[first][group["series"].iloc[0]].removeprefix("the ")
        depth = group["depth"].iloc[0]
        quantity = f"power of {what}" if pd.isna(depth) else f"log10 of {what} at L = {depth}"
        for _, row in group.iloc[1:].iterrows():
            if row["series"] not in titles[row["revision"]]:
                continue
            change = estimate(row["difference"], row["difference_low"], row["difference_high"])
            rows.append([Cell(quantity), Cell(str(row["revision"])), cell(row["value"]), base, change])
    if not rows:
        return []
    columns = ["quantity", "experiment", "value", first, f"value − {first}"]
    note = f"Differences with {100 * rule.level:g} % intervals; runs of one seed are compared as pairs."
    return [Grid("side-by-side", "Experiments side by side", note, columns, rows, "")]


def verdict_counts(grids: list[Grid]) -> str:
    """Return the number of claims by verdict, as `9 claims: 6 agree, 3 disagree (1 with a paper)`."""
    first = [row[0] for grid in grids if not grid.folded for row in grid.rows]
    counts = Counter(verdict.text for verdict in first)
    against = f" ({sum(verdict.tone == 'bad' for verdict in first)} with a paper)"
    parts = [
        counted_verdict(counts[word], word) + against * (word == "disagrees")
        for word in reversed(VERDICTS)
        if counts[word]
    ]
    total = "1 claim" if len(first) == 1 else f"{len(first)} claims"
    return f"{total}: {', '.join(parts)}" if parts else "no claim has a verdict"


def _claim_row(row: Any) -> list[Cell]:
    number = estimate(row.value, row.low, row.high)
    p_value = getattr(row, "p_value", math.nan)
    if row.quantity == "spearman" and not math.isnan(p_value):
        number = dataclasses.replace(number, text=f"{number.text} ({p_text(p_value)})")
    about = re.sub(r"\b[a-z]\w*_\w+", lambda match: _label(match[0]), row.about)
    of = f"{row.quantity.replace('_', ' ')}: {about}" if about else row.quantity
    of_paper = row.author == "paper"
    tones = {"agrees": "good", "undecided": "open", "disagrees": "bad" if of_paper else "open"}
    sources = {"ours": f"our sentence, after {row.ref}", "yours": f"the study's own sentence, {row.ref}"}
    source = sources.get(row.author, row.ref)
    return [
        Cell(row.verdict, tone=tones.get(row.verdict, "")),
        Cell(row.statement, note=f"{of} · {source} · {row.id}"),
        dataclasses.replace(number, note=row.reason),
        Cell(row.expected),
        Cell(row.runs.replace(" runs", ""), note=row.scale),
    ]


def _label(word: str) -> str:
    """Return the label of a metric or a column of runs.csv; any other word as it is."""
    spaced = word.replace("_", " ")
    return plain(word) if entry(word).label else spaced if spaced in WORDS["headings"] else word
