"""Read the pipeline's CSV files as tables."""

from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

import pandas as pd

from ncpipe.system.artifacts import METRICS
from ncpipe.system.errors import InputError, cut

KEY = "experiment"  # a column of every table of these stages
KEYED = ("measure", "aggregate", "publish")
# Columns that hold names and sentences, whatever they look like: an experiment may be called None, a layer 1.
TEXT = (
    "about", "architecture", "author", "axis", "bound", "bound_detail", "expected", "experiment", "id",
    "initialisation", "kind", "label", "layer", "loss_name", "matrix", "metric", "name", "norm", "panel",
    "penalty_rule", "penalty_scope", "quantity", "ranks", "ranks_before", "reason", "ref", "scale",
    "selection", "series", "solution", "source", "split", "statement", "stood", "structure",
    "structure_last", "unusable", "verdict", "without", "xlabel",
)  # fmt: skip


def present(path: Path, stage: str) -> Path:
    """Return the path of a file that `stage` writes; raise InputError if it is missing."""
    if not path.is_file():
        raise InputError(f"{path}: not found; run dvc repro (stage {stage})")
    return path


def read_table(path: Path, stage: str) -> pd.DataFrame:
    """Read a CSV file that `stage` writes; raise InputError if it is missing or damaged."""
    present(path, stage)
    try:
        table = read_keyed(path) if stage in KEYED else read_csv(path)
    except ValueError as error:  # of pandas too, and of bytes that are no UTF-8
        reason = " ".join(str(error).split())
        again = f"run ncpipe {'publish again' if stage == 'publish' else f'repair {path}'}"
        raise InputError(cut(f"{path}: damaged ({reason}); {again}")) from None
    return table


def read_csv(source: Path | TextIO) -> pd.DataFrame:
    """Read CSV with the types it was written with: TEXT as text, and NaN in empty cells alone."""
    return pd.read_csv(source, dtype=dict.fromkeys(TEXT, "str"), keep_default_na=False, na_values=[""])


def read_keyed(source: Path | TextIO) -> pd.DataFrame:
    """Read CSV that has the column `experiment`.

    Raises ValueError for anything else, such as a table that a spreadsheet saved with semicolons.
    """
    table = read_csv(source)
    if KEY not in table.columns:
        raise ValueError(f"no column {KEY}")
    return table


def read_measured(name: str, experiments: Iterable[str]) -> pd.DataFrame:
    """Read one table that `measure` writes for each experiment, in the order of the experiments."""
    tables = [read_table(METRICS / experiment / f"{name}.csv", "measure") for experiment in experiments]
    return pd.concat([table for table in tables if len(table)] or tables, ignore_index=True)
