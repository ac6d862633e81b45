"""`ncpipe report --compare`: experiments of DVC's (or git revisions) side by side, on a page."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from ncpipe.artifacts import COMPARISON, RESULTS
from ncpipe.commands.compare import (
    Compared,
    compared,
    different_parameters,
    legend,
    result_columns,
    result_rows,
)
from ncpipe.commands.report import write_page
from ncpipe.commands.revisions import read_revision
from ncpipe.errors import InputError
from ncpipe.report.chart_data import chart_data
from ncpipe.report.grids import Cell, Grid, data_uri
from ncpipe.report.page import Contents, Provenance
from ncpipe.tables.keys import abscissa

TABLES = ("runs", "points", "slopes", "layers", "history")  # of which charts are made


def report_comparison(revisions: Sequence[str], target: Path | None) -> None:
    """Parameters that differ, counts, slopes and means with their differences, and charts of all -> a page.

    In the charts an experiment is a line for each revision that has it.
    """
    found = compared(revisions)
    tables = _together({revision: _tables(revision) for revision in revisions})
    different = different_parameters(found.trees)
    csv = pd.concat(found.tables.values()).to_csv(index=False, lineterminator="\n").encode()
    page = Contents(
        title=f"{' beside '.join(revisions)}",
        lead=[f"{_counted(len(different))} {legend(found.rule)}"],
        chapters=[],
        claims=None,
        pictures=[],
        charts=chart_data(*tables),
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


def _tables(revision: str) -> list[pd.DataFrame]:
    texts = read_revision(revision, [RESULTS / f"{name}.csv" for name in TABLES])
    try:
        return [pd.read_csv(io.StringIO(text)) for text in texts]
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise InputError(f"{revision}: {RESULTS}: damaged ({' '.join(str(error).split())})") from None


def _together(tables: Mapping[str, Sequence[pd.DataFrame]]) -> list[pd.DataFrame]:
    """Each table of all revisions, in which an experiment has its revision's name too."""
    if len({abscissa(own[0]) for own in tables.values()}) > 1:
        raise InputError(f"report: {', '.join(tables)} have metrics against depth and against another key")
    return [
        pd.concat(
            [
                table.assign(experiment=table["experiment"] + f" ({revision})")
                for revision, table in zip(tables, each, strict=True)
            ],
            ignore_index=True,
        )
        for each in zip(*tables.values(), strict=True)
    ]


def _parameters(different: Mapping[str, Sequence[str]], revisions: Sequence[str]) -> Grid:
    rows = [[Cell(key), *map(Cell, values)] for key, values in different.items()]
    return Grid("parameters", "Parameters that differ", "", ["parameter", *revisions], rows, "")


def _results(found: Compared, revisions: Sequence[str], csv: bytes) -> list[Grid]:
    """By experiment; the first has the link to all of them."""
    columns = ["", *result_columns(revisions)]
    grids: list[Grid] = []
    for experiment, table in found.tables.items():
        rows = [list(map(Cell, row)) for row in result_rows(table, revisions)]
        link = "" if grids else data_uri(csv)
        grids.append(Grid(f"differences-{experiment}", experiment, "", columns, rows, link))
    return grids
