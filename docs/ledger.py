"""Write docs/ledger.md, every published claim with its verdict, from the tables below docs/results.

    python docs/ledger.py

A test fails if the page is not what this writes, or if a claim that disagrees has no paragraph in
docs/results/disagreements.yaml.
"""

from pathlib import Path

import pandas as pd
import yaml

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
VERDICTS = ("agrees", "undecided", "disagrees")
PAPERS = {
    "S25": "Súkeník, Lampert, Mondelli 2025",
    "S24": "Súkeník, Mondelli, Lampert 2024",
    "K23": "Kothapalli 2023",
}
# The command that makes a published folder's tables again, where it is not an experiment of the root.
STUDIES = {
    "biases": "stages/biases",
    "cifar10_t11_reduced": "stages/transformers_cpu",
    "imdb_pre_t11_reduced": "stages/transformers_cpu",
    "low_rank_real": "stages/low_rank_real",
    "mnist_t11_reduced": "stages/transformers_cpu",
    "optimizer": "stages/optimizer",
    "regimes": "stages/regimes",
    "regimes_models": "stages/regimes_models",
}


def claims() -> pd.DataFrame:
    """Return every published claim that was run, a row each, with the folder of its tables."""
    tables = [
        pd.read_csv(path).assign(study=path.parent.name) for path in sorted(RESULTS.glob("*/claims.csv"))
    ]
    found = pd.concat(tables, ignore_index=True)
    found = found[found["verdict"].isin(VERDICTS)]
    names = found["ref"].str.split().str[0].str.rstrip(",")
    return found.assign(paper=names.where(names.isin(list(PAPERS)), "others"))


def page() -> str:
    """Return the text of docs/ledger.md."""
    rows = claims()
    lines = [
        "# Ledger",
        "",
        "<!-- Written by docs/ledger.py from docs/results; edit those tables' studies instead. -->",
        "",
        "Each row sets a sentence of a paper, or a stricter one of ours, beside our number.",
        "[Claims](claims.md) has the rules of the verdicts.",
        "",
        *counts(rows),
        "",
        "## Disagreements",
        "",
        *disagreements(rows),
        "## How to run a study again",
        "",
        "| study | command |",
        "|---|---|",
        *(f"| {study} | `{command(study)}` |" for study in sorted(rows["study"].unique())),
    ]
    for paper in [*PAPERS, "others"]:
        own = rows[rows["paper"] == paper]
        title = f"{paper}: {PAPERS[paper]}" if paper in PAPERS else "Other sources"
        lines += ["", f"## {title}", "", "| claim | source | number | expected | verdict | study |"]
        lines += ["|---|---|---|---|---|---|", *(line(row) for _, row in own.iterrows())]
    return "\n".join(lines) + "\n"


def counts(rows: pd.DataFrame) -> list[str]:
    """Return a table of verdicts by paper and by who says it."""
    lines = ["| source | who says it | agrees | undecided | disagrees |", "|---|---|---|---|---|"]
    for paper in [*PAPERS, "others"]:
        for author, name in (("paper", "the paper"), ("ours", "we")):
            own = rows[(rows["paper"] == paper) & (rows["author"] == author)]
            if len(own):
                numbers = (str((own["verdict"] == verdict).sum()) for verdict in VERDICTS)
                lines.append(f"| {paper} | {name} | {' | '.join(numbers)} |")
    total = (str((rows["verdict"] == verdict).sum()) for verdict in VERDICTS)
    return [*lines, f"| all |  | {' | '.join(total)} |"]


def disagreements(rows: pd.DataFrame) -> list[str]:
    """Return a paragraph for each group of claims that disagree; ValueError where one has none."""
    groups = yaml.safe_load((RESULTS / "disagreements.yaml").read_text(encoding="utf-8"))
    wrong = set(rows.loc[rows["verdict"] == "disagrees", "id"])
    explained = {claim for group in groups for claim in group["claims"]}
    if wrong != explained:
        raise ValueError(f"docs/results/disagreements.yaml: {', '.join(sorted(wrong ^ explained))}")
    lines = []
    for group in groups:
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


def line(row: pd.Series) -> str:
    cells = [
        row["statement"],
        row["ref"],
        number(row),
        row["expected"],
        f"**{row['verdict']}**",
        row["study"],
    ]
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def number(row: pd.Series) -> str:
    """Return the quantity with its value, and its interval if it has one."""
    text = f"{row['quantity']} {row['value']:.3g}"
    if pd.notna(row["low"]) and row["low"] != row["high"]:
        return f"{text} [{row['low']:.3g}, {row['high']:.3g}]"
    return f"{text}, p = {row['p_value']:.2g}" if pd.notna(row["p_value"]) else text


def command(study: str) -> str:
    if study in STUDIES:
        return f"dvc --cd {STUDIES[study]} repro"
    return f"dvc exp run -S 'sweep.experiments=[{study}]'"


if __name__ == "__main__":
    (FOLDER / "ledger.md").write_text(page(), encoding="utf-8")
