"""Measure the collapse of any PyTorch classifier from the inputs of its last linear layer.

N  samples    n  samples of a batch    K  classes    d  feature width    T  positions of a sequence
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ncpipe.metrics.checks import check_finite, check_outliers, data_warnings
from ncpipe.metrics.classifier import Classifier
from ncpipe.metrics.kept_pass import (
    KEEP,
    Batch,
    KeptPass,
    accumulate,
    both_passes,
    check_passes,
    first_pass,
    joined,
)
from ncpipe.metrics.loaders import ARGUMENTS, ARRAYS, Forward, Mask, Targets, passes
from ncpipe.metrics.measurements import Measurement, Measurements, rows_of
from ncpipe.metrics.outliers import outlier_metrics
from ncpipe.metrics.regression import measure_regression, measure_vectors
from ncpipe.metrics.selection import IGNORE_INDEX, Classes, present_classes, renumber, select_classes
from ncpipe.metrics.statistics import ClassStatistics
from ncpipe.metrics.table import LAST_LAYER, OOD, TEST, TRAIN, measure, measure_layers
from ncpipe.models.hook_points import Select
from ncpipe.system.errors import InputError, shown, warn

AGAIN = (
    "the {} loader gave other samples in its second pass; turn off random augmentation, sampling with "
    "replacement and drop_last, in low precision shuffling too, or raise `keep`"
)


def measure_model(
    model: nn.Module,
    classifier: str | nn.Module,
    loader: Iterable[Any],
    test_loader: Iterable[Any] | None = None,
    ood_loader: Iterable[Any] | None = None,
    *,
    device: torch.device | str | None = None,
    forward: Forward | None = None,
    labels_key: str = "labels",
    select: Select | None = None,
    layers: Sequence[str] | Mapping[str, Select] = (),
    classes: Classes = "all",
    ignore_index: int = IGNORE_INDEX,
    mask: Mask | None = None,
    keep: float = KEEP,
    by_sample: bool = False,
    progress: bool | None = None,
) -> Measurements:
    """Return every metric of the features h (N, d) that enter `classifier`, and of its weight and bias.

    loader, test_loader: batches (inputs, ..., labels) or mappings with the key `labels_key`; labels (n,) in
    0..K-1, or (n, T), one for each position of a sequence: each position is then a sample. The network runs
    once over each loader, in eval mode and without gradients.
    keep: share of the free memory, of the device and then of the host, for the measured layers' values. A
    loader whose values take more is run through a second time, which a MeasurementWarning says; it must then
    give the same samples again: shuffling is fine, random augmentation or sampling raises.
    by_sample: whether to keep what single samples add to NC1 and NC3, for `values.by_sample()`; 24 bytes a
    sample and layer. progress: whether to show a bar of each loader's batches, where tqdm is installed; None
    on a terminal alone.
    ood_loader: batches of the same form with samples of other data, whose labels mean nothing, for scores
    that tell them from test samples.
    classifier: the last nn.Linear, or a layer that replaces it (LoRA's), or its name (`fc`, `score`).
    device: where model and inputs go; None leaves the model where it is. forward(model, inputs): how to call
    it, if not model(inputs) or model(**inputs).
    select(values, inputs) -> (n, d): which of several feature vectors a sample predicts from; required where
    the classifier sees (n, T, d), see `last_token`.
    layers: names of further layers whose outputs are measured too, maps (n, C, H, W) or (n, H, W, C) averaged
    over positions; or names with a `select` of their own, as `channels_first` and `channels_last`. In a name,
    * is any part: `blocks.*`.
    classes: `all` of the classifier's K, each of which needs samples; `present`, those that occur in
    `loader`; or a list of numbers. Samples of other classes are left out, and so are their rows of W.
    ignore_index: label of samples, or positions, that are left out. mask: key of the inputs, or a function of
    them, of a tensor in the labels' shape that is 0 where a sample or position is left out.
    Modes, buffers and hooks are restored, also after an error. Compiled models run uncompiled. W and b are
    what the classifier uses in the pass, and its logits must be the model's (`forward` may return them).
    Raises InputError, and warns of what can be measured but says little (MeasurementWarning), as
    `ncpipe metrics` does.
    """
    if ood_loader is not None and (test_loader is None or ood_loader is loader or ood_loader is test_loader):
        raise InputError(
            "ood_loader: its scores tell other data from test samples; give test_loader too, each of its own"
        )
    loaders = {TRAIN: loader, TEST: test_loader, OOD: ood_loader}
    with passes(
        model, classifier, loaders, layers, device, select=select, forward=forward, labels_key=labels_key,
        ignore_index=ignore_index, mask=mask, keep=keep, progress=progress,
    ) as (head, runs):  # fmt: skip
        return _measure(model, head, runs, classes, by_sample)


def measure_regression_model(
    model: nn.Module,
    classifier: str | nn.Module,
    loader: Iterable[Any],
    test_loader: Iterable[Any] | None = None,
    *,
    layers: Sequence[str] | Mapping[str, Select] = (),
    **options: Any,
) -> Measurements:
    """Return `measure_regression` of the features that enter the last linear layer of a model.

    loader, test_loader: as in `measure_model`, with floats (n, t) in place of labels, or (n,) for t = 1.
    layers: further layers, which have what needs no classifier. options: device, forward, labels_key, select
    and progress; all as in `measure_model`. The model runs once over each loader, and all features are kept
    on the CPU.
    """
    loaders = {TRAIN: loader, TEST: test_loader}
    splits, weight, bias = _arrays(model, classifier, loaders, layers, "vectors", options)
    (train, targets), (test, test_targets) = splits[TRAIN], splits.get(TEST, ({}, None))
    last = measure_regression(train[LAST_LAYER], targets, weight, bias, test.get(LAST_LAYER), test_targets)
    rows = list(last)
    for layer in [layer for layer in train if layer != LAST_LAYER]:
        rows += measure_vectors({s: (v[layer], y) for s, (v, y) in splits.items()}, None, None, layer)
    return last.with_records(rows)


def measure_multilabel_model(
    model: nn.Module,
    classifier: str | nn.Module,
    loader: Iterable[Any],
    test_loader: Iterable[Any] | None = None,
    *,
    layers: Sequence[str] | Mapping[str, Select] = (),
    **options: Any,
) -> Measurements:
    """Return `measure` of the features that enter a model's classifier, where a sample has several classes.

    loader, test_loader: as in `measure_model`, with tags (n, K) of 0 and 1 in place of labels. All else as in
    `measure_regression_model`.
    """
    loaders = {TRAIN: loader, TEST: test_loader}
    splits, weight, bias = _arrays(model, classifier, loaders, layers, "tags", options)
    (train, tags), (test, test_tags) = splits[TRAIN], splits.get(TEST, ({}, None))
    last = measure(train[LAST_LAYER], tags, weight, bias, test.get(LAST_LAYER), test_tags)
    rows = list(last)
    for layer in [layer for layer in train if layer != LAST_LAYER]:
        rows += measure(train[layer], tags, None, None, test.get(layer), test_tags, layer=layer)
    for message in last.warnings:
        warn(message)
    return last.with_records(rows)


def _arrays(
    model: nn.Module,
    classifier: str | nn.Module,
    loaders: Mapping[str, Iterable[Any] | None],
    layers: Sequence[str] | Mapping[str, Select],
    targets: Targets,
    options: Mapping[str, Any],
) -> tuple[dict[str, tuple[dict[str, Tensor], Tensor]], Tensor, Tensor | None]:
    """Return features by layer and their targets, by split, and weight and bias of the classifier."""
    with passes(model, classifier, loaders, layers, targets=targets, keep=0, **options) as (head, runs):
        splits = {split: joined(run()) for split, run in runs.items()}
        return splits, head.weight.cpu(), None if head.bias is None else head.bias.cpu()


def collect_features(
    model: nn.Module,
    classifier: str | nn.Module,
    loader: Iterable[Any],
    test_loader: Iterable[Any] | None = None,
    ood_loader: Iterable[Any] | None = None,
    *,
    targets: Targets = "classes",
    device: torch.device | str | None = None,
    forward: Forward | None = None,
    labels_key: str = "labels",
    select: Select | None = None,
    progress: bool | None = None,
) -> dict[str, np.ndarray]:
    """Return the arrays that `measure_model` would measure: one pass, everything in memory.

    `numpy.savez(path, **arrays)` writes what `ncpipe metrics` reads: features (N, d), labels (N,), weight
    (K, d), bias (K,) if there is one, test_features, test_labels and ood_features. targets: `vectors` for
    batches with floats (n, t), which are the array targets in place of labels; `tags` for 0 and 1 (n, K),
    the array tags. Arguments as in `measure_model`.
    """
    if targets not in ARRAYS:
        raise InputError(f"targets: {shown(targets)} is unknown; take {', '.join(ARRAYS)}")
    if targets != "classes" and ood_loader is not None:
        raise InputError(f"ood_loader: does not apply to {targets}; leave it out")
    loaders = {TRAIN: loader, TEST: test_loader, OOD: ood_loader}
    options = {
        "device": device, "select": select, "forward": forward, "labels_key": labels_key,
        "progress": progress,
    }  # fmt: skip
    splits, weight, bias = _arrays(model, classifier, loaders, (), targets, options)
    arrays = {}
    for split, (values, labels) in splits.items():
        for name, tensor in (("features", values[LAST_LAYER]), (ARRAYS[targets], labels)):
            arrays[name if split == TRAIN else f"{split}_{name}"] = _to_numpy(tensor)
    arrays["weight"] = _to_numpy(weight)
    if bias is not None:
        arrays["bias"] = _to_numpy(bias)
    arrays.pop("ood_labels", None)
    return arrays


def _of_classes(batches: Iterable[Batch], name: str, chosen: Tensor, total: int) -> Iterator[Batch]:
    """Yield the samples of the chosen classes (K',) of all `total`, with their places in it as labels.

    Raises InputError for a class without samples.
    """
    samples = torch.zeros(len(chosen), dtype=torch.int64, device="cpu")
    for values, labels in batches:
        numbers = renumber(labels, chosen, total)
        measured = numbers >= 0
        numbers = numbers[measured]
        yield {point: value[measured.to(value.device)] for point, value in values.items()}, numbers
        samples += torch.bincount(numbers.cpu(), minlength=len(chosen))
    if len(empty := chosen[samples == 0]):
        raise InputError(f"{name}: class {int(empty[0])} has no samples; leave it out of `classes`")


def _measure(
    model: nn.Module, head: Classifier, runs: Mapping[str, KeptPass], classes: Classes, by_sample: bool
) -> Measurements:
    """Measure all hook points together: the features of a split are read twice."""
    total = head.classes
    learned: dict[str, ClassStatistics] | None = None
    if isinstance(classes, str) and classes == "present":
        accumulators = accumulate(runs[TRAIN](), total)
        chosen = present_classes(accumulators[LAST_LAYER].counts)
        learned = {layer: held.result_of(chosen) for layer, held in accumulators.items()}
    else:
        chosen = select_classes(classes, total)
    for split in runs.keys() & {TRAIN, TEST} if len(chosen) < total else ():
        runs[split].select = functools.partial(_of_classes, name=ARGUMENTS[split], chosen=chosen, total=total)
    learned = learned or first_pass(runs[TRAIN](), len(chosen), TRAIN)
    rows = chosen.to(head.weight.device)
    weight, bias = head.weight[rows], None if head.bias is None else head.bias[rows]
    check_finite("the classifier's weight", weight)
    check_finite("the classifier's bias", bias)
    classified = {split: run for split, run in runs.items() if split != OOD}
    classifiers = {LAST_LAYER: (weight, bias)}
    layers = both_passes(classified, learned, classifiers, by_sample)
    check_passes(classified, layers, AGAIN, head.rounding(model))
    for split, last in layers[LAST_LAYER].items():
        for message in data_warnings(split, last.statistics.counts, weight.shape[1], chosen):
            warn(message)
    measured = measure_layers(layers, {LAST_LAYER: weight}, chosen)
    if OOD in runs:
        outliers = _outliers((run() for run in runs.values()), weight, bias)
        measured = measured.with_records([*measured, *outliers])
    return measured


def _outliers(
    passes: Iterable[Iterable[Batch]], weight: Tensor, bias: Tensor | None
) -> Iterator[Measurement]:
    """Yield how well scores tell samples of other data from test samples; passes: of train, test and ood."""
    (train, labels), (test, _), (ood, _) = map(joined, passes)
    for layer, features in train.items():
        check_outliers(ood[layer], features, test[layer])
        classifier = (weight, bias) if layer == LAST_LAYER else (None, None)
        values = outlier_metrics(features, labels, test[layer], ood[layer], *classifier)
        yield from rows_of(layer, OOD, values)


def _to_numpy(tensor: Tensor) -> np.ndarray:
    """Return a NumPy array; bfloat16, which NumPy lacks, becomes float32."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
