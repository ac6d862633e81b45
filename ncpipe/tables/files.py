"""Tables from the pipeline's CSV files."""

from pathlib import Path

import pandas as pd

from ncpipe.errors import InputError


def present(path: Path, stage: str) -> Path:
    """The path of a file that `stage` writes; InputError if it is missing."""
    if not path.is_file():
        raise InputError(f"{path}: not found; run dvc repro (stage {stage})")
    return path


def read_table(path: Path, stage: str) -> pd.DataFrame:
    """A CSV file that `stage` writes; InputError names the file if it is missing or damaged."""
    try:
        return pd.read_csv(present(path, stage))
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: damaged ({reason}); delete it and run dvc repro") from None
