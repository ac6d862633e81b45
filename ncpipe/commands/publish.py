"""Copy a sweep's tables and figures with their provenance to a folder for git (`ncpipe publish`)."""

import csv
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import psutil
import typer

from ncpipe import __version__
from ncpipe.claims.claim import ABSENT
from ncpipe.commands.plot import PUBLISHED, figures_of_published, read_published
from ncpipe.config.params import PARAMS_FILE, Params, load_params
from ncpipe.figures.labels import GAP_COLUMNS
from ncpipe.figures.save import save_figure
from ncpipe.figures.sweep import sweep_figures
from ncpipe.runs.fingerprint import RUN_RECORD
from ncpipe.runs.training_log import digest_in_log, training_times
from ncpipe.system.artifacts import (
    CLAIMS,
    CLAIMS_POINTS,
    CLAIMS_TABLE,
    PROVENANCE,
    RESULTS,
    RUNS,
    publish_folder,
    read_json,
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
PACKAGES = ("torch", "numpy", "scipy", "pandas", "scikit-learn", "matplotlib", "dvc")
RATES = "rates.txt"


def publish(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write; replaced if it exists.")],
    figure: Annotated[
        list[str] | None,
        typer.Option(help="Further figure of data/figures, such as layers; can be repeated."),
    ] = None,
) -> None:
    """Copy the sweep's tables, claims and parameters, with their provenance, to a folder for git.

    The tables have the rows of the figures' metrics, unchanged; history.csv has the epochs at which these
    were measured. The figures are drawn from these tables, as `ncpipe plot --from FOLDER` does. If there are
    claims, claims.csv has those that the sweep answers, and panels.csv the values behind those with a panel.
    Tables of further figures are copied whole.
    """
    params = load_params()
    whole = _tables_of(params.sweep.experiments, figure or ())
    if folder.exists() and not (folder / PROVENANCE).is_file():
        raise InputError(f"{folder}: exists and was not written by ncpipe publish; give a new folder")
    with publish_folder(folder) as partial:
        for name in (*PUBLISHED, "slopes_by_selection"):
            _copy_rows(present(RESULTS / f"{name}.csv", "aggregate"), partial, _is_shown)
        _copy_rows(present(RESULTS / "history.csv", "aggregate"), partial, _has_metrics)
        for name in sorted({name for names in whole.values() for name in names} - set(PUBLISHED)):
            shutil.copyfile(RESULTS / f"{name}.csv", partial / f"{name}.csv")
        if (ledger := CLAIMS / CLAIMS_TABLE).is_file():
            _copy_rows(ledger, partial, lambda row: row["verdict"] != ABSENT)
        if (panels := CLAIMS / CLAIMS_POINTS).is_file():
            shutil.copyfile(panels, partial / CLAIMS_POINTS)
        shutil.copyfile(present(RESULTS / RATES, "aggregate"), partial / RATES)
        shutil.copyfile(PARAMS_FILE, partial / PARAMS_FILE.name)
        write_json(partial / PROVENANCE, provenance(params) | ({"figures": whole} if whole else {}))
        for name, drawn in figures_of_published(read_published([partial])):
            save_figure(drawn, partial, name)
    say(f"publish: {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


def _tables_of(experiments: Sequence[str], figures: Sequence[str]) -> dict[str, list[str]]:
    """Return by figure the tables of data/results that it is drawn from; InputError if there is no such."""
    read: list[str] = []

    def table(name: str) -> pd.DataFrame:
        read.append(name)
        return read_table(RESULTS / f"{name}.csv", "aggregate")

    made = sweep_figures(experiments, table) if figures else {}
    found = {}
    for name in figures:
        if name not in made:
            raise InputError(f"--figure {name}: no figure of this sweep; take of {', '.join(made)}")
        read.clear()
        made[name]()
        found[name] = sorted({"runs", *read})
    return found


def provenance(params: Params) -> dict[str, Any]:
    """Return the source, versions, machine and training times of the sweep's results.

    Raises InputError if a run of the sweep has no folder.
    """
    runs = params.grid()
    records = [read_json(RUNS / run.path / RUN_RECORD) for run in runs]
    computed_with = [record["computed_with"] for record in records]
    run_of = {digest_in_log(record): run for record, run in zip(records, runs, strict=True)}
    return {
        "source": source(),
        "trained_with": {key: sorted({str(each[key]) for each in computed_with}) for key in computed_with[0]},
        "published_with": {"ncpipe": __version__, "python": platform.python_version()},
        "machine": machine(),
        "training": training_times(run_of, params.compute.threads),
    }


def machine() -> dict[str, Any]:
    """Return processor, cores, memory and system of this machine."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "system": platform.system(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect numbers and figures."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def source() -> dict[str, Any]:
    """Return the current commit and the files that differ from it; empty outside a git repository."""
    try:
        commit = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {"commit": commit, "changed": sorted(line[3:] for line in changed.splitlines())}


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip()


def _processor() -> str:
    """Return the processor's name, as far as the system reports it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _is_shown(row: Mapping[str, str]) -> bool:
    return row.get("metric", "loss_gap") in SHOWN


def _has_metrics(row: Mapping[str, str]) -> bool:
    return any(row[name] for name in SHOWN & row.keys())


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
