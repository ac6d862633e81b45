"""Print every collapse metric of the features in one file (`ncpipe metrics`); needs no params.yaml.

`ncpipe.metrics.table` and `ncpipe.metrics.vocabulary` compute them.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from ncpipe.datasets.array_files import Names, read_arrays
from ncpipe.metrics.checks import check_arrays, count_classes
from ncpipe.metrics.regression import measure_regression
from ncpipe.metrics.report import print_measurements, write_csv, write_json
from ncpipe.metrics.table import TEST, TRAIN, Measurement, measure_arrays
from ncpipe.metrics.vocabulary import measure_token_arrays
from ncpipe.system.console import say
from ncpipe.system.errors import InputError

REQUIRED = ("features", "labels")
OPTIONAL = ("weight", "bias", "test_features", "test_labels")
VECTORS = ("targets", "test_targets")  # in place of labels, for regression
# The names of these arrays in the pipeline's files below data/features.
PIPELINE = {
    f"{s}.{kind}": f"{p}{kind}"
    for s, p in (("train", ""), ("test", "test_"))
    for kind in (*REQUIRED, VECTORS[0])
}


def check_labels(labels: Tensor) -> None:
    """Raise InputError if there are fewer than two classes, or classes without samples."""
    if count_classes(labels) < 2:
        raise InputError("labels: 1 class; collapse needs at least 2")


NAMES = Names(
    REQUIRED[:1],
    (*REQUIRED[1:], *OPTIONAL, *VECTORS),
    PIPELINE,
    passed_over=("penalty.", "gradient.", "target.", "layers/"),
    labels={"features": "labels", "test_features": "test_labels"},
    check_labels=check_labels,
)


# Many tokens of a vocabulary never occur.
TOKEN_NAMES = replace(NAMES, check_labels=lambda labels: None)


@dataclass(frozen=True)
class Present:
    """Selects the classes with at least `min_per_class` samples; `decisions` samples are drawn for NC4."""

    min_per_class: int
    decisions: int


def print_metrics(path: Path, form: Literal["table", "json", "csv"], present: Present | None = None) -> None:
    """Print the metrics of the arrays in an .npz or .safetensors file; warnings go to standard error.

    present: selects the classes; None for all, each of which must have a sample.
    """
    arrays, ignored = read_arrays(path, NAMES if present is None else TOKEN_NAMES)
    vectors = _has_vectors(path, arrays, ignored, present)
    try:
        if vectors:
            rows, warnings = measure_regression(*_in_order(arrays, "targets")), []
        elif present is None:
            rows, warnings = measure_arrays(*_checked(arrays)), _warnings(arrays)
        else:
            rows, warnings = measure_token_arrays(*_checked(arrays), **asdict(present)), []
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if ignored:
        warnings.insert(0, f"ignored {', '.join(ignored)}; the known arrays are {', '.join(NAMES.known)}")
    for warning in warnings:
        say(f"ncpipe: {path}: {warning}")
    if form == "csv":
        write_csv(rows)
    elif form == "json":
        facts = _facts_of_vectors(arrays) if vectors else _facts(arrays, rows, present)
        write_json(rows, facts | {"warnings": warnings})
    else:
        print_measurements(rows)


def _has_vectors(
    path: Path, arrays: dict[str, Tensor], ignored: Sequence[str], present: Present | None
) -> bool:
    """Return whether the file is one of regression; raise InputError unless it has either kind of targets."""
    classes = [name for name in ("labels", "test_labels") if name in arrays]
    vectors = [name for name in VECTORS if name in arrays]
    if classes and vectors:
        raise InputError(f"{path}: has {classes[0]} and {vectors[0]}; leave out one of them")
    if vectors and present is not None:
        raise InputError(f"{path}: has {vectors[0]}, of regression, where classes cannot be chosen")
    if not {"labels", "targets"} & arrays.keys():
        raise InputError(f"{path}: has no 'labels'; it has {', '.join([*arrays, *ignored])}")
    return bool(vectors)


def _in_order(arrays: dict[str, Tensor], answers: str) -> tuple[Tensor, Tensor, *tuple[Tensor | None, ...]]:
    """Return the arrays in the order of `measure_arrays` and `measure_regression`."""
    optional = (arrays.get(name) for name in (*OPTIONAL[:3], f"test_{answers}"))
    return arrays["features"], arrays[answers], *optional


def _checked(arrays: dict[str, Tensor]) -> tuple[Tensor, Tensor, *tuple[Tensor | None, ...]]:
    """Return the arrays in that order; raise InputError if widths differ."""
    both = [arrays[name] for name in ("features", "test_features") if name in arrays]
    widths = [tuple(tensor.shape[1:]) for tensor in both]
    if len(set(widths)) > 1:
        raise InputError(f"features and test_features differ in width: {widths[0]} and {widths[1]}")
    return _in_order(arrays, "labels")


def _warnings(arrays: dict[str, Tensor]) -> list[str]:
    classifier = arrays.get("weight"), arrays.get("bias")
    classes = _count_classes(arrays)
    warnings = check_arrays(arrays["features"], arrays["labels"], *classifier, classes, TRAIN)
    if "test_features" in arrays:
        warnings += check_arrays(arrays["test_features"], arrays["test_labels"], *classifier, classes, TEST)
    return list(dict.fromkeys(warnings))  # those about classes and width appear for both splits


def _count_classes(arrays: dict[str, Tensor]) -> int:
    return len(arrays["weight"]) if "weight" in arrays else count_classes(arrays["labels"])


def _facts_of_vectors(arrays: dict[str, Tensor]) -> dict[str, object]:
    samples, width = arrays["features"].shape
    return {"samples": samples, "width": width, "target_length": arrays["targets"].shape[1]}


def _facts(
    arrays: dict[str, Tensor], rows: Sequence[Measurement], present: Present | None
) -> dict[str, object]:
    samples, width = arrays["features"].shape
    if present is None:
        return {"samples": samples, "width": width, "classes": _count_classes(arrays)}
    counted = {row.metric: row.value for row in rows if row.split == TRAIN}
    return {"samples": int(counted["tokens"]), "width": width, "classes": int(counted["classes"])}
