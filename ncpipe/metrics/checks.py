"""Check arrays of features and labels; every error and warning is one line."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ncpipe.datasets.tensors import Array, as_tensor
from ncpipe.metrics.geometry import simplex_fits
from ncpipe.metrics.sample_statistics import check_classifier
from ncpipe.metrics.statistics import REGRESSION, check_batch, check_every_class
from ncpipe.system.errors import InputError, shown

# Metrics whose value at collapse is that of the optimum for classes of equal size.
BALANCED = "nc2_*, nc3_*"
# Means over samples, not over classes.
BY_SAMPLE = (
    "nc1_trace_ratio, nc1_pinv, dnc1_trace_pinv, tcv, nc3_cosine, nc4_mismatch, ncc_error, margins, "
    "*_test_collapse"
)
# Distances to a frame of K directions that are equally far apart.
OF_SIMPLEX = "nc2_etf, nc2_identity, nc2_means, nc2_equiangular_*, nc3_duality"


def is_count(value: object) -> bool:
    """Return whether a value is a whole number above 0, of Python or NumPy; True is none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


def check_count(name: str, value: object, of: str = "") -> None:
    """Raise InputError unless the argument `name` is a whole number above 0. of: what it counts."""
    if not is_count(value):
        raise InputError(f"{name}: a whole number{' of ' * bool(of)}{of}, 1 or more, not {shown(value)}")


def as_tensors(**arrays: Array | None) -> Iterator[Tensor | None]:
    """Yield arrays, each by its name, as tensors, and None for None."""
    return (None if array is None else as_tensor(array, name) for name, array in arrays.items())


def by_split(
    features: Array,
    targets: Array,
    test_features: Array | None,
    test_targets: Array | None,
    name: str = "labels",
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return features and labels, or other targets, of `train` and of `test`, if it is there."""
    if (test_features is None) != (test_targets is None):
        raise InputError(f"test_features and test_{name} come together; give both or neither")
    splits = {"train": (as_tensor(features, "features"), as_tensor(targets, name))}
    if test_features is not None and test_targets is not None:
        splits["test"] = as_tensor(test_features, "test_features"), as_tensor(test_targets, f"test_{name}")
    return splits


def check_arrays(
    features: Array,
    labels: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    classes: int | None = None,
    name: str = "train",
) -> list[str]:
    """Raise InputError for arrays that cannot be measured; return warnings where metrics mean little.

    features (N, d), labels (N,), weight (K, d), bias (K,). classes: K, where neither the weight nor the
    labels should tell it. name: of the split, for the messages.
    """
    rows, targets = as_tensor(features, "features"), as_tensor(labels, "labels")
    check_shape(rows, name)
    weight, bias = as_tensors(weight=weight, bias=bias)
    classes = classes or count_classes(targets, weight)
    if classes < 2:
        raise InputError(f"{name} labels name {classes} class; collapse needs at least 2")
    check_batch(rows, targets, classes, rows.shape[1])
    check_classifier(classes, rows.shape[1], weight, bias)
    for title, array in ((f"{name} features", rows), ("weight", weight), ("bias", bias)):
        check_finite(title, array)
    counts = torch.bincount(targets.long(), minlength=classes)
    check_every_class(counts, name)
    return data_warnings(name, counts, rows.shape[1])


def check_shape(features: Tensor, name: str) -> None:
    """Raise InputError unless features are (N, d), neither of them 0. name: of the split."""
    if features.ndim != 2 or not features.numel():
        raise InputError(
            f"{name} features must be (samples, width), neither of them 0, not {tuple(features.shape)}"
        )


def check_outliers(ood: Array, features: Array, test: Array | None) -> Tensor:
    """Return ood (m, d) as a tensor; raise InputError where no score can compare it with test samples."""
    rows, train = as_tensor(ood, "ood"), as_tensor(features, "features")
    if test is None:
        raise InputError("ood: its scores are compared with those of test samples; give test features too")
    if rows.ndim != 2 or not len(rows) or rows.shape[1] != train.shape[1]:
        raise InputError(f"ood features are {tuple(rows.shape)}; they must be (samples, {train.shape[1]})")
    check_finite("ood features", rows)
    for name, other in (("train", train), ("test", as_tensor(test, "test_features"))):
        if rows.shape == other.shape and torch.equal(rows.to(other), other) and bool((rows != rows[0]).any()):
            raise InputError(f"ood features are the {name} features; give those of other data")
    return rows


def check_shots(shots: Sequence[int], episodes: int, labels: Tensor) -> None:
    """Raise InputError unless each class has more samples than there are shots, and there are episodes."""
    if len(set(shots)) < len(shots):
        raise InputError("shots: a number is listed twice; list each once")
    counts = torch.bincount(labels.long())
    least = int(counts.argmin())
    for count in shots:
        if not is_count(count):
            raise InputError(f"shots: whole numbers, 1 or more, not {count!r}")
        if count >= counts[least]:
            raise InputError(
                f"shots: class {least} has {int(counts[least])} samples; {count} shots leave none to decide"
            )
    check_count("episodes", episodes)


def check_integers(labels: Tensor) -> None:
    """Raise InputError unless labels are integers."""
    if labels.is_floating_point() or labels.is_complex():
        raise InputError(f"labels must be integers, one a sample, not {labels.dtype}{REGRESSION}")


def check_widths(splits: Sequence[Tensor], name: str = "features") -> None:
    """Raise InputError unless the features (N, d), or other arrays, of all splits have the same width."""
    widths = [array.shape[1] for array in splits if array.ndim == 2]  # others are refused by their own shape
    if len(set(widths)) > 1:
        raise InputError(f"train and test {name} differ in width: {widths[0]} and {widths[1]}")


def count_classes(labels: Tensor, weight: Tensor | None = None) -> int:
    """Return K: the weight's number of rows, or without one 1 + the largest label; 0 for no labels.

    Raises InputError for a weight that is no matrix, for labels that are no integers, and where their K is
    above their number, so that some class has no sample: what is made for each class would take memory for
    nothing.
    """
    if weight is not None:
        if weight.ndim != 2:
            shape = tuple(weight.shape)
            raise InputError(f"weight must have a row per output and a column per feature, not {shape}")
        return len(weight)
    check_integers(labels)
    count = labels.numel()
    classes = int(labels.max()) + 1 if count else 0
    if classes > count:
        raise InputError(
            f"labels go up to {classes - 1}, but only {count} samples have one; number the classes 0, 1, 2, "
            "..., each with a sample"
        )
    return classes


def check_finite(title: str, array: Tensor | None) -> None:
    """Raise InputError that names the first row (of a matrix or a vector) with a NaN or an infinity."""
    if array is None:
        return
    step = max(1, 2**22 // max(1, math.prod(array.shape[1:])))
    for start in range(0, len(array), step):
        part = array[start : start + step]
        part = part.float() if part.element_size() == 1 else part  # float8 has no sums
        if math.isfinite(part.sum()):  # much faster than isfinite; an overflow only takes the slow way
            continue
        finite = torch.isfinite(part)
        if not bool(finite.all()):
            row = start + int(torch.nonzero(~finite)[0, 0])
            raise InputError(f"{title} hold NaN or inf, first in row {row} (counted from 0)")


def data_warnings(name: str, counts: Tensor, width: int, numbers: Tensor | None = None) -> list[str]:
    """Return warnings of a split with these samples a class (K,) and features of this width.

    numbers (K,): what the classes are called, where that is not 0..K-1.
    """
    warnings = []
    samples = int(counts.sum())
    if samples < width:
        warnings.append(
            f"{samples} {name} samples of width {width}: fewer samples than dimensions, "
            "so scatter matrices are singular and NC1 depends on the number of samples"
        )
    if not simplex_fits(len(counts), width):
        warnings.append(
            f"{len(counts)} classes of width {width}: no simplex has more than {width + 1} corners there, so "
            f"{OF_SIMPLEX} are undefined (nan); gnc2_* and unc3_* say how even directions are"
        )
    if single := torch.nonzero(counts == 1).flatten().tolist():
        first = single[0] if numbers is None else int(numbers[single[0]])
        warnings.append(
            f"{name} class {first} has one sample ({len(single)} such classes): its own mean, "
            "so it counts as collapsed"
        )
    if (least := int(counts.min())) != (most := int(counts.max())):
        warnings.append(
            f"{name} classes are not balanced, {least} to {most} samples: "
            f"{BALANCED} need not go to 0 then, as the optimum is no simplex ETF; "
            f"{BY_SAMPLE} weigh classes by their samples"
        )
    return warnings
