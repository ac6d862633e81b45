"""Read the tables that a stage has written, of a study's own (`ncpipe.commands.stage`) or of every study."""

import io
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from ncpipe.system.artifacts import METRICS, RESULTS
from ncpipe.system.errors import InputError
from ncpipe.tables.files import KEY, read_csv

DATA = Path("data")


def stage_texts(stage: str) -> Mapping[str, str]:
    """Return each table of a stage as CSV, by name; the rows of all experiments are in one table.

    Numbers are as they were written. Empty if the stage has written none.
    """
    folder = DATA / stage
    files = sorted(folder.glob("*.csv")) or sorted(folder.glob("*/*.csv"))
    names = dict.fromkeys(file.stem for file in files)
    return {name: _joined([file for file in files if file.stem == name]) for name in names}


def stage_table(stage: str, table: str | None = None) -> pd.DataFrame:
    """Return a table of a folder of data/: of a stage of the study, or of `results` and `metrics`.

    By default it is the one that is named as the stage. The rows of all experiments are in one table. Raises
    InputError if it is missing.
    """
    table = stage if table is None else table
    texts = stage_texts(stage)
    if table not in texts:
        raise InputError(f"{DATA / stage}: has no {table}.csv; run dvc repro (stage {stage})")
    if DATA / stage in (METRICS, RESULTS):
        return read_csv(io.StringIO(texts[table]))
    return parse_table(texts[table])


def parse_table(text: str) -> pd.DataFrame:
    """Return the table of a stage's CSV; of its columns only `experiment` is text whatever it looks like."""
    source = io.StringIO(text)
    return pd.read_csv(source, dtype={KEY: "str"}, keep_default_na=False, na_values=[""])


def _joined(files: list[Path]) -> str:
    """Return the rows of several CSV files under one header, cells unchanged."""
    tables = [pd.read_csv(file, dtype="str", keep_default_na=False) for file in files]
    return pd.concat(tables).to_csv(index=False, lineterminator="\n")
