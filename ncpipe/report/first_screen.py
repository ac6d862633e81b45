"""Build the report's first screen: what was asked, trained and found, how sure that is, what next; and rates.

The table says how NC1, NC2, NC3 (or NRC1 to NRC3) and the loss gap depend on L.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from ncpipe.report import words
from ncpipe.system.console import plural
from ncpipe.tables.convergence import ADVICE, DIVERGED, NO_HISTORY
from ncpipe.tables.headlines import GNC2, headline_series
from ncpipe.tables.keys import distinct, line_keys, name_of, rows_at, symbol, x_column
from ncpipe.tables.points import LAST
from ncpipe.tables.rates import p_text, power, series_rows, short_answer, tendency

ARROWS = {"improve": "↓", "worsen": "↑", "show": "→", "go": "", "have": ""}
WORDS = {"improve": "falls", "worsen": "rises", "show": "no clear change", "go": "no interval", "have": ""}
MOST_LINES = 6  # of the experiments that the first screen names
PROVEN = "L-"  # how the names of the architectures begin that `theorem` in words.yaml is about
TWO_LAYERS = ("L-RN2", "L-T12", "L-T22")  # two linear maps a block


def asked(runs: pd.DataFrame, questions: Mapping[str, str]) -> list[str]:
    """Return the study's question, what is proven of their networks, and each experiment's.

    questions: by experiment.
    """
    of = "the depth L of the network" if x_column(runs) == "depth" else symbol(runs)
    depends = f", and does it depend on {of}" if at_several(runs) else ""
    lines = [f"How far do trained networks collapse{depends}?"]
    if (theirs := runs["architecture"].str.startswith(PROVEN)).any():
        two = runs.loc[theirs, "architecture"].isin(TWO_LAYERS).any()
        condition = ", with two linear maps a block if the inner λ falls as 1/L" if two else ""
        lines.append(words.WORDS["theorem"].format(condition=condition))
    named = [f"{name}: {question}" for name, question in questions.items() if question]
    return lines + (named if len(named) <= MOST_LINES else [])


def trained(runs: pd.DataFrame) -> str:
    """Return how many networks there are, at which depths (or values), with how many seeds."""
    column, seeds = x_column(runs), runs["seed"].nunique()
    values = ", ".join(f"{value:g}" for value in sorted(runs[column].unique()))
    many = runs["experiment"].nunique()
    of = f" of {many} experiments" if many > 1 else ""
    networks, each = plural(len(runs), "network"), plural(seeds, "seed")
    return f"{networks}{of}: {symbol(runs)} = {values}, {each} at each."


def findings(runs: pd.DataFrame, points: pd.DataFrame, slopes: pd.DataFrame) -> list[str]:
    """Return for each line (`keys.line_keys`) what improves, and the first and last mean of NC1."""
    lines = distinct(runs, line_keys(runs))
    said = []
    for line in lines[:MOST_LINES]:
        ends = _ends(line, points, runs) if at_several(runs) else ""
        said.append(f"{name_of(line)}: {answer(line, points, slopes, runs)}{ends}")
    if len(lines) > MOST_LINES:
        said.append(f"The table below has all {len(lines)} lines.")
    return said


def answer(line: Mapping[str, Any], points: pd.DataFrame, slopes: pd.DataFrame, runs: pd.DataFrame) -> str:
    """Return what improves and worsens on a line, or means in a study of one depth (or value)."""
    series = headline_series(rows_at(runs, line), slopes)
    if at_several(runs):
        return short_answer(line, slopes, runs, series)
    means = {title: geometric_means(points, line, *key) for title, key in series.items()}
    parts = [f"{title} is {mean.iloc[0]:.2g}" for title, mean in means.items() if len(mean)]
    text = f"{', '.join(parts)}." if parts else "no run is used."
    return f"{text[:1].upper()}{text[1:]}"


def how_sure(runs: pd.DataFrame, level: float, verdicts: str) -> list[str]:
    """Return how many runs converged and count, what the brackets mean, and the counts of verdicts."""
    seeds = runs["seed"].nunique()
    converged, total = int(runs["converged"].sum()), len(runs)
    left_out, moving = int((~runs["selected"]).sum()), int((runs["selected"] & ~runs["converged"]).sum())
    facts = [
        f"{converged} of {total} runs converged.",
        f"Left out of all means and powers: {left_out} of {total}." if left_out else "",
        f"Used although they did not converge: {moving} of {total}." if moving else "",
        f"Brackets are {100 * level:g} % intervals from the spread over seeds."
        if seeds > 1
        else "With one seed there are no intervals.",
    ]
    finding = " What disagrees is a finding about these runs, not an error." * ("disagree" in verdicts)
    said = f"Sentences held against the numbers: {verdicts}.{finding}"
    return [" ".join(filter(None, facts)), *([said] if verdicts else [])]


def _ends(line: Mapping[str, Any], points: pd.DataFrame, runs: pd.DataFrame) -> str:
    """Return `NC1 is 0.36 at L = 2 and 0.18 at L = 13.` of geometric means; empty for fewer than two."""
    means = geometric_means(points, line, "nc1_trace_ratio", "train")
    if len(means) < 2:
        return ""
    first, last = (f"{means.loc[x]:.2g} at {symbol(runs)} = {x:g}" for x in means.index[[0, -1]])
    return f" NC1 is {first} and {last}."


@dataclass(frozen=True)
class Rate:
    """Holds a rate in a cell.

    arrow: direction, if known. word: the same for screen readers. text: power of L with its interval, or rank
    correlation. full: all digits.
    """

    arrow: str
    word: str
    text: str
    full: str


@dataclass(frozen=True)
class RateRow:
    """Holds a row. line: its name (`keys.name_of`). rates: by column. used: as '15 of 15'."""

    line: str
    network: str
    rates: dict[str, Rate]
    used: str


NO_RATE = Rate("", "", "–", "")


def letter(of: str) -> str:
    """Return one letter for the x axis, for cells of tables: L, or x for a key of params.yaml."""
    return of if of == "L" else "x"


def axis_note(of: str) -> str:
    """Return what the letter of the x axis stands for."""
    return "" if of == "L" else f"x is {of}."


def at_several(runs: pd.DataFrame) -> bool:
    """Return whether a study has several depths, or values of its axis, so that there can be rates."""
    return runs[x_column(runs)].nunique() > 1


def geometric_means(points: pd.DataFrame, line: Mapping[str, Any], metric: str, split: str) -> pd.Series:
    """Return the mean of a last layer's metric at each depth (or value) of a line, over the runs used."""
    place = {**line, "layer": LAST, "metric": metric, "split": split}
    used = rows_at(points[points["used"]], place)
    return pd.Series(10 ** used.groupby(x_column(points))["log10"].mean())


def rate_rows(
    runs: pd.DataFrame, points: pd.DataFrame, slopes: pd.DataFrame, networks: Mapping[str, str]
) -> list[RateRow]:
    """Return a row for each line of a study; with means in place of rates if it has one depth (or value).

    networks: captions by `keys.name_of`, in the rows' order.
    """
    lines = {name_of(line): line for line in distinct(runs, line_keys(runs))}
    x, rows = letter(symbol(runs)), []
    for name, network in networks.items():
        series = headline_series(rows_at(runs, lines[name]), slopes)
        fits = series_rows(slopes, lines[name], series)
        if at_several(runs):
            cells = {_heading(title): _rate(fit, x) for title, fit in fits.items()}
        else:
            means = {title: geometric_means(points, lines[name], *key) for title, key in series.items()}
            cells = {_heading(title): _mean(mean.iloc[0]) for title, mean in means.items() if len(mean)}
        rows.append(RateRow(name, network, cells, _used_count(list(fits.values()))))
    columns = dict.fromkeys(column for row in rows for column in row.rates)
    return [replace(row, rates={key: row.rates.get(key, NO_RATE) for key in columns}) for row in rows]


def next_steps(runs: pd.DataFrame, rows: Sequence[RateRow]) -> list[str]:
    """Return what would make the answer surer, and how to go on. rows: of `rate_rows`."""
    steps = []
    if diverged := int((runs["reason"] == DIVERGED).sum()):
        steps.append(f"{diverged} of {len(runs)} runs diverged: {ADVICE[DIVERGED]}.")
    if moving := int((~runs["reason"].isin(["", DIVERGED, NO_HISTORY])).sum()):
        steps.append(
            f"{moving} of {len(runs)} runs ended before they converged: more epochs may change what they say."
        )
    said = [(rate.word, f"{name} of {row.line}") for row in rows for name, rate in row.rates.items()]
    unclear = [of for word, of in said if word == WORDS["show"]]
    if runs["seed"].nunique() == 1 or any(word == WORDS["go"] for word, _ in said):
        steps.append("Add seeds to params.yaml: an interval needs two used runs at every point.")
    elif unclear:
        more = f" and {len(unclear) - 1} more" if len(unclear) > 1 else ""
        steps.append(f"No clear change of {unclear[0]}{more}: more seeds narrow an interval.")
    return [*steps, "Edit sweep in params.yaml and run dvc repro again: only new networks train."]


def _heading(title: str) -> str:
    """Return the column of a series: GNC2 stands in NC2's."""
    return title.removeprefix("the ").removeprefix("G")


def _mean(value: float) -> Rate:
    return Rate("", "", f"{value:.3g}", f"{float(value)!r}, geometric mean over the runs used")


def _rate(row: pd.Series, of: str) -> Rate:
    verb = tendency(row)
    if not math.isnan(row.get("rho", math.nan)):
        text = f"ρ = {row['rho']:z.2f} ({p_text(row['rho_p_value'])})"
        full = f"Spearman's rho {row['rho']}, p {row['rho_p_value']}"
    elif verb == "have":
        return NO_RATE
    else:
        text = power(row["slope"], row["low"], row["high"], of)
        full = f"power {row['slope']}, {100 * row['level']:g} % interval [{row['low']}, {row['high']}]"
    text = f"GNC2: {text}" if row["metric"] == GNC2 else text
    full = f"{full}, {row['n_used']:.0f} of {row['n_runs']:.0f} runs used"
    return Rate(ARROWS[verb], WORDS[verb], text, full)


def _used_count(rows: list[pd.Series]) -> str:
    """Return the number of used runs: 15 of 15, or 13 to 15 of 15 if metrics differ."""
    if not rows:
        return "–"
    counts = sorted({int(row["n_used"]) for row in rows})
    used = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{used} of {int(rows[0]['n_runs'])}"
