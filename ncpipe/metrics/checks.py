"""What can be wrong with arrays of features and labels, each said in one line."""

import math
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from ncpipe.errors import InputError
from ncpipe.metrics.meters import check_classifier
from ncpipe.metrics.statistics import check_batch

Array: TypeAlias = Tensor | np.ndarray


def as_tensor(array: Array) -> Tensor:
    """The array as a tensor that shares its memory where it can."""
    return array if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))


def check_arrays(
    features: Array,
    labels: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    classes: int | None = None,
    name: str = "train",
) -> list[str]:
    """Raise InputError on what cannot be measured; return warnings on what can be but says little.

    features (N, d), labels (N,), weight (K, d), bias (K,). classes: K, where neither the weight nor the
    labels should tell it. name: of the split, for the messages.
    """
    rows, wanted = as_tensor(features), as_tensor(labels)
    if rows.ndim != 2 or not len(rows) or not rows.shape[1]:
        raise InputError(
            f"{name} features must be (samples, width), neither of them 0, not {tuple(rows.shape)}"
        )
    classes = classes or (count_classes(wanted) if weight is None else len(weight))
    if classes < 2:
        raise InputError(f"{name} labels name {classes} class; collapse needs at least 2")
    check_batch(rows, wanted, classes, rows.shape[1])
    check_classifier(classes, rows.shape[1], *(None if a is None else as_tensor(a) for a in (weight, bias)))
    for title, array in ((f"{name} features", rows), ("weight", weight), ("bias", bias)):
        if array is not None:
            _check_finite(title, as_tensor(array))
    counts = torch.bincount(wanted.long(), minlength=classes)
    if empty := torch.nonzero(counts == 0).flatten().tolist():
        raise InputError(f"class {empty[0]} has no {name} samples; every class needs at least one")
    return _warnings(name, rows, counts)


def count_classes(labels: Tensor) -> int:
    """K = 1 + the largest label; 0 for no labels."""
    return int(labels.max()) + 1 if len(labels) else 0


def _check_finite(title: str, array: Tensor) -> None:
    step = max(1, 2**22 // max(1, array[0].numel()))
    for start in range(0, len(array), step):
        part = array[start : start + step]
        if math.isfinite(part.sum()):  # much faster than isfinite; an overflow only takes the slow way
            continue
        finite = torch.isfinite(part)
        if not bool(finite.all()):
            row = start + int(torch.nonzero(~finite)[0, 0])
            raise InputError(f"{title} hold NaN or inf, first in row {row} (counted from 0)")


def _warnings(name: str, rows: Tensor, counts: Tensor) -> list[str]:
    found = []
    if len(rows) < rows.shape[1]:
        found.append(
            f"{len(rows)} {name} samples of width {rows.shape[1]}: fewer samples than dimensions, "
            "so scatter matrices are singular and NC1 depends on the number of samples"
        )
    if single := torch.nonzero(counts == 1).flatten().tolist():
        found.append(
            f"{name} class {single[0]} has one sample ({len(single)} such classes): its own mean, "
            "so it counts as collapsed"
        )
    return found
