"""Measure neural regression collapse, where the targets are vectors [Andriopoulos et al. 2024, sec. 3].

N  samples    d  feature width    t  numbers of a target
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ncpipe.metrics.checks import Array, as_tensor, check_finite
from ncpipe.metrics.losses import logits_of
from ncpipe.metrics.measurements import Measurement, Measurements
from ncpipe.metrics.nrc import nrc1, nrc2, nrc3, relative_mse
from ncpipe.metrics.sample_statistics import check_classifier
from ncpipe.metrics.table import LAST_LAYER, TEST, TRAIN, WEIGHTS, measure_matrix
from ncpipe.system.errors import InputError


def measure_regression(
    features: Array,
    targets: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    test_features: Array | None = None,
    test_targets: Array | None = None,
) -> Measurements:
    """Return NRC1 to NRC3 and the relative error of features (N, d) with targets (N, t), all in float64.

    weight (t, d), bias (t,): the last layer; without it there are no NRC2, NRC3 and errors. Raises InputError
    on shapes that do not fit, on targets that are no floats or constant, and on NaN and infinity.
    """
    if (test_features is None) != (test_targets is None):
        raise InputError("test features and test targets come together; give both or neither")
    rows, offsets = (None if array is None else as_tensor(array) for array in (weight, bias))
    train = _checked(features, targets, rows, offsets, TRAIN)
    splits = {TRAIN: train}
    if test_features is not None and test_targets is not None:
        splits[TEST] = _checked(test_features, test_targets, rows, offsets, TEST)
        for what, own in (("features", 0), ("targets", 1)):
            lengths = [split[own].shape[1] for split in splits.values()]
            if lengths[0] != lengths[1]:
                raise InputError(f"train and test {what} differ in width: {lengths[0]} and {lengths[1]}")
    return Measurements(measure_vectors(splits, rows, offsets))


def measure_vectors(
    splits: Mapping[str, tuple[Tensor, Tensor]], weight: Tensor | None, bias: Tensor | None
) -> Iterator[Measurement]:
    """Yield the same of features (N, d) and targets (N, t) by split, unchecked; NaN for NaN features."""
    if weight is not None:
        yield from _of_weights(weight, splits[TRAIN][1])
    for split, (features, targets) in splits.items():
        yield from _of_samples(split, features, targets, weight, bias)


def check_target_batch(targets: Tensor, outputs: int) -> None:
    """Raise InputError unless targets of a batch are floats (n, t), t the model's outputs."""
    if not targets.is_floating_point() or targets.dim() != 2 or targets.shape[1] != outputs:
        raise InputError(
            f"targets are {targets.dtype} {tuple(targets.shape)}; they must be floats (n, {outputs}), as the "
            "model's outputs are"
        )


def check_targets(targets: Tensor, name: str = TRAIN) -> None:
    """Raise InputError unless targets (N, t) are finite floats that are not constant."""
    if not targets.is_floating_point():
        raise InputError(f"{name} targets must be floats, not {targets.dtype}; whole numbers name classes")
    if targets.ndim != 2 or 0 in targets.shape:
        raise InputError(
            f"{name} targets must be (samples, t), neither of them 0, not {tuple(targets.shape)}"
        )
    check_finite(f"{name} targets", targets)
    if name == TRAIN and len(constant := torch.nonzero((targets == targets[:1]).all(0))):
        raise InputError(
            f"{name} targets are constant in column {int(constant[0])} (from 0); leave it out, a bias fits it"
        )


def _of_weights(weight: Tensor, targets: Tensor) -> Iterator[Measurement]:
    yield from measure_matrix(LAST_LAYER, weight)
    if targets.shape[1] > 1:  # of one number any W has the form
        for metric, value in zip(("nrc3", "nrc3_gamma"), nrc3(weight, targets), strict=True):
            yield Measurement(LAST_LAYER, WEIGHTS, metric, value)


def _of_samples(
    split: str, features: Tensor, targets: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Iterator[Measurement]:
    yield Measurement(LAST_LAYER, split, "nrc1", nrc1(features, targets.shape[1]))
    if weight is not None:
        yield Measurement(LAST_LAYER, split, "nrc2", nrc2(features, weight))
        error = relative_mse(logits_of(features, weight, bias), targets)
        yield Measurement(LAST_LAYER, split, "relative_mse", error)


def _checked(
    features: Array, targets: Array, weight: Tensor | None, bias: Tensor | None, name: str
) -> tuple[Tensor, Tensor]:
    """Return features (N, d) and targets (N, t) of a split as tensors."""
    own, wanted = as_tensor(features), as_tensor(targets)
    if own.ndim != 2 or not len(own) or not own.shape[1]:
        raise InputError(
            f"{name} features must be (samples, width), neither of them 0, not {tuple(own.shape)}"
        )
    check_targets(wanted, name)
    if len(own) != len(wanted):
        raise InputError(f"{len(own)} {name} features and {len(wanted)} targets; they belong together")
    check_classifier(wanted.shape[1], own.shape[1], weight, bias)
    for title, array in ((f"{name} features", own), ("weight", weight), ("bias", bias)):
        if array is not None:
            check_finite(title, array)
    return own.cpu(), wanted.cpu()
