"""Copy a sweep's tables and figures with their provenance to a folder for git (`ncpipe publish`)."""

import csv
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from ncpipe.claims.claim import ABSENT
from ncpipe.commands.plot import PUBLISHED, figures_of_published, read_published
from ncpipe.config.params import PARAMS_FILE, Params, load_params
from ncpipe.config.yaml_file import read_yaml
from ncpipe.figures.labels import GAP_COLUMNS
from ncpipe.figures.save import save_figure
from ncpipe.figures.sweep import sweep_figures
from ncpipe.runs.differences import changed_since, stale
from ncpipe.runs.dvc import LOCK
from ncpipe.runs.fingerprint import check_run
from ncpipe.runs.provenance import provenance
from ncpipe.runs.store import sweep_fingerprints
from ncpipe.system.artifacts import (
    CLAIMS,
    CLAIMS_POINTS,
    CLAIMS_TABLE,
    PROVENANCE,
    RESULTS,
    RUNS,
    publish_folder,
    write_json,
)
from ncpipe.system.console import say
from ncpipe.system.errors import InputError
from ncpipe.tables.files import present, read_table
from ncpipe.tables.headlines import PAPER_METRICS, REGRESSION_SERIES, TAG_SERIES

SHOWN = {
    *PAPER_METRICS,
    *(metric for metric, _ in (*REGRESSION_SERIES, TAG_SERIES)),
    *(column.metric for column in GAP_COLUMNS),
}
RATES = "rates.txt"
SUFFIXES = {".csv", ".json", ".png", ".svg", ".txt", ".yaml"}  # of all that it writes


def publish(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder, or one that publish wrote.")],
    figure: Annotated[
        list[str] | None,
        typer.Option(help="Further figure of data/figures, such as layers; can be repeated."),
    ] = None,
) -> None:
    """Copy the sweep's tables, claims and parameters, with their provenance, to a folder for git.

    The tables have the rows of the figures' metrics, unchanged; history.csv has the epochs at which these
    were measured. The figures are drawn from these tables, as `ncpipe plot --from FOLDER` does. If there are
    claims, claims.csv has those that the sweep answers, and panels.csv the values behind those with a panel.
    Tables of further figures are copied whole. Folders and notes that are beside them stay.
    """
    params = load_params()
    _check_current(params)
    further = _tables_of(params.sweep.experiments, figure or ())
    if folder.exists() and not (folder / PROVENANCE).is_file():
        raise InputError(f"{folder}: exists and was not written by ncpipe publish; give a new folder")
    with publish_folder(folder) as partial:
        for name in (*PUBLISHED, "slopes_by_selection"):
            source = present(RESULTS / f"{name}.csv", "aggregate")
            _copy_rows(source, partial, lambda row: row.get("metric", "loss_gap") in SHOWN)
        history = present(RESULTS / "history.csv", "aggregate")
        _copy_rows(history, partial, lambda row: any(row[name] for name in SHOWN & row.keys()))
        for name in sorted({name for names in further.values() for name in names} - set(PUBLISHED)):
            shutil.copyfile(RESULTS / f"{name}.csv", partial / f"{name}.csv")
        if (ledger := CLAIMS / CLAIMS_TABLE).is_file():
            _copy_rows(ledger, partial, lambda row: row["verdict"] != ABSENT)
        if (panels := CLAIMS / CLAIMS_POINTS).is_file():
            shutil.copyfile(panels, partial / CLAIMS_POINTS)
        shutil.copyfile(present(RESULTS / RATES, "aggregate"), partial / RATES)
        shutil.copyfile(PARAMS_FILE, partial / PARAMS_FILE.name)
        write_json(partial / PROVENANCE, provenance(params) | ({"figures": further} if further else {}))
        for name, drawn in figures_of_published(read_published([partial])):
            save_figure(drawn, partial, name)
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.is_dir():
                shutil.copytree(path, partial / path.name, symlinks=True)
            elif path.suffix not in SUFFIXES:
                shutil.copyfile(path, partial / path.name)
    say(f"publish: {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


def _check_current(params: Params) -> None:
    """Raise InputError if runs were trained, or tables made, with other parameters than params.yaml has."""
    for fingerprint in sweep_fingerprints(params, params.compute):
        check_run(RUNS / fingerprint.run.path, fingerprint)
    lock = LOCK.read_text(encoding="utf-8") if LOCK.is_file() else ""
    if changed := changed_since(read_yaml(PARAMS_FILE), lock):
        raise InputError(
            f"publish: DVC last ran with another {changed} than {PARAMS_FILE} has; run dvc repro"
        )
    if reason := stale(lock):
        raise InputError(f"publish: {reason}")


def _tables_of(experiments: Sequence[str], figures: Sequence[str]) -> dict[str, list[str]]:
    """Return by figure the tables of data/results that it is drawn from; InputError if there is no such."""
    read: list[str] = []

    def table(name: str) -> pd.DataFrame:
        read.append(name)
        return read_table(RESULTS / f"{name}.csv", "aggregate")

    of_sweep = dict(sweep_figures(experiments, table)) if figures else {}
    of_sweep.pop("own_metrics", None)  # of metrics that published tables, and who reads them, do not have
    tables = {}
    for name in figures:
        if name not in of_sweep:
            raise InputError(f"--figure {name}: no figure of this sweep; take of {', '.join(of_sweep)}")
        read.clear()
        of_sweep[name]()
        tables[name] = sorted({"runs", *read})
    return tables


def _copy_rows(source: Path, folder: Path, wanted: Callable[[Mapping[str, str]], bool]) -> None:
    """Copy a table's wanted rows to a folder, unchanged."""
    with (
        source.open(newline="", encoding="utf-8") as file,
        (folder / source.name).open("w", newline="", encoding="utf-8") as target,
    ):
        rows = csv.DictReader(file)
        writer = csv.DictWriter(target, rows.fieldnames or [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for row in rows if wanted(row))
