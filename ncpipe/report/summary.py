"""Say on the report's first screen what was asked, what was found and how sure that is."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ncpipe.report.rates import at_several, geometric_means
from ncpipe.tables.headlines import headline_series
from ncpipe.tables.keys import distinct, line_keys, name_of, rows_at, symbol, x_column
from ncpipe.tables.rates import short_answer

MOST_LINES = 6  # of the experiments that the first screen names
S25_NETWORKS = "L-"  # of the names of S25's architectures
TWO_LAYERS = ("L-RN2", "L-T12", "L-T22")  # two linear maps a block


def asked(runs: pd.DataFrame, questions: Mapping[str, str]) -> list[str]:
    """Return the study's question, what S25 proves if its networks are trained, and each experiment's.

    questions: by experiment.
    """
    of = "the depth L of the network" if x_column(runs) == "depth" else symbol(runs)
    depends = f", and does it depend on {of}" if at_several(runs) else ""
    lines = [f"How far do trained networks collapse{depends}?"]
    if (theirs := runs["architecture"].str.startswith(S25_NETWORKS)).any():
        two = runs.loc[theirs, "architecture"].isin(TWO_LAYERS).any()
        condition = ", with two linear maps a block if the inner λ falls as 1/L" if two else ""
        lines.append(
            "S25 (Súkeník, Lampert, Mondelli 2025) proves that global optima, networks of the least loss, "
            f"collapse as L grows{condition}. Training need not find them, so trained networks are measured."
        )
    named = [f"{name}: {question}" for name, question in questions.items() if question]
    return lines + (named if len(named) <= MOST_LINES else [])


def found(runs: pd.DataFrame, points: pd.DataFrame, slopes: pd.DataFrame) -> list[str]:
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
    means = {title: geometric_means(points, line, *each) for title, each in series.items()}
    parts = [f"{title} is {own.iloc[0]:.2g}" for title, own in means.items() if len(own)]
    text = f"{', '.join(parts)}." if parts else "no run is used."
    return f"{text[:1].upper()}{text[1:]}"


def how_sure(runs: pd.DataFrame, level: float, verdicts: str) -> list[str]:
    """Return how many runs there are and count, what the brackets mean, and the counts of verdicts."""
    column = x_column(runs)
    values, seeds = runs[column].nunique(), runs["seed"].nunique()
    name = ("depth" if column == "depth" else "value") + "s" * (values > 1)
    spread = f"{seeds} seed{'s' * (seeds > 1)} at {f'each of {values}' if values > 1 else 'one'} {name}"
    converged, total = int(runs["converged"].sum()), len(runs)
    left_out, moving = int((~runs["selected"]).sum()), int((runs["selected"] & ~runs["converged"]).sum())
    facts = [
        f"{converged} of {total} runs converged ({spread}).",
        f"Left out of all means and powers: {left_out} of {total}." if left_out else "",
        f"Used although they did not converge: {moving} of {total}." if moving else "",
        f"Brackets are {100 * level:g} % intervals from the spread over seeds."
        if seeds > 1
        else "With one seed there are no intervals.",
    ]
    said = f"Sentences of papers, and some of ours, held against the numbers: {verdicts}."
    return [" ".join(filter(None, facts)), *([said] if verdicts else [])]


def _ends(line: Mapping[str, Any], points: pd.DataFrame, runs: pd.DataFrame) -> str:
    """Return `NC1 is 0.36 at L = 2 and 0.18 at L = 13.` of geometric means; empty for fewer than two."""
    means = geometric_means(points, line, "nc1_trace_ratio", "train")
    if len(means) < 2:
        return ""
    first, last = (f"{means.loc[x]:.2g} at {symbol(runs)} = {x:g}" for x in means.index[[0, -1]])
    return f" NC1 is {first} and {last}."
