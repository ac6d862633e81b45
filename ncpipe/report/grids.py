"""Tables of a page: what a reader sees of them, and the whole of them as a file behind a link."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

import pandas as pd
from markupsafe import Markup

PLAIN = " !$'()*+,/:;<=>?@[]^`{|}"  # besides letters, digits and _.-~; no quotation mark, no &
COUNT = 1e6  # whole numbers below this are shown whole


@dataclass(frozen=True)
class Cell:
    """text: as it is shown. value: what it is sorted by, where that is a number. full: every digit, for who
    points at it. note: a second, smaller line."""

    text: str
    value: float | None = None
    full: str = ""
    note: str = ""


@dataclass(frozen=True)
class Grid:
    """A table of the page. csv: the address of all of it, with every digit; empty where there is none.

    folded: the line behind which the table is, if it is not to be seen at once.
    """

    name: str
    title: str
    note: str
    columns: list[str]
    rows: list[list[Cell]]
    csv: str
    folded: str = ""


def grid(
    name: str, title: str, table: pd.DataFrame, columns: Mapping[str, str], note: str = "", csv: bytes = b""
) -> Grid:
    """Those of the columns (by name, with their headings) that the table has."""
    kept = {column: heading for column, heading in columns.items() if column in table}
    rows = [list(map(cell, row)) for row in table[list(kept)].itertuples(index=False, name=None)]
    return Grid(name, title, note, list(kept.values()), rows, data_uri(csv) if csv else "")


def cell(value: object) -> Cell:
    """Numbers to three digits, all of them in `full`; what is missing is empty."""
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
    """Return three significant digits; counts whole."""
    whole = number.is_integer() and abs(number) < COUNT
    return (f"{number:.0f}" if whole else f"{number:.3g}").replace("-", "−")


def estimate(value: float, low: float, high: float) -> Cell:
    """A value as −0.373 [−0.43, −0.317]; without an interval where there is none or it has no width."""
    if math.isnan(value):
        return Cell("")
    if math.isnan(low) or low == high:
        return cell(value)
    text = f"{shown(value)} [{shown(low)}, {shown(high)}]"
    return Cell(text, value, f"{value!r} [{low!r}, {high!r}]")


def data_uri(file: bytes, kind: str = "text/csv;charset=utf-8") -> Markup:
    """Return an address that holds the whole of a text file, for a double-quoted attribute. kind: media type.

    Percent signs stand for what an address or such an attribute cannot hold; base64 would take a third more.
    """
    return Markup(f"data:{kind},{quote(file, safe=PLAIN)}")
