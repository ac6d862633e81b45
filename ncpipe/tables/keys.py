"""The columns that name runs, the seeds of one place, and the points of one line.

A study without an axis holds metrics against depth: a line is an experiment. One with an axis (sweep.axis)
holds them against x, the values of that key: a line is an experiment at one depth.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

RUN = ["experiment", "depth", "seed"]
VARIED = ["axis", "x"]  # the key that a study varies besides depth, and its value


def run_keys(runs: pd.DataFrame) -> list[str]:
    """The columns that name a run."""
    return [key for key in [*RUN[:-1], *VARIED, RUN[-1]] if key in runs]


def place_keys(runs: pd.DataFrame) -> list[str]:
    """The columns that seeds have in common."""
    return [key for key in run_keys(runs) if key != "seed"]


def line_keys(runs: pd.DataFrame) -> list[str]:
    """The columns that the points of one line have in common."""
    return [key for key in place_keys(runs) if key != abscissa(runs)]


def abscissa(table: pd.DataFrame) -> str:
    """The column that metrics are held against."""
    return VARIED[1] if VARIED[0] in table else "depth"


def symbol(runs: pd.DataFrame) -> str:
    """What the abscissa is called in a sentence: L, or the key that is the axis."""
    return str(runs[VARIED[0]].iloc[0]) if VARIED[0] in runs else "L"


def distinct(table: pd.DataFrame, keys: list[str]) -> list[dict[str, Any]]:
    """What the keys are in the rows of a table, each once, in their order."""
    rows = table[keys].drop_duplicates().itertuples(index=False, name=None)
    return [dict(zip(keys, row, strict=True)) for row in rows]


def rows_at(table: pd.DataFrame, place: Mapping[str, Any]) -> pd.DataFrame:
    """The rows of a run, a place or a line."""
    for key, value in place.items():
        table = table[table[key] == value]
    return table


def name_of(place: Mapping[str, Any]) -> str:
    """Short name of a line or a place, for files: `rn1`, `rn1-L8` or `rn1-L8-x0.1`."""
    parts = {"depth": "L{}", "x": "x{:g}"}
    named = [parts[key].format(place[key]) for key in parts if key in place]
    return "-".join([str(place["experiment"]), *named])
