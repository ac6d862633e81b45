"""Print every collapse metric of the features in one file (`ncpipe metrics`); needs no params.yaml."""

import csv
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ncpipe.metrics.measurements import FIELDS, Measurements
from ncpipe.system.console import say
from ncpipe.system.errors import InputError

if TYPE_CHECKING:
    from ncpipe.metrics.file import MeasuredFile


def print_metrics(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help=".npz or .safetensors file with features (N,d) and labels (N,); optional: weight (K,d), "
            "bias (K,), test_features, test_labels, ood_features.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with inf and nan as strings.")] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV with the columns layer, split, metric, value.")
    ] = False,
    classes: Annotated[
        Literal["all", "present"],
        typer.Option(help="`present` leaves out classes without samples, as in a vocabulary of tokens."),
    ] = "all",
    min_per_class: Annotated[
        int | None,
        typer.Option(min=1, help="Leave out classes with fewer samples; implies --classes present."),
    ] = None,
    decisions: Annotated[
        int,
        typer.Option(min=1, help="With --classes present: samples drawn for NC3, NC4 and margins."),
    ] = 2000,
    shots: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Also print directional CDNV, and nearest-mean errors of so many samples of each class with "
            "their bounds, as of a frozen encoder; may be repeated.",
        ),
    ] = None,
) -> None:
    """Print every collapse metric (NC1 to NC4) of features stored in FILE; needs no params.yaml.

    Warnings go to standard error.
    """
    if as_json and as_csv:
        raise InputError("metrics: give --json or --csv, not both")
    from ncpipe.metrics.file import measure_named  # imports torch

    present = classes == "present" or min_per_class is not None
    measured = measure_named(file, (min_per_class or 1, decisions) if present else None, shots or ())
    for warning in measured.warnings:
        say(f"ncpipe: {file}: {warning}")
    if as_csv:
        write_csv(measured.values)
    elif as_json:
        write_json(measured)
    else:
        print(measured.values)


def write_json(measured: "MeasuredFile") -> None:
    """Write one strict JSON object: facts and `measurements`, records of layer, split, metric and value.

    JSON has neither infinity nor NaN: these values are the strings "inf", "-inf" and "nan".
    """
    records = [asdict(row) | {"value": _json_value(row.value)} for row in measured.values]
    facts = measured.facts | {"warnings": measured.warnings}
    print(json.dumps(facts | {"measurements": records}, indent=2, allow_nan=False))


def write_csv(rows: Measurements) -> None:
    """Write the columns layer, split, metric and value, with every digit of the value."""
    writer = csv.DictWriter(sys.stdout, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)


def _json_value(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
