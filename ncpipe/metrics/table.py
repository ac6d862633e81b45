"""Compute all metrics of one layer, split or classifier, as rows of the long table.

N  samples    K  classes    d  feature width
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ncpipe.datasets.targets import check_tags, wrong_tags
from ncpipe.datasets.tensors import Array, as_tensor
from ncpipe.metrics import few_shot
from ncpipe.metrics.catalogue import FAMILIES, TAG_FAMILIES
from ncpipe.metrics.checks import (
    as_tensors,
    by_split,
    check_arrays,
    check_count,
    check_finite,
    check_outliers,
    check_shots,
    check_widths,
    count_classes,
)
from ncpipe.metrics.collapse import between_trace
from ncpipe.metrics.entry import Family
from ncpipe.metrics.geometry import simplex_fits
from ncpipe.metrics.kept_pass import (
    KEEP,
    Batch,
    KeptPass,
    LayerOnSplit,
    both_passes,
    check_passes,
    first_pass,
)
from ncpipe.metrics.losses import logits_of
from ncpipe.metrics.measurements import Arrays, Measurement, Measurements, rows_of
from ncpipe.metrics.outliers import outlier_metrics
from ncpipe.metrics.powers_of_two import times_two_to, unit_of
from ncpipe.metrics.ranks import means_spectrum, weight_spectrum
from ncpipe.metrics.sample_statistics import SampleStatistics
from ncpipe.metrics.statistics import REGRESSION, ClassStatistics, class_statistics
from ncpipe.metrics.token_collapse import TokenMeans
from ncpipe.metrics.uniformity import alignments
from ncpipe.system.errors import InputError, shown
from ncpipe.system.randomness import seeded_generator

LAST_LAYER = "last"
WEIGHTS = "weights"  # the split of metrics that look at no sample
TRAIN, TEST = "train", "test"
TRUE = "true_labels"  # the training samples by their true labels, where those that they are given are noisy
TARGET = "target"  # samples of classes that the network was not trained on
OOD = "ood"  # samples of other data, told from test samples
EPISODES = 100  # of few shots
OF_WEIGHT = [family for family in FAMILIES if family.needs == {"weight"}]
OF_STATISTICS = [family for family in FAMILIES if family.needs == {"statistics"}]
OF_SAMPLES = [family for family in FAMILIES if family not in (*OF_WEIGHT, *OF_STATISTICS)]
MEANS_SPECTRUM = [family for family in FAMILIES if family.function is means_spectrum]
WEIGHT_SPECTRUM = [family for family in FAMILIES if family.function is weight_spectrum]

Batches = Callable[[], Iterable[tuple[Array, Array]]]


def measure(
    features: Array,
    labels: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    test_features: Array | None = None,
    test_labels: Array | None = None,
    batch_size: int = 65536,
    layer: str = LAST_LAYER,
    *,
    ood: Array | None = None,
    shots: Sequence[int] = (),
    episodes: int = EPISODES,
    seed: int = 0,
    by_sample: bool = False,
) -> Measurements:
    """Return every metric of features (N, d), of any float type, with labels (N,) in 0..K-1.

    Where a sample may have several classes, its tags, labels are (N, K) of 0 and 1: the samples of one tag
    are then measured as those of a class, and all have the metrics of `ncpipe.metrics.tags`.

    Tensors, arrays and nested lists are taken. weight (K, d), bias (K,): the classifier on these features,
    for NC2-NC4 of the weights and the margins. test_features, test_labels: the same layer on held-out
    samples. K is the weight's number of rows, or 1 + the largest train label. batch_size: samples that are
    worked on at a time. ood (m, d): the same layer on samples of other data, for scores that tell them from
    test samples.

    shots: of each class, as few as (1, 5): then come `directional_cdnv`, and for each number the nearest-mean
    error on all other samples with its bounds, as of a frozen encoder; episodes: draws that it is a mean of,
    which follow from the seed. by_sample: whether to keep what single samples add to NC1 and NC3, for
    `values.by_sample()`. Raises InputError on arrays that cannot be measured.
    """
    splits = by_split(features, labels, test_features, test_labels)
    if not isinstance(shots, Iterable):
        raise InputError(f"shots: a list of numbers, as (1, 5), not {shown(shots)}")
    shots = tuple(shots)  # which may be an array
    check_count("batch_size", batch_size, "samples")
    train = splits[TRAIN]
    weight, bias = as_tensors(weight=weight, bias=bias)
    if train[1].ndim == 2:
        if ood is not None or shots or by_sample:
            options = "ood, shots and by_sample"
            raise InputError(f"{options}: need one class a sample, not tags (N, K); leave them out")
        return _measure_tagged(splits, weight, bias, batch_size, layer)
    outliers = None if ood is None else check_outliers(ood, features, test_features)
    classes, warnings = count_classes(train[1], weight), list[str]()
    for split, arrays in splits.items():
        check_widths([train[0], arrays[0]])
        warnings += check_arrays(*arrays, weight, bias, classes, split)
        if shots:
            check_shots(shots, episodes, arrays[1])
    batches = {split: _batches_of(*arrays, batch_size) for split, arrays in splits.items()}
    measured = measure_batches(
        batches[TRAIN], classes, batches.get(TEST), weight, bias, layer, keep=0, by_sample=by_sample
    )
    rows = list(measured)
    for split, arrays in splits.items() if shots else ():
        rows += rows_of(layer, split, transfer_metrics(*arrays, shots, episodes, ["ncc"], None, seed))
    if outliers is not None:
        rows += rows_of(layer, OOD, outlier_metrics(*train, splits[TEST][0], outliers, weight, bias))
    return measured.with_records(rows, warnings)


def _measure_tagged(
    splits: Mapping[str, tuple[Tensor, Tensor]],
    weight: Tensor | None,
    bias: Tensor | None,
    batch_size: int,
    layer: str,
) -> Measurements:
    """Return the same where labels are tags (N, K): of the samples with one of them, and of all."""
    device = splits[TRAIN][0].device
    splits = {split: (rows.to(device), tags.to(device)) for split, (rows, tags) in splits.items()}
    weight, bias = (None if given is None else given.to(device) for given in (weight, bias))
    one_tag: dict[str, tuple[Tensor, Tensor]] = {}
    classes = splits[TRAIN][1].shape[1]
    for split, (features, tags) in splits.items():
        if len(features) != len(tags):
            raise InputError(f"{len(features)} {split} features and {len(tags)} labels; they belong together")
        if tags.is_floating_point() and bool(((tags != 0) & (tags != 1)).any()):
            floats = f"{split} labels are floats {tuple(tags.shape)}"
            raise InputError(f"{floats}; classes are integers, tags 0 or 1{REGRESSION}")
        check_tags(tags, f"{split} labels")
        if tags.shape[1] != classes:
            raise InputError(f"{split} labels have {tags.shape[1]} columns, train labels {classes}")
        if features.is_floating_point():
            check_finite(f"{split} features", features)
        single = tags.sum(1) == 1
        one_tag[split] = features[single], tags[single].long().argmax(1)
    check_arrays(*one_tag[TRAIN], weight, bias, classes, f"one-tag {TRAIN}")
    test_features, test_tags = one_tag.get(TEST, (None, None))
    measured = measure(*one_tag[TRAIN], weight, bias, test_features, test_tags, batch_size, layer)
    rows = [*measured, *measure_tags(splits, weight, bias, layer)]
    return measured.with_records(rows, measured.warnings)


def measure_tokens(
    tokens: Array, labels: Array, lengths: Array | None = None, layer: str = LAST_LAYER
) -> Measurements:
    """Return how all tokens (N, C, d) of samples with labels (N,) collapse, as those of a layer of a ViT.

    lengths (N,): the first tokens of each sample that are real; all by default. Raises InputError on arrays
    that cannot be measured.
    """
    tokens, labels = as_tensor(tokens, "tokens"), as_tensor(labels, "labels")
    if (classes := count_classes(labels)) < 2:
        raise InputError(f"labels name {classes} class; collapse needs at least 2")
    means = TokenMeans(classes)
    means.update(tokens, labels, None if lengths is None else as_tensor(lengths, "lengths"))
    check_finite("tokens", tokens)
    return Measurements(rows_of(layer, TRAIN, means.values()))


def transfer_metrics(
    features: Tensor,
    labels: Tensor,
    shots: Sequence[int],
    episodes: int,
    heads: Sequence[str],
    ridge: float | None,
    seed: int,
) -> Iterator[tuple[str, float]]:
    """Yield directional CDNV, and for each number of shots the errors of the heads and their bounds.

    features (N, d), labels (N,) in 0..t-1. All heads see the same episodes. NaN of NaN features.
    """
    rows, labels = features.double().cpu(), labels.long().cpu()
    finite = bool(rows.isfinite().all())
    rows = times_two_to(rows, -unit_of(rows))
    statistics = class_statistics(rows, labels, int(labels.max()) + 1)
    axes = few_shot.decision_axes(rows, labels, statistics)
    yield "directional_cdnv", few_shot.directional_cdnv(axes)
    errors: dict[str, Callable[..., float]] = {
        "ncc": few_shot.transfer_ncc_error,
        "ridge": functools.partial(few_shot.transfer_ridge_error, ridge=ridge or 0.0),
    }
    for count in shots:
        for head in heads:
            draws = (rows, labels, count, episodes, episode_generator(seed, count))
            yield f"transfer_{head}_error_{count:03d}", errors[head](*draws) if finite else math.nan
        bound = few_shot.transfer_bound(statistics, count) if finite else math.nan
        yield f"transfer_bound_{count:03d}", bound
        yield f"transfer_directional_bound_{count:03d}", few_shot.transfer_directional_bound(axes, count)


def episode_generator(seed: int, shots: int) -> torch.Generator:
    """Return the draws of the episodes with so many shots, the same for every head."""
    return seeded_generator(seed, f"transfer episodes {shots}")


def measure_tags(
    splits: Mapping[str, tuple[Tensor, Tensor]],
    weight: Tensor | None,
    bias: Tensor | None,
    layer: str = LAST_LAYER,
) -> Iterator[Measurement]:
    """Yield the metrics of samples with several tags, of features (N, d) and tags (N, K) by split, unchecked.

    NaN for NaN features.
    """
    for split, (features, tags) in splits.items():
        arguments: dict[str, Any] = {"features": features, "tags": tags}
        if weight is not None:
            arguments["missed"] = wrong_tags(logits_of(features, weight, bias), tags)
        yield from rows_of(layer, split, values_of(TAG_FAMILIES, **arguments))


def measure_batches(
    train: Batches,
    num_classes: int,
    test: Batches | None = None,
    weight: Array | None = None,
    bias: Array | None = None,
    layer: str = LAST_LAYER,
    *,
    keep: float = KEEP,
    by_sample: bool = False,
) -> Measurements:
    """Return every metric of features that come in batches ((B, d), (B,)).

    train() and test() start a pass, and are called once each while their batches fit into `keep` of the free
    memory, as in `measure_model`; beyond it twice, in constant memory, and must give the same samples again.
    The work is done on the device of the first batch. by_sample: as in `measure`. Raises InputError on an
    empty class or split.
    """
    weight, bias = as_tensors(weight=weight, bias=bias)
    if not all(batches is None or callable(batches) for batches in (train, test)):
        raise InputError(
            "measure_batches: train and test are functions that start a pass, as lambda: batches"
        )
    check_count("num_classes", num_classes)
    passes = {
        split: KeptPass(functools.partial(_layer_batches, layer, batches), f"{split}()", keep)
        for split, batches in ((TRAIN, train), (TEST, test))
        if batches is not None
    }
    learned = first_pass(passes[TRAIN](), num_classes, TRAIN)
    again = "{}(): its second pass gave other samples; start the same pass each time, or raise `keep`"
    layers = both_passes(passes, learned, {layer: (weight, bias)}, by_sample)
    check_passes(passes, layers, again)
    return measure_layers(layers, {} if weight is None else {layer: weight})


def measure_layers(
    layers: Mapping[str, Mapping[str, LayerOnSplit]],
    weights: Mapping[str, Tensor],
    numbers: Tensor | None = None,
) -> Measurements:
    """Return every metric of layers from their two passes by split, with the parts of classes and samples.

    weights (K, d): of the classifier, by its layer. numbers (K,): of the classes, as in `parts_of`.
    """
    rows = [row for layer, weight in weights.items() for row in measure_weights(weight, layer)]
    parts = {}
    for layer, splits in layers.items():
        weight, train = weights.get(layer), splits[TRAIN].statistics
        for split, seen in splits.items():
            rows += measure_layer(layer, split, seen.statistics, seen.samples, train, weight)
            parts[layer, split] = parts_of(seen.statistics, seen.samples, weight, numbers)
    return Measurements(rows, parts)


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
    values = *one_pass_metrics(statistics), *two_pass_metrics(statistics, samples, train, weight)
    return list(rows_of(layer, split, values))


def measure_weights(weight: Tensor, layer: str = LAST_LAYER) -> Iterator[Measurement]:
    """Yield every metric of the classifier's weights (K, d) alone."""
    return rows_of(layer, WEIGHTS, values_of(OF_WEIGHT, weight.shape, weight=weight))


def measure_matrix(layer: str, weight: Tensor) -> Iterator[Measurement]:
    """Yield ranks and singular values of an inner layer's weights [S24 sec. 6]."""
    return rows_of(layer, WEIGHTS, values_of(WEIGHT_SPECTRUM, weight=weight))


def one_pass_metrics(statistics: ClassStatistics) -> Iterator[tuple[str, float]]:
    """Yield the metrics that follow from class statistics alone, as (metric, value)."""
    return values_of(OF_STATISTICS, statistics.means.shape, statistics=statistics)


def two_pass_metrics(
    statistics: ClassStatistics,
    samples: SampleStatistics,
    train: ClassStatistics,
    weight: Tensor | None = None,
) -> Iterator[tuple[str, float]]:
    """Yield the metrics that need samples about known class means, or means and weight, as (metric, value).

    Arguments as in `measure_layer`.
    """
    arguments: dict[str, Any] = samples.tensors() | {"statistics": statistics, "samples": samples}
    if samples.nearest is not None:
        arguments["train"] = train.to(statistics.means.device)
    if weight is not None:
        arguments["weight"] = weight.to(statistics.means.device)
    return values_of(OF_SAMPLES, statistics.means.shape, **arguments)


def values_of(
    families: Iterable[Family], shape: Sequence[int] | None = None, **arguments: Any
) -> Iterator[tuple[str, float]]:
    """Yield, as (metric, value), the metrics that can be computed of these arguments.

    shape: (K, d) of which those for K > d + 1 are left out elsewhere; None for all.
    """
    few = shape is not None and simplex_fits(*shape)
    for family in families:
        if family.needs <= arguments.keys() and not (family.many and few):
            yield from family.values(arguments)


def _layer_batches(layer: str, batches: Batches) -> Iterator[Batch]:
    """Yield the batches of one layer, as the passes take them."""
    for batch in batches():
        if not isinstance(batch, tuple | list) or len(batch) != 2 or batch[1] is None:
            raise InputError("measure_batches: give batches (features, labels) of (B, d) and (B,)")
        features, labels = as_tensor(batch[0], "features"), as_tensor(batch[1], "labels")
        if labels.numel():
            yield {layer: features}, labels


def _batches_of(features: Tensor, labels: Tensor, batch_size: int) -> Batches:
    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        return zip(torch.split(features, batch_size), torch.split(labels, batch_size), strict=True)

    return batches


def parts_of(
    statistics: ClassStatistics,
    samples: SampleStatistics,
    weight: Tensor | None = None,
    numbers: Tensor | None = None,
) -> tuple[Arrays, Arrays]:
    """Return arrays (K,) of the measured classes, and (N,) of the samples, in the order of reading.

    weight (K, d): of the classifier. numbers (K,): of the classes; 0 to K-1 by default. Samples have {}
    unless they were kept.

    class and samples: a class's number and size. nc1_trace_ratio: its mean of |h - mu_k|^2 over tr(Sigma_B);
    the mean over all samples is the metric. mean_length: |mu_k - mu_G|. unc3_cosine:
    cos(w_k, mu_k - mu_G), with a classifier. nc3_cosine: its mean of 1 - cos(h, w_k), where single samples
    were kept too.

    label: the number of a sample's class. nc1_trace_ratio: |h - mu_y|^2 over tr(Sigma_B). nc3_cosine:
    1 - cos(h, w_y); margin: f_y less the largest other logit; both with a classifier. The mean of each is the
    metric of that name.
    """
    numbers = torch.arange(statistics.classes, device="cpu") if numbers is None else numbers
    counts, between = statistics.counts, between_trace(statistics)
    lengths = torch.linalg.vector_norm(statistics.centred_means, dim=1)
    of_classes: dict[str, Tensor | None] = {
        "class": numbers,
        "samples": counts,
        "nc1_trace_ratio": _over(statistics.squares / counts, between),
        "mean_length": times_two_to(lengths, statistics.exponent),
    }
    if weight is not None:
        of_classes["unc3_cosine"] = alignments(statistics, weight.to(counts.device))
    if samples.labels is None or samples.squares is None:
        return _arrays(of_classes), {}
    of_samples = {
        "label": numbers.to(samples.labels.device)[samples.labels],
        "nc1_trace_ratio": _over(samples.squares, between),
        "nc3_cosine": samples.cosines,
        "margin": samples.margins,
    }
    if samples.cosines is not None:
        # On the CPU: a GPU adds in another order every time.
        sums = torch.zeros(len(counts), dtype=torch.float64, device="cpu")
        sums.index_add_(0, samples.labels.cpu(), samples.cosines.cpu())
        of_classes["nc3_cosine"] = sums / counts.cpu()
    return _arrays(of_classes), _arrays(of_samples)


def _over(values: Tensor, between: Tensor) -> Tensor:
    """Return values over tr(Sigma_B); inf where it is 0, as the metric."""
    return values / between if between != 0 else torch.full_like(values, torch.inf)


def _arrays(parts: Mapping[str, Tensor | None]) -> Arrays:
    return {name: values.cpu().numpy() for name, values in parts.items() if values is not None}
