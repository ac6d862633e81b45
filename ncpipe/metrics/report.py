"""Print measurements as a table, as JSON or as CSV."""

import csv
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TextIO

from ncpipe.metrics.catalogue import CATALOGUE, UNKNOWN, entry, one_of_a_spectrum
from ncpipe.system.text_table import aligned


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
    """Print a table per layer, grouped NC0 to NC4, with the value at collapse and the meaning."""
    rows = list(rows)
    shown = [row for row in rows if not one_of_a_spectrum(row.metric)]
    for layer in dict.fromkeys(row.layer for row in shown):
        print(f"layer {layer}", *_table([row for row in shown if row.layer == layer]), sep="\n", file=file)
    if len(shown) < len(rows):
        print("collapse: the value at collapse. Singular values are in --json and --csv.", file=file)


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


def _table(rows: Sequence[Row]) -> list[str]:
    splits = sorted(dict.fromkeys(row.split for row in rows), key=lambda split: split == "weights")
    values = {(row.metric, row.split): number(row.value) for row in rows}
    table = [["", "metric", *splits, "collapse", "meaning"]]
    for group, members in _groups({row.metric for row in rows}):
        for name in members:
            head, known = group if name == members[0] else "", entry(name)
            cells = [values.get((name, split), "") for split in splits]
            table.append([head, name, *cells, known.collapse, known.meaning])
    return aligned(table, right=range(2, len(splits) + 3))


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
