"""Read the pipeline's CSV files as tables."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from ncpipe.system.artifacts import METRICS
from ncpipe.system.errors import InputError


def present(path: Path, stage: str) -> Path:
    """Return the path of a file that `stage` writes; raise InputError if it is missing."""
    if not path.is_file():
        raise InputError(f"{path}: not found; run dvc repro (stage {stage})")
    return path


def read_table(path: Path, stage: str) -> pd.DataFrame:
    """Read a CSV file that `stage` writes; raise InputError if it is missing or damaged."""
    try:
        return pd.read_csv(present(path, stage))
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: damaged ({reason}); run ncpipe repair {path}") from None


def read_measured(name: str, experiments: Iterable[str]) -> pd.DataFrame:
    """Read one table that `measure` writes for each experiment, in the order of the experiments."""
    tables = [read_table(METRICS / experiment / f"{name}.csv", "measure") for experiment in experiments]
    return pd.concat(tables, ignore_index=True)
