"""Fit the published tables again from their points and runs, without training, and judge their claims again.

    uv run python docs/results/refit.py [FOLDER ...]

For a change of the statistics: which runs are used, means, slopes, rates, figures and claims of each
folder follow from the values in points.csv and from runs.csv. A claim is judged again if its number can be
computed from the published tables, as the published number of one selection of runs shows, and keeps its row
otherwise. What changed is printed; README.md and docs/ledger.md are written anew by
render.py and docs/ledger.py.
"""

import functools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from ncpipe.claims.claim import ABSENT, Claim, RunClaim
from ncpipe.claims.evidence import Tables
from ncpipe.claims.ledger import load_claims
from ncpipe.claims.selections import judge_by_selection, tables_by_selection
from ncpipe.claims.verdicts import answer, judge, kind, ledger_table
from ncpipe.commands.plot import figures_of_published, read_published
from ncpipe.config.params import Convergence, Slopes, load_params
from ncpipe.config.records import read
from ncpipe.figures.save import save_figure
from ncpipe.tables.convergence import GRADIENT, LOSS_MOVING, with_gradient
from ncpipe.tables.keys import run_keys
from ncpipe.tables.points import LAST, SERIES, usable_points
from ncpipe.tables.rates import in_columns, rate_table
from ncpipe.tables.selections import selected_slopes
from ncpipe.tables.slopes import leave_out_slopes, loglog_slopes
from ncpipe.tables.summary import summarise

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
CLOSE = 1e-9  # relative: two computations of one number
# Keys that change no number and no verdict; the `call` is the quantity, see `_entries`.
WORDS = {"id", "ref", "statement", "author", "scale", "panel", "experiment", "call"}


def refit(folder: Path) -> Iterator[str]:
    """Write the derived tables of a published folder again; yield a line for each change of a verdict."""
    params = yaml.safe_load((folder / "params.yaml").read_text(encoding="utf-8"))
    rule = Slopes(params["slopes"]["seed"], params["slopes"]["level"])
    convergence = read(Convergence, params["convergence"], "convergence")
    runs = pd.read_csv(folder / "runs.csv")
    runs["reason"] = runs["reason"].astype(object).fillna("")  # all are nan if every run converged
    moving = np.where(runs["loss_moved"] > convergence.tolerance, LOSS_MOVING, "")
    runs["reason"] = runs["reason"].mask(runs["reason"] == GRADIENT, moving)  # whatever the limit was
    runs = with_gradient(runs, convergence)
    place = runs.columns.get_loc("converged") + 1
    runs.insert(place, "selected", runs.pop("selected"))
    runs.to_csv(folder / "runs.csv", index=False, lineterminator="\n")
    measured = pd.read_csv(folder / "points.csv")[[*run_keys(runs), *SERIES, "value"]]
    points = usable_points(measured, runs)
    slopes, leave_out = loglog_slopes(measured, runs, rule), leave_out_slopes(measured, runs, rule)
    tables = {
        "points": points,
        "summary": summarise(measured, runs),
        "slopes": slopes,
        "slopes_leave_out": leave_out,
        "slopes_by_selection": selected_slopes(measured, runs, rule),
    }
    for name, table in tables.items():
        table.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
    last = measured[measured["layer"] == LAST]
    rates = "".join(f"{each}\n" for each in in_columns(rate_table(slopes, leave_out, runs, last)))
    (folder / "rates.txt").write_text(rates, encoding="utf-8")
    for name, figure in figures_of_published(read_published([folder])):
        if (folder / f"{name}.png").is_file():  # some studies show another figure in its place
            save_figure(figure, folder, name)
    if (folder / "claims.csv").is_file():
        nothing = pd.DataFrame(columns=[*run_keys(runs), "layer", "split", "metric", "value", "selected"])
        history = folder / "history.csv"
        kept = pd.read_csv(history) if history.is_file() else nothing
        all_tables = Tables(points, runs, nothing, nothing, nothing, kept, rule)
        yield from rejudge(folder, all_tables)


def rejudge(folder: Path, tables: Tables) -> Iterator[str]:
    """Judge again the claims whose published numbers these tables give; yield a line for each change."""
    published = pd.read_csv(folder / "claims.csv", dtype=str, keep_default_na=False)
    own = []
    others = tables_by_selection(tables)
    for claim in (claim for claim in claims_of(folder) if isinstance(claim, RunClaim)):
        rows = published[(published["id"] == claim.id)]
        if rows.empty or claim.experiment not in set(tables.runs["experiment"]):
            continue
        before = float(rows["value"].iloc[0] or "nan")
        try:
            number = answer(claim, tables)
            numbers = [number, *(answer(claim, other) for other in others.values())]
            known = any(np.isclose(each.value, before, rtol=CLOSE, atol=0) for each in numbers)
        except (KeyError, ValueError):  # of a table that is not published
            continue
        if known or rows["verdict"].iloc[0] == ABSENT:
            own.append(judge(claim, number))
    judged = judge_by_selection(own, tables)
    again = ledger_table(judged).set_index(["id", "about"], drop=False)
    for index, row in published.iterrows():
        key = (row["id"], row["about"])
        if key not in again.index:
            yield f"{folder.name}: {row['id']} ({row['about']}): kept"
            continue
        fresh = again.loc[key]
        if fresh["verdict"] != row["verdict"]:
            change = f"{row['verdict']} -> {fresh['verdict']}: {fresh['reason']}"
            yield f"{folder.name}: {row['id']} ({row['about']}): {change}"
        published.loc[index, again.columns] = ["" if pd.isna(cell) else str(cell) for cell in fresh]
    published.to_csv(folder / "claims.csv", index=False, lineterminator="\n")


def write_kinds(folder: Path) -> None:
    """Write the kind of each published claim, and whether it stood before its runs were published.

    stood: `before` if a claims.yaml had the claim, with all that its number and verdict depend on, at the
    commit that provenance.json names, else `after`; empty where no run answers.
    """
    published = pd.read_csv(folder / "claims.csv", dtype=str, keep_default_na=False)
    claims = {claim.id: claim for claim in claims_of(folder)}
    if lost := sorted(set(published["id"]) - set(claims)):
        raise SystemExit(f"{folder / 'claims.csv'}: its study no longer has {', '.join(lost)}")
    published["kind"] = [kind(claims[name]) for name in published["id"]]
    now, then = _entries("HEAD"), _entries(_commit(folder))
    published["stood"] = [
        _stood(now, then, claims[name]) if isinstance(claims[name], RunClaim) else ""
        for name in published["id"]
    ]
    published.to_csv(folder / "claims.csv", index=False, lineterminator="\n")


def claims_of(folder: Path) -> Sequence[Claim]:
    """Return the claims of the study that a folder was published from."""
    studies = yaml.safe_load((FOLDER / "ledger.yaml").read_text(encoding="utf-8"))["studies"]
    study = ROOT / studies.get(folder.name, ".")
    return load_claims(study / "claims.yaml", lambda: load_params(study / "params.yaml"))


def _commit(folder: Path) -> str:
    source = folder / "provenance.json"
    return json.loads(source.read_text(encoding="utf-8"))["source"]["commit"] if source.is_file() else "HEAD"


@functools.cache
def _entries(commit: str) -> dict[str, dict[str, Any]]:
    """Return the claims of every claims.yaml at a commit, by id, as they are written."""
    names = _git("ls-tree", "-r", "--name-only", commit).splitlines()
    files = [_git("show", f"{commit}:{name}") for name in names if Path(name).name == "claims.yaml"]
    entries = {entry["id"]: entry for file in files for entry in yaml.safe_load(file)}
    for entry in entries.values():
        if entry["quantity"] == "computed":  # calls were quantities of their own once
            entry["quantity"] = entry["call"]
    return entries


def _stood(now: Mapping[str, Any], then: Mapping[str, Any], claim: Claim) -> str:
    """Return whether a claim is `then` what it is `now`; its id may have the experiment's name at its end."""
    names = (claim.id, claim.id.removesuffix(f"-{claim.experiment}"))
    own, old = (next((entries[name] for name in names if name in entries), None) for entries in (now, then))
    return "before" if own and old and _decisive(own) == _decisive(old) else "after"


def _decisive(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a claim that its number or verdict depends on, whatever experiments are called."""
    kept = {key: value for key, value in entry.items() if key not in WORDS}
    if "versus" in kept:
        kept["versus"] = {key: value for key, value in kept["versus"].items() if key != "experiment"}
    return kept | kept.pop("args", {})


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True, cwd=ROOT).stdout


def main(names: list[str]) -> None:
    folders = [Path(name) for name in names] or sorted(
        path.parent for path in FOLDER.glob("*/provenance.json")
    )
    for folder in folders:
        if (folder / "points.csv").is_file():
            for line in refit(folder):
                print(line)
        if (folder / "claims.csv").is_file():
            write_kinds(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
