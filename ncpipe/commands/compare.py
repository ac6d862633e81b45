"""Compare DVC experiments or git revisions by parameters and results (`ncpipe compare`)."""

import io
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from ncpipe.config.params import PARAMS_FILE, Slopes, check_there
from ncpipe.config.records import read
from ncpipe.config.yaml_file import parse_yaml
from ncpipe.runs.differences import ABSENT, Tree, changed_since, different_parameters, rules_of, stale
from ncpipe.runs.dvc import LOCK
from ncpipe.system.artifacts import RESULTS
from ncpipe.system.console import say
from ncpipe.system.errors import InputError
from ncpipe.system.text_table import aligned
from ncpipe.tables.compare import Results, compare_results
from ncpipe.tables.files import read_keyed
from ncpipe.tables.headlines import paper_series
from ncpipe.tables.keys import symbol

FILES = (PARAMS_FILE, RESULTS / "points.csv", RESULTS / "runs.csv", LOCK)
GAP = ("loss_gap", "train")
MOST_DECIMALS = 6
WORKSPACE = "workspace"  # DVC's name for the files in the working directory


def compare(
    revisions: Annotated[
        list[str],
        typer.Argument(
            help="DVC experiments, git revisions or `workspace`. All are compared with the first."
        ),
    ],
    as_csv: Annotated[bool, typer.Option("--csv", help="Print a long CSV table with all digits.")] = False,
) -> None:
    """Compare revisions: print parameters that differ, and slopes, gaps and counts of each experiment."""
    trees, results = read_revisions(revisions)
    first = revisions[0]
    axis = symbol(results[first].runs)
    for revision, tables_of_revision in results.items():
        if (other := symbol(tables_of_revision.runs)) != axis:
            raise InputError(
                f"compare: {first} varies {axis} and {revision} {other}; compare them in one axis"
            )
    try:
        rule = read(Slopes, trees[first].get("slopes"), "slopes")
    except InputError as error:
        raise InputError(f"{first}: {PARAMS_FILE}: {error}") from None
    tables = {
        experiment: compare_results(results, experiment, _series(results[first], experiment), rule)
        for experiment in _common_experiments(results)
    }
    if as_csv:
        pd.concat(tables.values()).to_csv(sys.stdout, index=False, lineterminator="\n")
        return
    rows = different_parameters(trees)
    differ = aligned([["parameter", *trees], *([key, *values] for key, values in rows.items())])
    print(*(differ if rows else ["No parameter differs."]), sep="\n")
    columns = [first, *(head for name in revisions[1:] for head in (name, f"{name} − {first}", "pairs"))]
    for experiment, table in tables.items():
        print("", *aligned([[experiment, *columns], *result_rows(table, revisions)]), sep="\n")
    places = "depths" if axis == "L" else f"values of {axis}"
    print(
        f"[..]: {100 * rule.level:g} % intervals. pairs: {places} at which both have the same seeds, so that "
        "their runs are compared one by one."
    )


def read_revisions(revisions: Sequence[str]) -> tuple[dict[str, Tree], dict[str, Results]]:
    """Return params.yaml and results by revision; raise InputError for fewer than two, or one given twice."""
    if len(list(filter(None, revisions))) < 2:
        raise InputError("compare: give at least two revisions, for example ncpipe compare HEAD workspace")
    if len(set(revisions)) < len(revisions):
        raise InputError(f"compare: {', '.join(revisions)}: a revision is given twice; remove one")
    trees, results, locks = {}, {}, {}
    for revision in revisions:
        trees[revision], results[revision], locks[revision] = _read(revision)
    for revision, tree in trees.items():
        if changed := changed_since(tree, locks[revision]):
            line = f"DVC last ran with another {changed} than its {PARAMS_FILE} has; run dvc repro there"
            say(f"compare: {revision}: {line}")
        elif revision == WORKSPACE and (reason := stale(locks[revision], ["aggregate"])):
            say(f"compare: {WORKSPACE}: {reason}")
    rules = {revision: rules_of(lock) for revision, lock in locks.items()}
    first = revisions[0]
    for other in revisions[1:]:
        if rules[first] and rules[other] and rules[first] != rules[other]:
            say(f"compare: {first} and {other} chose and fitted their runs by different code")
    return trees, results


def _read(revision: str) -> tuple[Tree, Results, str]:
    """Return a revision's params.yaml, its results and its dvc.lock, which may be missing."""
    params, points, runs, lock = read_revision(revision)
    try:
        tree = parse_yaml(params)
    except InputError as error:
        raise InputError(f"{revision}: {PARAMS_FILE}: {error}") from None
    if not isinstance(tree, dict):
        raise InputError(f"{revision}: {PARAMS_FILE}: not a mapping")
    for key in ("sweep", "experiments"):
        if not isinstance(tree.get(key) or {}, dict):
            raise InputError(f"{revision}: {PARAMS_FILE}: {key}: not a mapping")
    names = (tree.get("sweep") or {}).get("experiments") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{revision}: {PARAMS_FILE}: sweep.experiments: not a list of names")
    return tree, Results(parse_table(revision, points), parse_table(revision, runs)), lock


def read_revision(revision: str) -> list[str]:
    """Return the texts of FILES in a revision, from git or from DVC's cache (or remote).

    revision: a git revision (branch, tag, HEAD~1, hash), the name of a DVC experiment, or `workspace`. A
    missing dvc.lock is empty. Raises InputError for an unknown revision or another missing file.
    """
    if revision == WORKSPACE:
        check_there()
        if missing := next((path for path in FILES if path != LOCK and not path.is_file()), None):
            raise InputError(f"{WORKSPACE}: {missing} not found; run dvc repro")
        return [path.read_text(encoding="utf-8") if path.is_file() else "" for path in FILES]
    from dvc.exceptions import DvcException, NotDvcRepoError
    from dvc.repo import Repo
    from dvc.scm import RevError

    logging.disable()  # DVC also logs what it raises
    try:
        with Repo() as repo, repo.switch(revision):
            return [_read_from_revision(repo, revision, path) for path in FILES]
    except RevError:
        raise InputError(
            f"{revision}: neither a git revision nor a DVC experiment (see dvc exp list --all-commits)"
        ) from None
    except NotDvcRepoError:
        raise InputError(f"{revision}: has no DVC project in {Path.cwd()}; commit it first") from None
    except DvcException as error:
        raise InputError(f"{revision}: {' '.join(str(error).split())}") from None
    finally:
        logging.disable(logging.NOTSET)


def _read_from_revision(repo: Any, revision: str, path: Path) -> str:
    from dvc_data.index import DataIndexError

    try:
        return repo.dvcfs.read_text(f"/{path.as_posix()}", encoding="utf-8")
    except (FileNotFoundError, DataIndexError):  # the latter, of the folder that holds it
        if path == LOCK:
            return ""
        raise InputError(
            f"{revision}: {path}: not in the revision or not in DVC's cache; run dvc repro there and commit "
            "dvc.lock, or get the results: dvc pull, or another clone's cache by dvc cache dir"
        ) from None


def parse_table(revision: str, text: str) -> pd.DataFrame:
    """Return the table in a CSV text of a revision; raise InputError if it is damaged."""
    try:
        return read_keyed(io.StringIO(text))
    except ValueError as error:  # of pandas too
        raise InputError(f"{revision}: {RESULTS}: damaged ({' '.join(str(error).split())})") from None


def _common_experiments(results: dict[str, Results]) -> list[str]:
    """Return the experiments that all revisions have, in the first one's order; print the others."""
    experiments = {
        revision: list(dict.fromkeys(tables.runs["experiment"])) for revision, tables in results.items()
    }
    left_out: dict[str, list[str]] = {}
    for experiment in dict.fromkeys(name for names in experiments.values() for name in names):
        if without := [revision for revision, names in experiments.items() if experiment not in names]:
            left_out.setdefault(", ".join(without), []).append(experiment)
    for without_them, names in left_out.items():
        say(f"compare: left out {', '.join(names)}, not in {without_them}")
    first, *others = experiments.values()
    common = [name for name in first if all(name in names for names in others)]
    if not common:
        raise InputError(f"compare: {', '.join(results)} have no experiment in common")
    return common


def _series(results: Results, experiment: str) -> list[tuple[str, str]]:
    """Return metric and split of an experiment's NC1, NC2, NC3 and gap."""
    runs = results.runs[results.runs["experiment"] == experiment]
    return [*paper_series(runs, results.points), GAP]


def result_rows(table: pd.DataFrame, revisions: Sequence[str]) -> Iterator[list[str]]:
    """Yield a row for each quantity: its name, then numbers with their intervals."""
    first = revisions[0]
    keys = [key for key in ("quantity", "series", "depth", "x") if key in table]
    for _, rows in table.groupby(keys, sort=False, dropna=False):
        quantity, series, depth = rows[["quantity", "series", "depth"]].iloc[0]
        counted = quantity in ("runs", "converged")
        cells = []
        for _, row in rows.iterrows():
            cells.append(_number((row["value"], row["low"], row["high"]), counted))
            if row["revision"] != first:
                change = (row["difference"], row["difference_low"], row["difference_high"])
                cells += [_number(change, counted, "+"), row["pairs"]]
        setting = "" if pd.isna(depth) else f" at L = {depth}"
        if "x" in rows and not pd.isna(x := rows["x"].iloc[0]):
            setting += f", {rows['axis'].iloc[0]} = {x:g}"
        yield [" ".join(filter(None, [quantity, series])) + setting, *cells]


def _number(estimate: tuple[float, float, float], counted: bool, sign: str = "") -> str:
    """Format an estimate as `-0.373 [-0.430, -0.317]`, without an interval that is NaN.

    The number of decimals shows two digits of the interval's half-width, and is between 2 and 6.
    """
    value, low, high = estimate
    if math.isnan(value):
        return ABSENT
    if counted:
        return format(int(value), f"{sign}d")
    width = (high - low) / 2
    places = 2
    if not math.isnan(width) and width > 0:
        places = min(max(places, 1 - math.floor(math.log10(width))), MOST_DECIMALS)
    text = format(value, f"{sign}z.{places}f")
    return text if math.isnan(low) else f"{text} [{low:z.{places}f}, {high:z.{places}f}]"
