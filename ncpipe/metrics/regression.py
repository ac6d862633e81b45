"""Measure neural regression collapse, where the targets are vectors [Andriopoulos et al. 2024, sec. 3].

N  samples    d  feature width    t  numbers of a target
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from ncpipe.datasets.targets import check_not_constant, check_vectors
from ncpipe.datasets.tensors import Array
from ncpipe.metrics.catalogue import REGRESSION_FAMILIES
from ncpipe.metrics.checks import as_tensors, by_split, check_finite, check_shape, check_widths
from ncpipe.metrics.entry import WEIGHTS as WHERE_WEIGHTS
from ncpipe.metrics.losses import logits_of
from ncpipe.metrics.measurements import Measurement, Measurements, rows_of
from ncpipe.metrics.nrc import principal_axes
from ncpipe.metrics.sample_statistics import check_classifier
from ncpipe.metrics.table import LAST_LAYER, TRAIN, WEIGHTS, measure_matrix, values_of
from ncpipe.system.errors import InputError

OF_WEIGHTS = [family for family in REGRESSION_FAMILIES if family.entries[0].where == WHERE_WEIGHTS]
OF_SAMPLES = [family for family in REGRESSION_FAMILIES if family not in OF_WEIGHTS]


def measure_regression(
    features: Array,
    targets: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    test_features: Array | None = None,
    test_targets: Array | None = None,
) -> Measurements:
    """Return NRC1 to NRC3 and the relative error of features (N, d) with targets (N, t), all in float64.

    weight (t, d), bias (t,): the last layer; without it there are no `nrc2`, NRC3 and `relative_mse`. Raises
    InputError on shapes that do not fit, on targets that are no floats or constant, and on NaN and infinity.
    """
    splits = by_split(features, targets, test_features, test_targets, "targets")
    layer = [None if array is None else array.cpu() for array in as_tensors(weight=weight, bias=bias)]
    weight, bias = (
        array if array is None or array.is_floating_point() else array.double() for array in layer
    )
    for split, arrays in splits.items():
        _check_split(*arrays, weight, bias, split)
    for name, widths in zip(("features", "targets"), zip(*splits.values(), strict=True), strict=True):
        check_widths(widths, name)
    on_cpu = {split: (rows.cpu(), vectors.cpu()) for split, (rows, vectors) in splits.items()}
    return Measurements(measure_vectors(on_cpu, weight, bias))


def measure_vectors(
    splits: Mapping[str, tuple[Tensor, Tensor]],
    weight: Tensor | None,
    bias: Tensor | None,
    layer: str = LAST_LAYER,
    reader: Tensor | None = None,
) -> Iterator[Measurement]:
    """Yield the same of features (N, d) and targets (N, t) by split, unchecked; NaN for NaN features.

    weight (t, d), bias (t,): of the last layer. reader (m, d): the matrix that an inner layer enters, if any.
    """
    if weight is not None:
        yield from measure_matrix(layer, weight)
        targets = splits[TRAIN][1]
        if targets.shape[1] > 1:  # of one number any W has the form
            yield from rows_of(layer, WEIGHTS, values_of(OF_WEIGHTS, weight=weight, targets=targets))
    for split, (features, targets) in splits.items():
        arguments: dict[str, Any] = {"features": features, "targets": targets, "length": targets.shape[1]}
        arguments["signal"] = principal_axes(features)
        if weight is not None:
            arguments |= {"weight": weight, "predictions": logits_of(features, weight, bias)}
        if (matrix := reader if weight is None else weight) is not None:
            arguments["reader"] = matrix
        yield from rows_of(layer, split, values_of(OF_SAMPLES, **arguments))


def _check_split(
    features: Tensor, targets: Tensor, weight: Tensor | None, bias: Tensor | None, name: str
) -> None:
    """Raise InputError unless features (N, d) and targets (N, t) of a split fit each other and the layer."""
    check_shape(features, name)
    if not features.is_floating_point():
        raise InputError(f"{name} features must be floats, not {features.dtype}")
    check_vectors(targets, f"{name} targets")
    check_finite(f"{name} targets", targets)
    if name == TRAIN:
        check_not_constant(targets, f"{name} targets")
    if len(features) != len(targets):
        raise InputError(f"{len(features)} {name} features and {len(targets)} targets; they belong together")
    check_classifier(targets.shape[1], features.shape[1], weight, bias)
    for title, array in ((f"{name} features", features), ("weight", weight), ("bias", bias)):
        check_finite(title, array)
