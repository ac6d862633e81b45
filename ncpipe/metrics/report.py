"""Print measurements as a table, as JSON or as CSV."""

import csv
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TextIO

from rich.console import Console
from rich.table import Table

from ncpipe.metrics.catalogue import CATALOGUE, UNKNOWN, entry, one_of_a_spectrum

PLAIN_WIDTH = 160  # columns where no terminal says how many there are


class Row(Protocol):
    """The fields of a `Measurement` that are printed."""

    @property
    def layer(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def metric(self) -> str: ...
    @property
    def value(self) -> float: ...


def print_measurements(rows: Iterable[Row], file: TextIO | None = None) -> None:
    """Print a table per layer, grouped NC0 to NC4, with the value at collapse and the meaning.

    Boxed on a terminal; elsewhere plain columns that neither wrap nor colour.
    """
    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        console = Console(file=file, highlight=False, width=PLAIN_WIDTH)
    rows = list(rows)
    shown = [row for row in rows if not one_of_a_spectrum(row.metric)]
    for layer in dict.fromkeys(row.layer for row in shown):
        console.print(_table(layer, [row for row in shown if row.layer == layer], console.is_terminal))
    if len(shown) < len(rows):
        console.print("collapse: the value at collapse. Singular values are in --json and --csv.")


def write_json(rows: Iterable[Row], facts: dict[str, object]) -> None:
    """Write one strict JSON object: `facts` and `measurements`, records of layer, split, metric and value.

    JSON has neither infinity nor NaN: these values are the strings "inf", "-inf" and "nan".
    """
    records = [_record(row) | {"value": _strict(row.value)} for row in rows]
    print(json.dumps(facts | {"measurements": records}, indent=2, allow_nan=False))


def write_csv(rows: Iterable[Row]) -> None:
    """Write the columns layer, split, metric and value, with every digit of the value."""
    writer = csv.DictWriter(sys.stdout, ["layer", "split", "metric", "value"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(_record(row) for row in rows)


def _record(row: Row) -> dict[str, object]:
    return {"layer": row.layer, "split": row.split, "metric": row.metric, "value": row.value}


def _strict(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _table(layer: str, rows: Sequence[Row], boxed: bool) -> Table:
    splits = sorted(dict.fromkeys(row.split for row in rows), key=lambda split: split == "weights")
    values = {(row.metric, row.split): row.value for row in rows}
    table = Table("", title=f"layer {layer}", title_justify="left", title_style="bold")
    if not boxed:
        table.box = None
    table.add_column("metric", no_wrap=True)
    for split in splits:
        table.add_column(split, justify="right", no_wrap=True)
    table.add_column("collapse", justify="right")
    table.add_column("meaning")
    for group, members in _groups({row.metric for row in rows}):
        for name in members:
            known = entry(name)
            cells = [number(values[name, split]) if (name, split) in values else "" for split in splits]
            head, end = group if name == members[0] else "", name == members[-1]
            table.add_row(head, name, *cells, known.collapse, known.meaning, end_section=end)
    return table


def _groups(names: set[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each group with its metrics, in the order of the catalogue."""
    for group in dict.fromkeys(metric.group for metric in CATALOGUE.values()):
        if members := [name for name, m in CATALOGUE.items() if m.group == group and name in names]:
            yield group, members
    if unknown := sorted(names - set(CATALOGUE)):
        yield UNKNOWN.group, unknown


def number(value: float) -> str:
    """Return a value with four significant digits: 0.0123, 1.5e-07, inf, nan."""
    return f"{value:.4g}"
