"""`ncpipe report --compare`: experiments of DVC's (or git revisions) side by side, on a page."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from ncpipe.commands.compare import (
    Compared,
    compared,
    different_parameters,
    legend,
    parse_table,
    result_columns,
    result_rows,
)
from ncpipe.commands.report import write_page
from ncpipe.commands.revisions import read_revision
from ncpipe.figures.overlay import Sweep, overlay
from ncpipe.figures.save import save_figure
from ncpipe.report.chart_data import chart_data
from ncpipe.report.grids import Cell, Grid, data_uri
from ncpipe.report.page import Contents, Provenance
from ncpipe.report.pictures import Picture, read_pictures
from ncpipe.system.artifacts import COMPARISON, METRICS, RESULTS
from ncpipe.system.errors import InputError
from ncpipe.tables.keys import x_column

TABLES = ("runs", "points", "slopes", "history", "summary")  # of which charts and the figure are made
MEASURED = ("measurements", "places")  # by experiment: every layer's values


def report_comparison(revisions: Sequence[str], target: Path | None) -> None:
    """Write a page of parameters that differ, and of counts, slopes and means with their differences.

    In the figure a revision is a colour; in the charts an experiment is a line for each that has it.
    """
    found = compared(revisions)
    tables = {revision: _tables(revision) for revision in revisions}
    _check_x_columns(tables)
    together = _together(tables)
    charts = ("runs", "points", "slopes", "history", *MEASURED)
    different = different_parameters(found.trees)
    csv = pd.concat(found.tables.values()).to_csv(index=False, lineterminator="\n").encode()
    page = Contents(
        title=f"{' beside '.join(revisions)}",
        lead=[f"{_counted(len(different))} {legend(found.rule)}"],
        chapters=[],
        claims=[],
        pictures=_pictures(tables, found),
        charts=chart_data(*(together[name] for name in charts)),
        failures=[],
        failed=None,
        grids=[_parameters(different, revisions), *_results(found, revisions, csv)],
        provenance=Provenance({"Revisions": list(revisions)}),
        again={
            f"ncpipe report --compare {' '.join(revisions)}": "which reads DVC's cache and trains nothing"
        },
    )
    write_page(target or COMPARISON, page)


def _counted(different: int) -> str:
    return {0: "No parameter differs.", 1: "One parameter differs."}.get(
        different, f"{different} parameters differ."
    )


def _tables(revision: str) -> dict[str, pd.DataFrame]:
    """Return a revision's tables by name."""
    texts = read_revision(revision, [RESULTS / f"{name}.csv" for name in TABLES])
    tables = {name: parse_table(revision, text) for name, text in zip(TABLES, texts, strict=True)}
    experiments = list(dict.fromkeys(tables["runs"]["experiment"]))
    paths = {name: [METRICS / one / f"{name}.csv" for one in experiments] for name in MEASURED}
    texts = read_revision(revision, [path for own in paths.values() for path in own])
    for i, name in enumerate(MEASURED):
        own = texts[i * len(experiments) : (i + 1) * len(experiments)]
        tables[name] = pd.concat([parse_table(revision, text) for text in own], ignore_index=True)
    return tables


def _check_x_columns(tables: Mapping[str, Mapping[str, pd.DataFrame]]) -> None:
    if len({x_column(own["runs"]) for own in tables.values()}) > 1:
        raise InputError(f"report: {', '.join(tables)} have metrics against depth and against another key")


def _together(tables: Mapping[str, Mapping[str, pd.DataFrame]]) -> dict[str, pd.DataFrame]:
    """Return each table of all revisions together; an experiment's name has its revision behind it."""
    return {
        name: pd.concat(
            [
                own[name].assign(experiment=own[name]["experiment"] + f" ({revision})")
                for revision, own in tables.items()
            ],
            ignore_index=True,
        )
        for name in (*TABLES, *MEASURED)
    }


def _pictures(tables: Mapping[str, Mapping[str, pd.DataFrame]], found: Compared) -> list[Picture]:
    """Return one figure of all revisions, for the experiments that all have; its text states the slopes."""
    sweeps = {revision: Sweep(own["runs"], own["summary"], own["slopes"]) for revision, own in tables.items()}
    with tempfile.TemporaryDirectory() as folder:
        save_figure(overlay(sweeps, list(found.tables)), Path(folder), "overlay")
        of = "depth L" if x_column(next(iter(sweeps.values())).runs) == "depth" else "the axis"
        return read_pictures(Path(folder), "", of, {"overlay": _said(found, list(tables))})


def _said(found: Compared, revisions: Sequence[str]) -> str:
    """Return sentences such as `one, slope nc1_trace_ratio: -0.37 [-0.43, -0.32] in base, -0.40 in other.`"""
    columns = result_columns(revisions)
    said = []
    for experiment, table in found.tables.items():
        for name, *cells in result_rows(table, revisions):
            if name.startswith("slope "):
                own = [cells[columns.index(revision)] for revision in revisions]
                values = ", ".join(f"{value} in {of}" for value, of in zip(own, revisions, strict=True))
                said.append(f"{experiment}, {name}: {values}.")
    return " ".join(said)


def _parameters(different: Mapping[str, Sequence[str]], revisions: Sequence[str]) -> Grid:
    rows = [[Cell(key), *map(Cell, values)] for key, values in different.items()]
    return Grid("parameters", "Parameters that differ", "", ["parameter", *revisions], rows, "")


def _results(found: Compared, revisions: Sequence[str], csv: bytes) -> list[Grid]:
    """Return a table for each experiment; the first one has the link to all of them."""
    columns = ["", *result_columns(revisions)]
    grids: list[Grid] = []
    for experiment, table in found.tables.items():
        rows = [list(map(Cell, row)) for row in result_rows(table, revisions)]
        link = "" if grids else data_uri(csv)
        grids.append(Grid(f"differences-{experiment}", experiment, "", columns, rows, link))
    return grids
