"""Compute all metrics of one layer, split or classifier, as rows of the long table.

N  samples    K  classes    d  feature width
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from ncpipe.metrics.checks import (
    Array,
    as_tensor,
    check_arrays,
    check_statistics,
    check_widths,
    count_classes,
)
from ncpipe.metrics.collapse import (
    between_trace,
    cdnv,
    cdnv_and_log,
    dnc1_trace_pinv,
    nc1_pinv,
    nc1_trace_ratio,
    tcv,
)
from ncpipe.metrics.geometry import (
    nc0_relative,
    nc0_row_sum,
    nc2_condition,
    nc2_equiangular,
    nc2_equinorm,
    nc2_etf,
    nc2_identity,
    nc2_means,
    nc3_duality,
    simplex_fits,
)
from ncpipe.metrics.measurements import Measurement, Measurements
from ncpipe.metrics.meters import SampleStatistics, common_exponent
from ncpipe.metrics.outliers import check_outliers, outlier_metrics
from ncpipe.metrics.passes import first_pass, second_pass
from ncpipe.metrics.scales import (
    largest_entry,
    size_exponent,
    times_two_to,
    unit_exponent,
    value_times_two_to,
)
from ncpipe.metrics.spectrum import effective_rank, numerical_rank, singular_values, stable_rank
from ncpipe.metrics.statistics import ClassStatistics
from ncpipe.metrics.uniformity import means_uniformity, uniform_duality, weight_uniformity
from ncpipe.system.errors import InputError

LAST_LAYER = "last"
WEIGHTS = "weights"  # the split of metrics that look at no sample
TRAIN, TEST = "train", "test"
TRUE = "true_labels"  # the training samples by their true labels, where those that they are given are noisy
TARGET = "target"  # samples of classes that the network was not trained on
OOD = "ood"  # samples of other data, told from test samples
MARGIN_QUANTILES = {"margin_p05": 0.05, "margin_p50": 0.5, "margin_p95": 0.95}
# The metrics that are computed one by one, in the table's order. `ncpipe.metrics.functional` has them too.
OF_WEIGHT: Mapping[str, Callable[[Tensor], float]] = MappingProxyType(
    {
        "nc0_row_sum": nc0_row_sum,
        "nc0_relative": nc0_relative,
        "nc2_etf": nc2_etf,
        "nc2_identity": nc2_identity,
        "nc2_equinorm_weights": nc2_equinorm,
        "nc2_equiangular_weights": nc2_equiangular,
    }
)
OF_STATISTICS: Mapping[str, Callable[[ClassStatistics], float]] = MappingProxyType(
    {
        "nc1_trace_ratio": nc1_trace_ratio,
        "dnc1_trace_pinv": dnc1_trace_pinv,
        "tcv": tcv,
        "cdnv": cdnv,
        "nc2_means": nc2_means,
        "nc2_equinorm_means": lambda statistics: nc2_equinorm(statistics.centred_means()),
        "nc2_equiangular_means": lambda statistics: nc2_equiangular(statistics.centred_means()),
        "nc2_condition": nc2_condition,
    }
)

Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]


def measure(
    features: Array,
    labels: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    test_features: Array | None = None,
    test_labels: Array | None = None,
    batch_size: int = 65536,
    layer: str = LAST_LAYER,
    ood: Array | None = None,
) -> Measurements:
    """Return every metric of features (N, d), of any float type, with labels (N,) in 0..K-1.

    Tensors, arrays and nested lists are taken. weight (K, d), bias (K,): the classifier on these features,
    for NC2-NC4 of the weights and the margins. test_features, test_labels: the same layer on held-out
    samples. K is the weight's number of rows, or 1 + the largest train label. batch_size: samples that are
    worked on at a time. ood (m, d): the same layer on samples of other data, for scores that tell them from
    test samples. Raises InputError on what `check_arrays` and `check_outliers` find.
    """
    if (test_features is None) != (test_labels is None):
        raise InputError("test features and test labels come together; give both or neither")
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise InputError(f"batch_size: a whole number of samples, 1 or more, not {batch_size!r}")
    outliers = None if ood is None else check_outliers(ood, features, test_features)
    train = as_tensor(features), as_tensor(labels)
    rows, offsets = (None if array is None else as_tensor(array) for array in (weight, bias))
    classes = count_classes(train[1]) if rows is None else len(rows)
    check_arrays(*train, rows, offsets, classes, TRAIN)
    test = None
    if test_features is not None and test_labels is not None:
        held_out = as_tensor(test_features), as_tensor(test_labels)
        check_arrays(*held_out, rows, offsets, classes, TEST)
        check_widths([train[0], held_out[0]])
        test = _batches_of(*held_out, batch_size)
    values = measure_batches(_batches_of(*train, batch_size), classes, test, rows, offsets, layer)
    if outliers is None or test_features is None:
        return values
    found = outlier_metrics(*train, as_tensor(test_features), outliers, rows, offsets)
    return Measurements([*values, *(Measurement(layer, OOD, metric, value) for metric, value in found)])


def measure_batches(
    train: Batches,
    num_classes: int,
    test: Batches | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    layer: str = LAST_LAYER,
) -> Measurements:
    """Return every metric of features that come in batches ((B, d), (B,)), in constant memory.

    train() and test() start a pass; each is called twice, because the second pass needs the train means. The
    work is done on the device of the first batch. Raises InputError on an empty class or split.
    """
    weight, bias = (None if tensor is None else tensor.detach() for tensor in (weight, bias))
    learned = _first_pass(layer, TRAIN, train, num_classes)
    rows = [] if weight is None else list(measure_weights(weight, layer))
    for split, batches in ((TRAIN, train), (TEST, test)):
        if batches is None:
            continue
        seen = learned if split == TRAIN else _first_pass(layer, split, batches, num_classes)
        about = None if split == TRAIN else {layer: learned}
        samples = second_pass(_named(layer, batches), {layer: seen}, {layer: (weight, bias)}, about)
        rows += measure_layer(layer, split, seen, samples[layer], learned, weight)
    return Measurements(rows)


def measure_layer(
    layer: str,
    split: str,
    statistics: ClassStatistics,
    samples: SampleStatistics,
    train: ClassStatistics,
    weight: Tensor | None = None,
) -> list[Measurement]:
    """Return every metric of one layer on one split, from its two passes; NaN for NaN features.

    train: the train split's statistics, for the test-collapse distances, which are of test samples only.
    weight (K, d): for nc3_duality and UNC3. GNC2 and UNC3 where there are too many classes for a simplex.
    """
    trace_ratio, *others = one_pass_metrics(statistics)
    pinv, rank, *rest = two_pass_metrics(statistics, samples, train, weight)
    values = (trace_ratio, pinv, rank, *others, *rest)
    return [Measurement(layer, split, metric, value) for metric, value in values]


def measure_weights(weight: Tensor, layer: str = LAST_LAYER) -> Iterator[Measurement]:
    """Yield every metric of the classifier's weights (K, d) alone."""
    values = {name: function(weight) for name, function in OF_WEIGHT.items()}
    if not simplex_fits(*weight.shape):
        values |= weight_uniformity(weight)
    values |= dict(spectrum_metrics("weights", weight))
    for metric, value in values.items():
        yield Measurement(layer, WEIGHTS, metric, value)


def measure_matrix(layer: str, weight: Tensor) -> Iterator[Measurement]:
    """Yield ranks and singular values of an inner layer's weights [S24 sec. 6]."""
    for metric, value in spectrum_metrics("weights", weight):
        yield Measurement(layer, WEIGHTS, metric, value)


def measure_means(layer: str, split: str, statistics: ClassStatistics) -> Iterator[Measurement]:
    """Yield ranks and singular values of class means alone, as of pre-activations [S24 sec. 6]."""
    for metric, value in means_spectrum(statistics):
        yield Measurement(layer, split, metric, value)


def spectrum_metrics(name: str, matrix: Tensor) -> Iterator[tuple[str, float]]:
    """Yield ranks and singular values of a matrix as (metric, value); metrics are named after the matrix."""
    unit = unit_exponent(size_exponent(largest_entry(matrix)))
    return _of_singular(name, singular_values(times_two_to(matrix.double(), -unit)), unit)


def _of_singular(name: str, singular: Tensor, exponent: int) -> Iterator[tuple[str, float]]:
    """Yield the same of singular values in units of 2^exponent.

    Ranks are computed before the values return to the unit 1, where subnormal ones would lose their digits.
    """
    yield f"rank_{name}", numerical_rank(singular)
    yield f"stable_rank_{name}", stable_rank(singular)
    yield f"effective_rank_{name}", effective_rank(singular)
    for place, value in enumerate(times_two_to(singular, exponent).tolist(), 1):
        yield f"singular_{name}_{place:03d}", value


def one_pass_metrics(statistics: ClassStatistics) -> Iterator[tuple[str, float]]:
    """Yield the metrics that follow from class statistics alone, as (metric, value)."""
    pairs = None if simplex_fits(*statistics.means.shape) else cdnv_and_log(statistics)
    for name, function in OF_STATISTICS.items():  # of many classes, going through all pairs twice takes long
        yield name, pairs[0] if pairs is not None and name == "cdnv" else function(statistics)
    if pairs is not None:
        yield "cdnv_log", pairs[1]
        yield from means_uniformity(statistics).items()
    yield from means_spectrum(statistics)


def two_pass_metrics(
    statistics: ClassStatistics,
    samples: SampleStatistics,
    train: ClassStatistics,
    weight: Tensor | None = None,
) -> Iterator[tuple[str, float]]:
    """Yield the metrics that need samples about known class means, or means and weight, as (metric, value).

    Arguments as in `measure_layer`.
    """
    value, rank = nc1_pinv(statistics, samples.spread)
    yield "nc1_pinv", value
    yield "nc1_pinv_rank", rank
    yield from classifier_metrics(samples)
    if weight is not None:
        weight = weight.to(statistics.means.device)
        yield "nc3_duality", nc3_duality(statistics, weight)
        if not simplex_fits(*weight.shape):
            yield from uniform_duality(statistics, weight).items()
    yield from decision_metrics(samples)
    yield from _distance_metrics(statistics, samples, train)


def means_spectrum(statistics: ClassStatistics) -> Iterator[tuple[str, float]]:
    """Yield ranks and singular values of the class means, not centred, as (metric, value)."""
    return _of_singular("means", statistics.singular, statistics.exponent)


def classifier_metrics(samples: SampleStatistics) -> Iterator[tuple[str, float]]:
    """Yield NC3 of samples and their margins, as (metric, value); nothing without a classifier."""
    if samples.misalignment is not None and samples.margins is not None:
        margins = samples.margins.cpu().numpy()
        yield "nc3_cosine", samples.misalignment.item() / len(margins)
        yield "margin_min", float(margins.min())
        exponent = size_exponent(np.abs(margins).max())  # their sum may leave float64's range
        with np.errstate(over="ignore", invalid="ignore"):  # where the margins themselves left it
            yield "margin_mean", float(np.ldexp(np.ldexp(margins, -exponent).mean(), exponent))
        places = {metric: math.ceil(share * len(margins)) - 1 for metric, share in MARGIN_QUANTILES.items()}
        parted = np.partition(margins, list(places.values()))  # sorting them all takes several times as long
        for metric, place in places.items():
            yield metric, float(parted[place])


def decision_metrics(samples: SampleStatistics) -> Iterator[tuple[str, float]]:
    """Yield the shares of samples with a wrong nearest mean or two decisions, as (metric, value)."""
    finite = bool(samples.within.isfinite())
    for metric, count in (("ncc_error", samples.wrong), ("nc4_mismatch", samples.mismatched)):
        if count is not None:  # integer tensors would be divided in float32
            yield metric, count.item() / samples.samples.item() if finite else math.nan


def _distance_metrics(
    statistics: ClassStatistics, samples: SampleStatistics, train: ClassStatistics
) -> Iterator[tuple[str, float]]:
    if samples.nearest is None:
        return
    between = between_trace(train)
    exponent = common_exponent(statistics, train)
    own, other = statistics.in_unit(exponent), train.in_unit(exponent)
    # sum |h - mu|^2 about another mean than the class's own: every term is positive, so no digit is lost.
    right = (own.squares + own.counts * (own.means - other.means).square().sum(1)).sum()
    for metric, total in (("weak_test_collapse", samples.nearest), ("strong_test_collapse", right)):
        ratio = math.inf if between == 0 else (total / own.samples / between).item()
        yield metric, value_times_two_to(ratio, 2 * (exponent - train.exponent))


def _first_pass(layer: str, split: str, batches: Batches, classes: int) -> ClassStatistics:
    found = first_pass(_named(layer, batches), classes)
    if not found:
        raise InputError(f"the {split} batches are empty; there is nothing to measure")
    check_statistics(split, layer, found[layer])
    return found[layer]


def _named(layer: str, batches: Batches) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """Yield the batches of one layer, as the passes take them."""
    return (({layer: features}, labels) for features, labels in batches())


def _batches_of(features: Tensor, labels: Tensor, batch_size: int) -> Batches:
    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        return zip(torch.split(features, batch_size), torch.split(labels, batch_size), strict=True)

    return batches
