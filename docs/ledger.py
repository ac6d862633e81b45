"""Write docs/ledger.md, every published claim with its verdict, from the tables below docs/results.

    python docs/ledger.py

A folder there has claims.csv for each study, written by `ncpipe publish`. ledger.yaml has the papers' titles
and the studies' folders, and disagreements.yaml explains disagreements. A test fails if the page is not what
this writes, or if a claim that disagrees has no paragraph in disagreements.yaml.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from ncpipe.system.artifacts import CLAIMS_TABLE
from ncpipe.system.errors import InputError
from ncpipe.tables.files import read_csv

FOLDER = Path(__file__).parent
VERDICTS = ("agrees", "undecided", "disagrees")
OTHERS = "others"
FALSE_DISCOVERIES = 0.05  # share of the discoveries
STATEMENT = ["ref", "statement", "author", "kind"]  # which several panels may answer
KINDS = {
    "identity": "identities, which hold for any data and check the program",
    "theorem": "theorems, by closed forms or solved optima",
    "trained": "trained networks",
}
DISAGREEMENTS, NAMES = "disagreements.yaml", "ledger.yaml"
FIGURES = ("panels.png", "choices.png", "depth_sweep.png")  # the ledger links the first one that a study has
KEYS = ("title", "differs", "sure", "change", "claims")  # of an entry of disagreements.yaml


@dataclass(frozen=True)
class Ledger:
    """Holds the published claims.

    rows: one per claim, with the columns paper, study and figure.
    papers: titles by the first word of references.
    studies: folders whose pipelines reproduce the tables of a study.
    groups: entries of disagreements.yaml.
    """

    rows: pd.DataFrame
    papers: dict[str, str]
    studies: dict[str, str]
    groups: list[dict[str, Any]]


def read_ledger(folder: Path) -> Ledger:
    """Return all published claims below a folder.

    Raises InputError if there are none, or if a claim that disagrees is not explained.
    """
    paths = sorted(folder.glob(f"*/{CLAIMS_TABLE}"))
    if not paths:
        raise InputError(f"{folder}: has no published claims")
    names, groups = _yaml(folder / NAMES), _yaml(folder / DISAGREEMENTS)
    rows = pd.concat([_table(path) for path in paths], ignore_index=True)
    rows = rows[rows["verdict"].isin(VERDICTS)]
    known = [*names["papers"], OTHERS]
    first = rows["ref"].str.split().str[0].str.rstrip(",")
    rows = rows.assign(paper=first.where(first.isin(known), OTHERS))
    wrong = set(rows.loc[rows["verdict"] == "disagrees", "id"])
    explained = {claim for group in groups for claim in group["claims"]}
    if missing := [group for group in groups if any(key not in group for key in KEYS)]:
        raise InputError(f"{folder / DISAGREEMENTS}: {missing[0].get('title')}: give {', '.join(KEYS)}")
    if wrong != explained:
        raise InputError(
            f"{folder / DISAGREEMENTS}: {', '.join(sorted(wrong ^ explained))}: list exactly the claims that "
            "disagree"
        )
    return Ledger(rows, names["papers"] | {OTHERS: "Other sources"}, names["studies"], groups)


def page_of(ledger: Ledger) -> str:
    """Return the page in Markdown: counts, disagreements, commands, and the claims by paper."""
    rows = ledger.rows
    lines = [
        "# Ledger",
        "",
        "<!-- Written by docs/ledger.py from docs/results; edit those tables' studies instead. -->",
        "",
        "Each row sets a sentence of a paper, or a stricter one of ours, beside our number.",
        "[Claims](claims.md) has the rules of the verdicts.",
        "A statement has one row and counts once; if its panels differ, it counts as undecided.",
        "[The field](results/field.md) has the papers beyond S25, S24 and K23.",
        "",
        *counts(ledger),
        "",
        *multiplicity(ledger),
        *written_after(ledger),
        "## Disagreements",
        "",
        *disagreements(ledger),
        "## How to run a study again",
        "",
        "| study | command |",
        "|---|---|",
        *(f"| {study} | `{command(ledger, study)}` |" for study in sorted(rows["study"].unique())),
    ]
    for paper, title in ledger.papers.items():
        own = rows[rows["paper"] == paper]
        if len(own):
            lines += ["", f"## {title}" if paper == OTHERS else f"## {paper}: {title}", ""]
            lines += [
                "| claim | source | number | expected | verdict | size | study |",
                "|---|---|---|---|---|---|---|",
            ]
            lines += [line(panels) for _, panels in own.groupby(STATEMENT, sort=False)]
    return "\n".join(lines) + "\n"


def counts(ledger: Ledger) -> list[str]:
    """Return two tables of verdicts: by kind, and of trained networks by paper and author.

    A statement counts once. If it has several panels and their verdicts differ, it is undecided.
    """
    once = ledger.rows.groupby(STATEMENT, sort=False)["verdict"].agg(_common).reset_index()
    once = once.merge(ledger.rows[[*STATEMENT, "paper"]].drop_duplicates(STATEMENT))
    lines = [f"| kind | {' | '.join(VERDICTS)} |", "|---|---|---|---|"]
    for kind, meaning in KINDS.items():
        lines.append(f"| {meaning} | {_verdict_counts(once[once['kind'] == kind])} |")
    lines += ["", "Claims about trained networks by source:", ""]
    lines += [f"| source | who says it | {' | '.join(VERDICTS)} |", "|---|---|---|---|---|"]
    trained = once[once["kind"] == "trained"]
    for paper in ledger.papers:
        for author, name in (("paper", "the paper"), ("ours", "we"), ("yours", "the study")):
            own = trained[(trained["paper"] == paper) & (trained["author"] == author)]
            if len(own):
                lines.append(f"| {paper} | {name} | {_verdict_counts(own)} |")
    return lines


def multiplicity(ledger: Ledger) -> list[str]:
    """Return a section with the decided claims that a correction for the number of claims leaves open.

    An undecided claim is no discovery, whatever its p-value: it counts with p = 1.
    """
    if "p_decision" not in ledger.rows:
        return []
    trained = ledger.rows[(ledger.rows["kind"] == "trained") & (ledger.rows["quantity"] != "line")]
    unpublished = trained["p_decision"].isna() & (trained["low"] < trained["high"])
    tested = ledger.rows[ledger.rows["p_decision"].notna() & (ledger.rows["kind"] == "trained")]
    p_values = tested["p_decision"].where(tested["verdict"] != "undecided", 1.0)
    adjusted = p_values.groupby(tested["paper"]).transform(benjamini_hochberg)
    decided = tested[tested["verdict"] != "undecided"]
    lost = decided[adjusted[decided.index] >= FALSE_DISCOVERIES]
    named = ", ".join(f"`{row['id']}` ({row['p_decision']:.2g})" for _, row in lost.iterrows())
    return [
        "## Many claims at once",
        "",
        f"{len(tested)} claims about trained networks rest on a test; {len(decided)} of them are decided. "
        f"{unpublished.sum()} more have an interval, but no published p-value.",
        f"With {100 * FALSE_DISCOVERIES:g} % false discoveries within each source (Benjamini and Hochberg "
        f"1995) {len(decided) - len(lost)} stay decided.",
        *([f"The others, with their p-values: {named}."] if named else []),
        "",
    ]


def benjamini_hochberg(p_values: pd.Series) -> pd.Series:
    """Return adjusted p-values: those below q are discoveries with a false discovery rate of at most q.

    The i-th smallest of m is the least of m p_j/j over j >= i, and at most 1 [Benjamini and Hochberg 1995].
    """
    falling = p_values.sort_values(ascending=False)
    ranks = np.arange(len(falling), 0, -1)
    return (falling * len(falling) / ranks).cummin().clip(upper=1).reindex(p_values.index)


def written_after(ledger: Ledger) -> list[str]:
    """Return a section with the claims whose quantity or expectation is younger than the runs they judge."""
    if "stood" not in ledger.rows:
        return []
    judged = ledger.rows[ledger.rows["stood"].notna() & (ledger.rows["kind"] == "trained")]
    late = judged[judged["stood"] == "after"]
    if late.empty:
        return []
    return [
        "## Expectations that are younger than their runs",
        "",
        f"{len(late)} of {len(judged)} claims about trained networks were written, or changed their quantity "
        "or expectation, after the commit of their published runs.",
        "A study that was trained again counts from its last publication.",
        "",
        f"{', '.join(f'`{name}`' for name in late['id'])}.",
        "",
    ]


def _common(verdicts: pd.Series) -> str:
    return str(verdicts.iloc[0]) if verdicts.nunique() == 1 else "undecided"


def _verdict_counts(rows: pd.DataFrame) -> str:
    return " | ".join(str((rows["verdict"] == verdict).sum()) for verdict in VERDICTS)


def disagreements(ledger: Ledger) -> list[str]:
    """Return a paragraph for each group of claims that disagree."""
    lines = []
    for group in ledger.groups:
        lines += [
            f"### {group['title']}",
            "",
            f"**What differs.** {group['differs']}",
            "",
            f"**How sure we are.** {group['sure']}",
            "",
            f"**What would change our mind.** {group['change']}",
            "",
            f"Claims: {', '.join(f'`{claim}`' for claim in group['claims'])}.",
            "",
        ]
    return lines


def line(panels: pd.DataFrame) -> str:
    """Return a row of a paper's table: one statement, with its number and verdict in each panel.

    Panels of one study are named by their experiments.
    """
    row = panels.iloc[0]
    experiments = panels["about"].str.split(",").str[0]
    names = panels["study"].mask(panels["study"].duplicated(keep=False), experiments)
    studies = [
        f"[{name}]({own['figure']})" if own["figure"] else name
        for name, (_, own) in zip(names, panels.iterrows(), strict=True)
    ]
    numbers = [number(own) for _, own in panels.iterrows()]
    counted = panels["verdict"].value_counts(sort=False)
    verdict = ", ".join(f"**{name}**" + f" {count}" * (len(panels) > 1) for name, count in counted.items())
    several = len(panels) > 1 and len(set(numbers)) > 1
    cells = [
        row["statement"],
        row["ref"],
        "<br>".join(numbers if several else numbers[:1]),
        row["expected"],
        verdict,
        size(row) if not several else "<br>".join(size(own) for _, own in panels.iterrows()),
        ("<br>" if several else ", ").join(studies),
    ]
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def number(row: pd.Series) -> str:
    """Return the quantity with its value, and its interval if it has one."""
    text = f"{row['quantity']} {row['value']:.3g}"
    if pd.notna(row["low"]) and row["low"] != row["high"]:
        return f"{text} [{row['low']:.3g}, {row['high']:.3g}]"
    return f"{text}, p = {row['p_value']:.2g}" if pd.notna(row["p_value"]) else text


def size(row: pd.Series) -> str:
    """Return how many runs a number is of, and whether they have the paper's size."""
    if row["quantity"] == "theory":
        return "no run"
    return ", ".join(str(part) for part in (row["runs"], row["scale"]) if pd.notna(part) and part)


def command(ledger: Ledger, study: str) -> str:
    """Return the command that reproduces a study's tables; by default the root's experiment of that name."""
    if study in ledger.studies:
        return f"dvc --cd {ledger.studies[study]} repro"
    return f"dvc exp run -S 'sweep.experiments=[{study}]'"


def _table(path: Path) -> pd.DataFrame:
    study = path.parent
    figure = next((f"results/{study.name}/{name}" for name in FIGURES if (study / name).is_file()), "")
    return read_csv(path).assign(study=study.name, figure=figure)


def _yaml(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"{path}: not found; the ledger needs it")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def page() -> str:
    """Return the text of docs/ledger.md."""
    return page_of(read_ledger(FOLDER / "results"))


if __name__ == "__main__":
    (FOLDER / "ledger.md").write_text(page(), encoding="utf-8")
