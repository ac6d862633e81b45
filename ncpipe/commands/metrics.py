"""Print every collapse metric of the features in one file (`ncpipe metrics`); needs no params.yaml."""

import csv
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from ncpipe.metrics.file import MeasuredFile, measure_named
from ncpipe.metrics.measurements import FIELDS, Measurements
from ncpipe.system.console import say


@dataclass(frozen=True)
class Present:
    """Selects the classes with at least `min_per_class` samples; `decisions` samples are drawn for NC4."""

    min_per_class: int
    decisions: int


def print_metrics(
    path: Path,
    form: Literal["table", "json", "csv"],
    present: Present | None = None,
    shots: Sequence[int] = (),
) -> None:
    """Print the metrics of the arrays in an .npz or .safetensors file; warnings go to standard error.

    present: selects the classes; None for all, each of which must have a sample. shots: of few-shot errors.
    """
    chosen = None if present is None else (present.min_per_class, present.decisions)
    found = measure_named(path, chosen, shots)
    for warning in found.warnings:
        say(f"ncpipe: {path}: {warning}")
    if form == "csv":
        write_csv(found.values)
    elif form == "json":
        write_json(found)
    else:
        print(found.values)


def write_json(found: MeasuredFile) -> None:
    """Write one strict JSON object: facts and `measurements`, records of layer, split, metric and value.

    JSON has neither infinity nor NaN: these values are the strings "inf", "-inf" and "nan".
    """
    records = [asdict(row) | {"value": _strict(row.value)} for row in found.values]
    facts = found.facts | {"warnings": found.warnings}
    print(json.dumps(facts | {"measurements": records}, indent=2, allow_nan=False))


def write_csv(rows: Measurements) -> None:
    """Write the columns layer, split, metric and value, with every digit of the value."""
    writer = csv.DictWriter(sys.stdout, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)


def _strict(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
