"""Measure neural regression collapse, where the targets are vectors [Andriopoulos et al. 2024, sec. 3].

Features are divided by their lengths and not centred, principal axes are those of centred features: so the
authors' code has it. At the optimum of their features model the mean feature is 0, and both are the same.

N  samples    d  feature width    t  numbers of a target
"""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ncpipe.metrics.checks import Array, as_tensor, check_finite
from ncpipe.metrics.losses import logits_of
from ncpipe.metrics.measurements import Measurement, Measurements
from ncpipe.metrics.meters import check_classifier
from ncpipe.metrics.table import LAST_LAYER, TEST, TRAIN, WEIGHTS, spectrum_metrics
from ncpipe.system.errors import InputError

EPS = torch.finfo(torch.float64).eps
ISOTROPIC = 1e-6  # relative spread of the targets' deviations from which on their covariance tells gamma


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


def nrc1(features: Tensor, length: int) -> float:
    """Return the mean of |h - P h|^2/|h|^2, P the projection on the t = `length` first principal axes.

    features (N, d); a feature that is 0 counts as 0. It is 0 for d <= t, whatever the features.
    """
    if not bool(features.isfinite().all()):
        return math.nan
    centred = _scaled(features.double())
    centred = centred - centred.mean(0)
    _, sizes, axes = torch.linalg.svd(centred, full_matrices=False)
    return _mean_outside(features, axes[:length][sizes[:length] > max(centred.shape) * EPS * sizes[0]])


def nrc2(features: Tensor, weight: Tensor) -> float:
    """Return the mean of |h - P h|^2/|h|^2, P the projection on the rows of W (t, d).

    features (N, d); a feature that is 0 counts as 0.
    """
    if not bool(features.isfinite().all() and weight.isfinite().all()):
        return math.nan
    weight = _scaled(weight.double())
    _, sizes, axes = torch.linalg.svd(weight, full_matrices=False)
    return _mean_outside(features, axes[sizes > max(weight.shape) * EPS * sizes[0]])


def nrc3(weight: Tensor, targets: Tensor) -> tuple[float, float]:
    """Return the least |W W^T/|W W^T| - S/|S||^2, S = Sigma^(1/2) - sqrt(gamma) I, and the gamma of it.

    weight (t, d); Sigma (t, t): covariance of the targets (N, t), over N. gamma is between 0 and the least
    eigenvalue of Sigma. Both are NaN where that is 0, or W is. gamma is NaN where all eigenvalues are equal:
    the value is the same for each then. The distance has one stationary point in sqrt(gamma), so it is
    compared there and at the ends.
    """
    if not bool(weight.isfinite().all()):
        return math.nan, math.nan
    weight = _scaled(weight.double())
    gram = weight @ weight.T
    variances, axes = torch.linalg.eigh(covariance(targets))
    if not bool(weight.any()) or variances[0] <= len(targets) * EPS * variances[-1]:
        return math.nan, math.nan
    gram, deviations = axes.T @ gram @ axes / gram.norm(), variances.sqrt()
    least = float(deviations[0])

    def distance(shift: float) -> float:
        form = torch.diag(deviations - shift)
        return float((gram - form / form.norm()).square().sum())

    if float(deviations[-1]) - least < ISOTROPIC * least:
        return distance(0.0), math.nan
    inner, trace = float((gram.diagonal() * deviations).sum()), float(gram.trace())
    total, square, count = float(deviations.sum()), float(deviations.square().sum()), len(deviations)
    bottom = trace * total - inner * count
    stationary = (trace * square - inner * total) / bottom if bottom else 0.0
    shifts = (0.0, min(max(stationary, 0.0), least), least)
    value, shift = min((distance(shift), shift) for shift in shifts)
    return value, shift**2


def relative_mse(predictions: Tensor, targets: Tensor) -> float:
    """Return |f - Y|^2/|Y - mean|^2 of predictions and targets (N, t), 1 - R^2; NaN for constant targets."""
    targets = targets.double()
    spread = (targets - targets.mean(0)).square().sum()
    return float((predictions - targets).square().sum() / spread) if spread > 0 else math.nan


def covariance(targets: Tensor) -> Tensor:
    """Return the covariance (t, t) of targets (N, t), over N, in float64."""
    centred = targets.double() - targets.double().mean(0)
    return centred.T @ centred / len(targets)


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
    values = dict(spectrum_metrics("weights", weight))
    if targets.shape[1] > 1:  # of one number any W has the form
        values |= dict(zip(("nrc3", "nrc3_gamma"), nrc3(weight, targets), strict=True))
    for metric, value in values.items():
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


def _mean_outside(features: Tensor, axes: Tensor) -> float:
    """Return the mean of |h - P h|^2/|h|^2, P the projection on orthonormal rows (r, d)."""
    features = features.double()
    largest = features.abs().amax(1, keepdim=True)
    units = features / largest.where(largest > 0, 1.0)
    lengths = units.norm(dim=1, keepdim=True)
    units = units / lengths.where(lengths > 0, 1.0)
    return float((units - units @ axes.T @ axes).square().sum(1).mean())


def _scaled(matrix: Tensor) -> Tensor:
    """Return a matrix over its largest entry, so that no square leaves float64's range."""
    largest = matrix.abs().max()
    return matrix / largest if largest > 0 else matrix
