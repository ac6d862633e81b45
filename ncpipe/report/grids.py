"""Define the report's tables: cells with rounded numbers, and a link to a file with all digits."""

import base64
import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd
from markupsafe import Markup

COUNT = 1e6  # whole numbers below this are shown whole
# Headings of columns that are not their names.
HEADINGS = {
    "depth": "L",
    "selected": "used",
    "gradient_norm": "gradient",
    "last_train_error": "train error",
    "std": "standard deviation",
}


@dataclass(frozen=True)
class Cell:
    """Holds a cell of a table.

    text: what is shown. value: a number to sort by. full: all digits or an explanation, shown on hover.
    note: a second line in smaller type. tone: `good`, `bad` or `open`, which has a colour.
    """

    text: str
    value: float | None = None
    full: str = ""
    note: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Grid:
    """Holds a table of the page.

    csv: data URI of a file with the whole table and all digits; empty without one.
    folded: a line that hides the table until it is clicked; empty if the table is shown at once.
    """

    name: str
    title: str
    note: str
    columns: list[str]
    rows: list[list[Cell]]
    csv: str
    folded: str = ""

    @functools.cached_property
    def shown(self) -> list[int]:
        """Return the indices of the columns that have a text in some row."""
        return [i for i in range(len(self.columns)) if any(row[i].text or row[i].note for row in self.rows)]


def grid(
    name: str, title: str, table: pd.DataFrame, columns: Iterable[str], note: str = "", csv: bytes = b""
) -> Grid:
    """Return a grid of those columns that a table has."""
    present = [column for column in columns if column in table]
    headings = [HEADINGS.get(column, column.replace("_", " ")) for column in present]
    rows = [list(map(cell, row)) for row in table[present].itertuples(index=False, name=None)]
    return Grid(name, title, note, headings, rows, data_uri(csv) if csv else "")


def cell(value: object) -> Cell:
    """Return a cell with three digits of a number, and all in `full`; empty for None, NaN."""
    if isinstance(value, Cell):
        return value
    if isinstance(value, bool) or type(value).__name__ == "bool":
        return Cell("yes" if value else "no")
    if isinstance(value, int | float) or hasattr(value, "dtype"):
        number = float(value)  # type: ignore[arg-type]
        if math.isnan(number):
            return Cell("")
        text = shown(number)
        return Cell(text, number, "" if float(text.replace("−", "-")) == number else repr(number))
    return Cell("" if value is None else str(value))


def shown(number: float) -> str:
    """Return a number with three significant digits; whole numbers below COUNT have all digits."""
    whole = number.is_integer() and abs(number) < COUNT
    return (f"{number:.0f}" if whole else f"{number:.3g}").replace("-", "−")


def estimate(value: float, low: float, high: float) -> Cell:
    """Return a value as −0.373 [−0.43, −0.317], without an interval that is NaN or has no width."""
    if math.isnan(value):
        return Cell("")
    if math.isnan(low) or low == high:
        return cell(value)
    text = f"{shown(value)} [{shown(low)}, {shown(high)}]"
    return Cell(text, value, f"{value!r} [{low!r}, {high!r}]")


def data_uri(file: bytes, kind: str = "text/csv;charset=utf-8") -> Markup:
    """Return a data URI of a file for an HTML attribute. kind: media type."""
    return Markup(f"data:{kind};base64,{base64.b64encode(file).decode()}")
