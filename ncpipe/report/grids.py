"""Tables of a page: what a reader sees of them, and the whole of them as a file behind a link."""

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Cell:
    """text: as it is shown. value: what it is sorted by, where that is a number."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Grid:
    """A table of the page. csv: the address of all of it, with every digit; empty where there is none."""

    name: str
    title: str
    note: str
    columns: list[str]
    rows: list[list[Cell]]
    csv: str


def grid(
    name: str, title: str, table: pd.DataFrame, columns: Mapping[str, str], note: str = "", csv: bytes = b""
) -> Grid:
    """Those of the columns (by name, with their headings) that the table has."""
    kept = {column: heading for column, heading in columns.items() if column in table}
    rows = [list(map(cell, row)) for row in table[list(kept)].itertuples(index=False, name=None)]
    return Grid(name, title, note, list(kept.values()), rows, data_uri(csv) if csv else "")


def cell(value: object) -> Cell:
    """Numbers to four digits; what is missing is empty."""
    if isinstance(value, bool) or type(value).__name__ == "bool":
        return Cell("yes" if value else "no")
    if isinstance(value, int | float) or hasattr(value, "dtype"):
        number = float(value)  # type: ignore[arg-type]
        return Cell("" if math.isnan(number) else shown(number), None if math.isnan(number) else number)
    return Cell("" if value is None else str(value))


def shown(number: float) -> str:
    return f"{number:.4g}".replace("-", "−")


def data_uri(csv: bytes) -> str:
    """A CSV file as an address that holds all of it."""
    return "data:text/csv;charset=utf-8;base64," + base64.b64encode(csv).decode("ascii")
