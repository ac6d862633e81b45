"""Command metrics: every collapse metric of features in one file. No stage; it reads no params.yaml."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from ncpipe.datasets.array_files import Names, read_arrays
from ncpipe.metrics.checks import check_arrays, count_classes
from ncpipe.metrics.report import print_measurements, write_csv, write_json
from ncpipe.metrics.table import TEST, TRAIN, Measurement, measure_arrays
from ncpipe.metrics.vocabulary import measure_token_arrays
from ncpipe.system.console import say
from ncpipe.system.errors import InputError

REQUIRED = ("features", "labels")
OPTIONAL = ("weight", "bias", "test_features", "test_labels")
# How the pipeline's own files below data/features call them.
PIPELINE = {f"{s}.{kind}": f"{p}{kind}" for s, p in (("train", ""), ("test", "test_")) for kind in REQUIRED}


def check_labels(labels: Tensor) -> None:
    """Raise InputError where there are too few classes to collapse, or more than labels."""
    if count_classes(labels) < 2:
        raise InputError("labels name 1 class; collapse needs at least 2")


NAMES = Names(
    REQUIRED,
    OPTIONAL,
    PIPELINE,
    passed_over=("penalty.", "gradient.", "target.", "layers/"),
    labels={"features": "labels", "test_features": "test_labels"},
    check_labels=check_labels,
)


# Of tokens many never occur: classes are those that do.
TOKEN_NAMES = replace(NAMES, check_labels=lambda labels: None)


@dataclass(frozen=True)
class Present:
    """Classes are those with at least min_per_class samples; decisions: samples that NC4 is taken on."""

    min_per_class: int
    decisions: int


def print_metrics(path: Path, form: Literal["table", "json", "csv"], present: Present | None = None) -> None:
    """Measure the arrays of an .npz or .safetensors file; print to standard output, warnings to error.

    present: which classes count; None for all of them, each with a sample.
    """
    arrays, ignored = read_arrays(path, NAMES if present is None else TOKEN_NAMES)
    try:
        checked = _checked(arrays)
        if present is None:
            rows, warnings = measure_arrays(*checked), _warnings(arrays)
        else:
            least, decisions = present.min_per_class, present.decisions
            rows, warnings = measure_token_arrays(*checked, min_per_class=least, decisions=decisions), []
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if ignored:
        warnings.insert(0, f"not read: {', '.join(ignored)} (known: {', '.join(NAMES.known)})")
    for warning in warnings:
        say(f"ncpipe: {path}: {warning}")
    if form == "csv":
        write_csv(rows)
    elif form == "json":
        facts = _facts(arrays) if present is None else _facts_of_present(arrays, rows)
        write_json(rows, facts | {"warnings": warnings})
    else:
        print_measurements(rows)


def _checked(arrays: dict[str, Tensor]) -> tuple[Tensor, Tensor, *tuple[Tensor | None, ...]]:
    """Return the arrays in the order of `measure_arrays`; raise InputError where widths differ."""
    weight, bias, features, labels = (arrays.get(name) for name in OPTIONAL)
    widths = [tuple(tensor.shape[1:]) for tensor in (arrays["features"], features) if tensor is not None]
    if len(set(widths)) > 1:
        raise InputError(f"features and test_features differ in width: {widths[0]} and {widths[1]}")
    return arrays["features"], arrays["labels"], weight, bias, features, labels


def _warnings(arrays: dict[str, Tensor]) -> list[str]:
    classifier = arrays.get("weight"), arrays.get("bias")
    classes = _count_classes(arrays)
    found = check_arrays(arrays["features"], arrays["labels"], *classifier, classes, TRAIN)
    if "test_features" in arrays:
        found += check_arrays(arrays["test_features"], arrays["test_labels"], *classifier, classes, TEST)
    return list(dict.fromkeys(found))  # what is said of classes and width, once for both splits


def _count_classes(arrays: dict[str, Tensor]) -> int:
    return len(arrays["weight"]) if "weight" in arrays else count_classes(arrays["labels"])


def _facts(arrays: dict[str, Tensor]) -> dict[str, object]:
    samples, width = arrays["features"].shape
    return {"samples": samples, "width": width, "classes": _count_classes(arrays)}


def _facts_of_present(arrays: dict[str, Tensor], rows: Sequence[Measurement]) -> dict[str, object]:
    counted = {row.metric: row.value for row in rows if row.split == TRAIN}
    width = arrays["features"].shape[1]
    return {"samples": int(counted["tokens"]), "width": width, "classes": int(counted["classes"])}
