"""Measure the features in one file, an .npz or .safetensors of named arrays."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from ncpipe.datasets.array_files import Names, read_arrays
from ncpipe.metrics.checks import check_arrays, count_classes
from ncpipe.metrics.measurements import Measurements
from ncpipe.metrics.table import TEST, TRAIN, measure
from ncpipe.metrics.vocabulary import DECISIONS, measure_token_arrays
from ncpipe.system.errors import InputError, MeasurementWarning

REQUIRED = ("features", "labels")
OPTIONAL = ("weight", "bias", "test_features", "test_labels")
# The names of these arrays in the pipeline's files below data/features.
PIPELINE = {f"{s}.{kind}": f"{p}{kind}" for s, p in (("train", ""), ("test", "test_")) for kind in REQUIRED}


def check_labels(labels: Tensor) -> None:
    """Raise InputError if there are fewer than two classes, or classes without samples."""
    if count_classes(labels) < 2:
        raise InputError("labels: 1 class; collapse needs at least 2")


NAMES = Names(
    REQUIRED,
    OPTIONAL,
    PIPELINE,
    passed_over=("penalty.", "gradient.", "target.", "layers/"),
    labels={"features": "labels", "test_features": "test_labels"},
    check_labels=check_labels,
)
# Many tokens of a vocabulary never occur.
TOKEN_NAMES = replace(NAMES, check_labels=lambda labels: None)


@dataclass(frozen=True)
class MeasuredFile:
    """The values of a file's arrays, with warnings of what says little and of arrays that nothing reads.

    samples, width, classes: N, d and K of what was measured on the training split.
    """

    values: Measurements
    warnings: list[str]
    samples: int
    width: int
    classes: int


def measure_file(
    path: str | Path,
    *,
    classes: Literal["all", "present"] = "all",
    min_per_class: int = 1,
    decisions: int = DECISIONS,
) -> Measurements:
    """Return every metric of the arrays in an .npz or .safetensors file.

    Args:
        path: holds features (N, d) and labels (N,); where there are any, weight (K, d), bias (K,),
            test_features (M, d) and test_labels (M,). A study's files below data/features do.
        classes: `all`, each with a sample; `present` for those with at least `min_per_class` samples, as
            where classes are tokens of a vocabulary.
        decisions: samples that NC4, `nc3_cosine` and margins are taken on where classes are `present`.

    Raises InputError for a file that cannot be read or measured, and warns (MeasurementWarning) of what can
    be measured but says little.
    """
    if classes not in ("all", "present"):
        raise InputError(f"classes: {classes!r} is unknown; take 'all' or 'present'")
    found = measure_named(Path(path), (min_per_class, decisions) if classes == "present" else None)
    for message in found.warnings:
        warnings.warn(message, MeasurementWarning, stacklevel=2)
    return found.values


def measure_named(path: Path, present: tuple[int, int] | None = None) -> MeasuredFile:
    """Return the same with everything that `ncpipe metrics` prints of it.

    present: least samples of a class and decisions, of `present` classes; None for all classes.
    """
    arrays, ignored = read_arrays(path, NAMES if present is None else TOKEN_NAMES)
    try:
        checked = _checked(arrays)
        if present is None:
            values, found = measure(*checked), _warnings(arrays)
        else:
            least, decisions = present
            values = measure_token_arrays(*checked, min_per_class=least, decisions=decisions)
            found = []
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if ignored:
        found.insert(0, f"ignored {', '.join(ignored)}; the known arrays are {', '.join(NAMES.known)}")
    samples, width = arrays["features"].shape
    if present is None:
        return MeasuredFile(values, found, samples, width, _count_classes(arrays))
    counted = values.select(split=TRAIN)
    return MeasuredFile(values, found, int(counted["tokens"]), width, int(counted["classes"]))


def _checked(arrays: dict[str, Tensor]) -> tuple[Tensor, Tensor, *tuple[Tensor | None, ...]]:
    """Return the arrays in the order of `measure`; raise InputError if widths differ."""
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
    return list(dict.fromkeys(found))  # those about classes and width appear for both splits


def _count_classes(arrays: dict[str, Tensor]) -> int:
    return len(arrays["weight"]) if "weight" in arrays else count_classes(arrays["labels"])
