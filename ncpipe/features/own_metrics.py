"""The metrics of a study.py, whose functions are given what they name.

B  samples of a block    N  samples    K  classes    d  width
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from ncpipe.config.arguments import argument_names
from ncpipe.config.run import Run
from ncpipe.config.study import call, mistake
from ncpipe.config.study_files import MEASURE
from ncpipe.features.extraction import Features
from ncpipe.features.layer_samples import Trained, split_batches
from ncpipe.metrics.catalogue import Metric
from ncpipe.metrics.kept_pass import Batch
from ncpipe.metrics.losses import logits_of
from ncpipe.metrics.statistics import ClassStatistics, class_statistics
from ncpipe.metrics.study_metrics import KEPT_ON_THE_WAY, LAST_ALONE, of_samples, own_metrics
from ncpipe.metrics.table import LAST_LAYER, TARGET, TEST, TRAIN, WEIGHTS, Measurement
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import global_generators

SAMPLES = frozenset({"samples", "train_samples"})  # what a function reads by a forward pass


@dataclass(frozen=True)
class Blocks:
    """A layer's samples: each iteration gives features (B, d) in float64 with labels (B,), block by block."""

    batches: Callable[[], Iterable[Batch]]  # of all layers of a split
    layer: str

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for layers, labels in self.batches():
            yield layers[self.layer].double(), labels


def own_measurements(run: Run, features: Features, trained: Trained | None = None) -> Iterator[Measurement]:
    """Yield every metric of study.py, wherever what it names is known.

    Of a function that names statistics, samples or a split's labels: on each layer and split; on the last
    layer alone if it names what only that has. Of any other: once, as of the weights. trained: None on the
    way through training, where metrics that need more than `study_metrics.KEPT_ON_THE_WAY` are left out.
    """
    metrics = own_metrics(run.study)
    if not metrics:
        return
    named = {name for function in metrics.values() for name in argument_names(function)}
    shared: dict[str, Any] = {"weight": features.weight, "bias": features.bias}
    roles = features.metadata.roles
    shared |= {"roles": roles, "spec": run.spec, "depth": run.depth}
    batches: Callable[[str], Iterable[Batch]] | None = None
    if trained is not None:
        shared["weights"] = {name: v.double() for name, v in trained.weights.items() if name in roles}
        if not SAMPLES.isdisjoint(named):
            batches = split_batches(trained)
    for metric, function in metrics.items():
        names = set(argument_names(function))
        if trained is None and not names <= KEPT_ON_THE_WAY:
            continue
        if not of_samples(function):
            value = number_of(metric, function, shared, run.seed)
            yield Measurement(LAST_LAYER, WEIGHTS, metric.name, value)
            continue
        for layer, split, classes, train in _statistics(run, features):
            if layer != LAST_LAYER and not LAST_ALONE.isdisjoint(names):
                continue
            given = shared | ({} if classes is None else {"classes": classes, "train": train})
            if batches is not None:
                for name, source in (("samples", split), ("train_samples", TRAIN)):
                    given[name] = Blocks(partial(batches, source), layer)
            given |= {} if LAST_ALONE.isdisjoint(names) else _logits(features, split)
            if names <= given.keys():
                yield Measurement(layer, split, metric.name, number_of(metric, function, given, run.seed))


def _statistics(
    run: Run, features: Features
) -> Iterator[tuple[str, str, ClassStatistics | None, ClassStatistics | None]]:
    """Yield each layer and split with the statistics of its classes and of the training split's.

    Where the targets are vectors: the last layer, without statistics. The classes that the network was not
    trained on, if there are such, are the split `target` of the last layer.
    """
    if not features.layers:
        yield LAST_LAYER, TRAIN, None, None
        if features.test is not None:
            yield LAST_LAYER, TEST, None, None
    for layer, by_split in features.layers.items():
        if layer not in features.metadata.positions:
            continue
        for split, on in by_split.items():
            yield layer, split, on.statistics, by_split[TRAIN].statistics
        target = features.target
        if layer == LAST_LAYER and target is not None:
            seen = class_statistics(target.inputs, target.labels, int(target.labels.max()) + 1)
            yield layer, TARGET, seen, by_split[TRAIN].statistics


def _logits(features: Features, split: str) -> dict[str, Tensor]:
    """Return logits (N, K) and labels (N,) of training or test samples; nothing of another split.

    Labels are (N, K) where the targets are vectors or tags. Classes of the split `target` have no logits.
    """
    samples = dict(features.splits()).get(split)
    if samples is None:
        return {}
    logits = logits_of(samples.inputs, features.weight, features.bias)
    return {"logits": logits, "labels": samples.labels}


def number_of(metric: Metric, function: Callable[..., Any], given: Mapping[str, Any], seed: int = 0) -> float:
    """Return what a metric of study.py gives; InputError, with its line, if that is no number.

    It gets copies, so that it cannot change what the next metric sees. seed: of the run, for a metric that
    draws from a global generator.
    """
    names = argument_names(function)
    arguments = {name: given[name] if name in SAMPLES else copy.deepcopy(given[name]) for name in names}
    try:
        with global_generators(seed, f"metric {metric.name}"):
            value = call(function, stage=MEASURE, **arguments)
    except InputError as error:
        if ClassStatistics.__name__ not in str(error):
            raise
        raise InputError(f"{error}; `classes` and `train` are statistics: K is len(classes.counts)") from None
    if isinstance(value, Tensor) and value.numel() != 1:
        raise _mistake(metric, function, f"gives a tensor of shape {tuple(value.shape)}; expected one number")
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        kind = type(value).__name__
        raise _mistake(metric, function, f"gives what is no number, but a {kind}") from None


def _mistake(metric: Metric, function: Callable[..., Any], problem: str) -> InputError:
    return mistake(function, f"the metric {metric.name} {problem}", "METRICS")
