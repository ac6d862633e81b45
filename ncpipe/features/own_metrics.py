"""The metrics of a study.py, whose functions are given what they name.

B  samples of a block    N  samples    K  classes    d  width
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ncpipe.config.arguments import argument_names
from ncpipe.config.specs import Run
from ncpipe.config.study import call, loaded
from ncpipe.config.study_files import MEASURE
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.features.forward import layers_by_batch, load_network
from ncpipe.features.passes import Features
from ncpipe.metrics.catalogue import KEPT_ON_THE_WAY, LAST_ALONE, Metric, of_samples, own_metrics
from ncpipe.metrics.losses import logits_of
from ncpipe.metrics.statistics import ClassStatistics
from ncpipe.metrics.table import LAST_LAYER, TRAIN, WEIGHTS, Measurement
from ncpipe.models.network import Network
from ncpipe.system.errors import InputError

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Blocks:
    """A layer's samples: each iteration gives features (B, d) in float64 with labels (B,), block by block."""

    network: Network
    run: Run
    data: Prepared
    split: Split
    layer: str

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for layers, labels in layers_by_batch(self.network, self.run, self.data, self.split, CPU):
            yield layers[self.layer], labels


@dataclass(frozen=True)
class Whole:
    """What the metrics of a finished run may need besides its features: weights by name, and its data."""

    state: dict[str, Tensor]
    data: Callable[[], Prepared]


def own_measurements(run: Run, features: Features, whole: Whole | None) -> Iterator[Measurement]:
    """Yield every metric of study.py, wherever what it names is known.

    Of a function that names statistics, samples or a split's labels: on each layer and split; on the last
    layer alone if it names what only that has. Of any other: once, as of the weights. whole: None on the way
    through training, where metrics that need more than `catalogue.KEPT_ON_THE_WAY` are left out.
    """
    metrics = own_metrics()
    if not metrics:
        return
    names = {name for function in metrics.values() for name in argument_names(function)}
    shared: dict[str, Any] = {"weight": features.weight, "bias": features.bias}
    shared |= {"roles": features.metadata.roles, "spec": run.spec, "depth": run.depth}
    data: Prepared | None = None
    network: Network | None = None
    if whole is not None:
        shared["weights"] = {name: value.double() for name, value in whole.state.items()}
        if "samples" in names:
            data = whole.data()
            network = load_network(run, whole.state, data, CPU)
    splits = {} if data is None else dict(data.measured())
    for metric, function in metrics.items():
        if whole is None and not KEPT_ON_THE_WAY.issuperset(argument_names(function)):
            continue
        if not of_samples(function):
            value = number_of(metric, function, shared)
            yield Measurement(LAST_LAYER, WEIGHTS, metric.name, value)
            continue
        for layer, by_split in features.layers.items():
            if layer not in features.metadata.positions or (
                layer != LAST_LAYER and LAST_ALONE.intersection(argument_names(function))
            ):
                continue
            for split, on in by_split.items():
                given = shared | {"classes": on.statistics, "train": by_split[TRAIN].statistics}
                if network is not None and data is not None and split in splits:
                    given["samples"] = Blocks(network, run, data, splits[split], layer)
                given |= _logits(features, split) if LAST_ALONE.intersection(argument_names(function)) else {}
                if set(argument_names(function)) <= given.keys():
                    yield Measurement(layer, split, metric.name, number_of(metric, function, given))


def _logits(features: Features, split: str) -> dict[str, Tensor]:
    """Return logits (N, K) and labels (N,) of training or test samples; nothing of another split."""
    samples = {TRAIN: features.train, "test": features.test}.get(split)
    if samples is None:
        return {}
    logits = logits_of(samples.inputs, features.weight, features.bias)
    return {"logits": logits, "labels": samples.labels}


def number_of(metric: Metric, function: Callable[..., Any], given: Mapping[str, Any]) -> float:
    """Return what a metric of study.py gives; InputError, with its line, if that is no number."""
    try:
        value = call(function, stage=MEASURE, **{name: given[name] for name in argument_names(function)})
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


def _mistake(metric: Metric, function: Callable[..., Any], what: str) -> InputError:
    name = getattr(function, "__name__", "")
    at = name if name in loaded().lines else "METRICS"
    return loaded().mistake(at, f"the metric {metric.name} {what}")
