"""Name the columns that identify runs, settings (runs that differ by seed) and lines of a figure.

Without an axis, metrics are plotted against depth, and a line is an experiment. In a study with an axis
(sweep.axis), they are plotted against x, the values of that key, and a line is an experiment at one depth.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

RUN = ["experiment", "depth", "seed"]
VARIED = ["axis", "x"]  # the key that a study varies besides depth, and its value


def run_keys(runs: pd.DataFrame) -> list[str]:
    """Return the columns that identify a run."""
    return [key for key in [*RUN[:-1], *VARIED, RUN[-1]] if key in runs]


def setting_keys(runs: pd.DataFrame) -> list[str]:
    """Return the columns that identify a setting: those of a run except its seed."""
    return [key for key in run_keys(runs) if key != "seed"]


def line_keys(runs: pd.DataFrame) -> list[str]:
    """Return the columns that the points of one line share."""
    return [key for key in setting_keys(runs) if key != x_column(runs)]


def line_names(table: pd.DataFrame) -> list[str]:
    """Return the name of each row's line (`name_of`)."""
    keys = line_keys(table)
    rows = table[keys].itertuples(index=False, name=None)
    return [name_of(dict(zip(keys, row, strict=True))) for row in rows]


def x_column(table: pd.DataFrame) -> str:
    """Return the column of the x axis: depth, or x in a study with an axis."""
    return VARIED[1] if VARIED[0] in table else "depth"


def symbol(runs: pd.DataFrame) -> str:
    """Return the name of the x axis in a sentence: L, or the key that the study varies."""
    return str(runs[VARIED[0]].iloc[0]) if VARIED[0] in runs else "L"


def distinct(table: pd.DataFrame, keys: list[str]) -> list[dict[str, Any]]:
    """Return the distinct values of the keys in a table, in the order of its rows, each as a dict."""
    rows = table[keys].drop_duplicates().itertuples(index=False, name=None)
    return [dict(zip(keys, row, strict=True)) for row in rows]


def rows_at(table: pd.DataFrame, keys: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows of a table whose columns have the values of `keys`."""
    for key, value in keys.items():
        table = table[table[key] == value]
    return table


def of_selected(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a table that are of selected runs."""
    keys = run_keys(runs)
    return table.merge(runs.loc[runs["selected"].astype(bool), keys], on=keys)


def name_of(keys: Mapping[str, Any]) -> str:
    """Return the short name of a line or a setting, for files: `rn1`, `rn1-L8` or `rn1-L8-x0.1`."""
    parts = {"depth": "L{}", "x": "x{:.12g}"}
    named = [parts[key].format(keys[key]) for key in parts if key in keys]
    return "-".join([str(keys["experiment"]), *named])
