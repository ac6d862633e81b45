"""Write a page that compares DVC experiments or git revisions (`ncpipe report --compare`).

`ncpipe.commands.compare` prints the same to the terminal.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from ncpipe.commands.compare import (
    Comparison,
    compare_revisions,
    different_parameters,
    legend,
    parse_table,
    result_columns,
    result_rows,
    what_differs,
    what_is_identical,
)
from ncpipe.commands.report import write_page
from ncpipe.commands.revisions import read_revision
from ncpipe.figures.overlay import Sweep, overlay
from ncpipe.figures.save import save_figure
from ncpipe.report.chart_data import chart_data
from ncpipe.report.grids import Cell, Grid, data_uri
from ncpipe.report.page import Contents, Provenance
from ncpipe.report.pictures import Picture, read_pictures
from ncpipe.report.words import NEURAL_COLLAPSE
from ncpipe.system.artifacts import COMPARISON, METRICS, RESULTS
from ncpipe.system.errors import InputError
from ncpipe.tables.keys import x_column

TABLES = ("runs", "points", "slopes", "history", "summary")  # of `aggregate`
MEASURED = ("measurements", "places")  # of `measure`, one of each per experiment


def report_comparison(revisions: Sequence[str], target: Path | None) -> None:
    """Write a page with the parameters that differ, and counts, slopes and means with their differences.

    The figure has a colour for each revision; the charts have a line for each experiment and revision.
    """
    comparison = compare_revisions(revisions)
    tables = {revision: _read_tables(revision) for revision in revisions}
    _check_x_columns(tables)
    combined = _combine(tables)
    charts = ("runs", "points", "slopes", "history", *MEASURED)
    different = different_parameters(comparison.trees)
    csv = pd.concat(comparison.tables.values()).to_csv(index=False, lineterminator="\n").encode()
    page = Contents(
        title=f"{' beside '.join(revisions)}",
        lead=[
            what_differs(different, revisions),
            *what_is_identical(comparison),
            legend(comparison.rule),
            NEURAL_COLLAPSE,
        ],
        pictures=_pictures(tables, comparison),
        charts=chart_data(*(combined[name] for name in charts)),
        grids=[_parameters(different, revisions), *_results(comparison, revisions, csv)],
        provenance=Provenance({"Revisions": list(revisions)}),
        again={
            f"ncpipe report --compare {' '.join(revisions)}": "which reads DVC's cache and trains nothing"
        },
    )
    write_page(target or COMPARISON, page)


def _read_tables(revision: str) -> dict[str, pd.DataFrame]:
    """Return a revision's tables by name."""
    texts = read_revision(revision, [RESULTS / f"{name}.csv" for name in TABLES])
    tables = {name: parse_table(revision, text) for name, text in zip(TABLES, texts, strict=True)}
    experiments = list(dict.fromkeys(tables["runs"]["experiment"]))
    for name in MEASURED:
        texts = read_revision(revision, [METRICS / experiment / f"{name}.csv" for experiment in experiments])
        tables[name] = pd.concat([parse_table(revision, text) for text in texts], ignore_index=True)
    return tables


def _check_x_columns(tables: Mapping[str, Mapping[str, pd.DataFrame]]) -> None:
    if len({x_column(of_revision["runs"]) for of_revision in tables.values()}) > 1:
        raise InputError(
            f"report: {', '.join(tables)} have different x axes, depth and another key; compare others"
        )


def _combine(tables: Mapping[str, Mapping[str, pd.DataFrame]]) -> dict[str, pd.DataFrame]:
    """Return each table with the rows of all revisions; experiments are named `NAME (REVISION)`."""
    return {
        name: pd.concat(
            [
                of_revision[name].assign(experiment=of_revision[name]["experiment"] + f" ({revision})")
                for revision, of_revision in tables.items()
            ],
            ignore_index=True,
        )
        for name in (*TABLES, *MEASURED)
    }


def _pictures(tables: Mapping[str, Mapping[str, pd.DataFrame]], comparison: Comparison) -> list[Picture]:
    """Return one figure of all revisions and their common experiments; its alternative text has slopes."""
    sweeps = {name: Sweep(own["runs"], own["summary"], own["slopes"]) for name, own in tables.items()}
    with tempfile.TemporaryDirectory() as folder:
        save_figure(overlay(sweeps, list(comparison.tables)), Path(folder), "overlay")
        x_axis = "depth L" if x_column(next(iter(sweeps.values())).runs) == "depth" else "the axis"
        alt = _slope_sentences(comparison, list(tables))
        return read_pictures(Path(folder), "", x_axis, {"overlay": alt})


def _slope_sentences(comparison: Comparison, revisions: Sequence[str]) -> str:
    """Return sentences such as `one, slope nc1_trace_ratio: -0.37 [-0.43, -0.32] in base, -0.40 in other.`"""
    columns = result_columns(revisions)
    sentences = []
    for experiment, table in comparison.tables.items():
        for name, *cells in result_rows(table, revisions):
            if name.startswith("slope "):
                values = ", ".join(
                    f"{cells[columns.index(revision)]} in {revision}" for revision in revisions
                )
                sentences.append(f"{experiment}, {name}: {values}.")
    return " ".join(sentences)


def _parameters(different: Mapping[str, Sequence[str]], revisions: Sequence[str]) -> Grid:
    rows = [[Cell(key), *map(Cell, values)] for key, values in different.items()]
    return Grid("parameters", "Parameters that differ", "", ["parameter", *revisions], rows, "")


def _results(comparison: Comparison, revisions: Sequence[str], csv: bytes) -> list[Grid]:
    """Return a table for each experiment; the first one has the link to a file with all of them."""
    columns = ["", *result_columns(revisions)]
    grids: list[Grid] = []
    for experiment, table in comparison.tables.items():
        rows = [list(map(Cell, row)) for row in result_rows(table, revisions)]
        link = "" if grids else data_uri(csv)
        grids.append(Grid(f"differences-{experiment}", experiment, "", columns, rows, link))
    return grids
