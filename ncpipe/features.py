"""What a trained run's layers look like on its data, in float64: the input of every metric.

N  samples    K  classes    d  width
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ncpipe.artifacts import publish_file
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.errors import InputError
from ncpipe.forward import layers_by_batch, load_network
from ncpipe.metrics.meters import SampleMeter, SampleStatistics
from ncpipe.metrics.statistics import ClassStatistics, StatisticsAccumulator
from ncpipe.metrics.table import LAST_LAYER, TEST, TRAIN
from ncpipe.models.build import LAST_WEIGHT, penalties
from ncpipe.specs import Run

SPLITS = (TRAIN, TEST)

Batches = Iterable[tuple[dict[str, Tensor], Tensor]]
Classifier = Callable[[str], tuple[Tensor | None, Tensor | None]]


@dataclass(frozen=True)
class LayerOnSplit:
    """One layer on one split: its classes, and how its samples lie about them and the train means."""

    statistics: ClassStatistics
    samples: SampleStatistics


@dataclass(frozen=True)
class Features:
    """What `measure` sees of a run, all float64.

    train, test: last-layer features (N, d) as inputs, with their labels (N,). weight (K, d), bias (K,) or
    None: the last layer. last_penalty, inner_penalty: lambda_L/2 |W_L|^2, and lambda/2 |.|^2 of all other
    penalised matrices. layers: by name, in the order of the network, then by split.
    """

    train: Split
    test: Split
    weight: Tensor
    bias: Tensor | None
    last_penalty: float
    inner_penalty: float
    layers: dict[str, dict[str, LayerOnSplit]]


def extract(run: Run, state: dict[str, Tensor], data: Prepared, device: torch.device) -> Features:
    """Two passes of a trained run over each split; weights and arithmetic in float64.

    The second is for how samples lie about the class means, which are known then.
    """
    network = load_network(run, state, data, device)
    weight = state[LAST_WEIGHT].double()
    bias = state["last.bias"].double() if "last.bias" in state else None

    def classifier(name: str) -> tuple[Tensor | None, Tensor | None]:
        return (weight, bias) if name == LAST_LAYER else (None, None)

    def batches(split: str) -> Batches:
        return layers_by_batch(network, run, data, getattr(data, split), device)

    seen = {split: _first_pass(batches(split), data.classes) for split in SPLITS}
    about = {
        TRAIN: _second_pass(batches(TRAIN), seen[TRAIN], classifier),
        TEST: _second_pass(batches(TEST), seen[TEST], classifier, seen[TRAIN]),
    }
    last_penalty, inner_penalty = penalties(run.spec.penalty, run.depth, state)
    return Features(
        Split(about[TRAIN][1], data.train.labels),
        Split(about[TEST][1], data.test.labels),
        weight,
        bias,
        last_penalty,
        inner_penalty,
        {
            name: {split: LayerOnSplit(seen[split][name], about[split][0][name]) for split in SPLITS}
            for name in seen[TRAIN]
        },
    )


def _first_pass(batches: Batches, classes: int) -> dict[str, ClassStatistics]:
    accumulators: dict[str, StatisticsAccumulator] = {}
    for layers, labels in batches:
        for name, h in layers.items():
            if name not in accumulators:
                accumulators[name] = StatisticsAccumulator(classes, h.shape[1], h.device)
            accumulators[name].update(h, labels)
    return {name: accumulator.result() for name, accumulator in accumulators.items()}


def _second_pass(
    batches: Batches,
    own: dict[str, ClassStatistics],
    classifier: Classifier,
    train: dict[str, ClassStatistics] | None = None,
) -> tuple[dict[str, SampleStatistics], Tensor]:
    """Statistics about the means by layer, and the last layer's features (N, d)."""
    meters = {
        name: SampleMeter(seen, *classifier(name), None if train is None else train[name])
        for name, seen in own.items()
    }
    features = []
    for layers, labels in batches:
        for name, h in layers.items():
            meters[name].update(h, labels)
        features.append(layers[LAST_LAYER].cpu())
    return {name: meter.result() for name, meter in meters.items()}, torch.cat(features)


def write_features(path: Path, features: Features) -> None:
    """Write as one safetensors file, whole or not at all."""
    tensors = {
        "train.features": features.train.inputs,
        "train.labels": features.train.labels,
        "test.features": features.test.inputs,
        "test.labels": features.test.labels,
        "weight": features.weight,
        "penalty.last": torch.tensor(features.last_penalty, dtype=torch.float64),
        "penalty.inner": torch.tensor(features.inner_penalty, dtype=torch.float64),
    }
    if features.bias is not None:
        tensors["bias"] = features.bias
    for index, (name, splits) in enumerate(features.layers.items()):
        for split, layer in splits.items():
            for part, record in (("statistics", layer.statistics), ("samples", layer.samples)):
                for field, tensor in record.tensors().items():
                    tensors[f"layers/{index:03d}/{name}/{split}/{part}/{field}"] = tensor.cpu()
    with publish_file(path) as partial:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial)


def read_features(path: Path) -> Features:
    """Read what `write_features` wrote; InputError if it is missing or damaged."""
    if not path.is_file():
        raise InputError(f"{path}: not found; run dvc repro (stage extract)")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: damaged ({error}); delete it and run dvc repro") from None
    try:
        return _features(tensors)
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: of another version ({error}); run dvc repro (stage extract)") from None


def _features(tensors: dict[str, Tensor]) -> Features:
    return Features(
        Split(tensors["train.features"], tensors["train.labels"]),
        Split(tensors["test.features"], tensors["test.labels"]),
        tensors["weight"],
        tensors.get("bias"),
        tensors["penalty.last"].item(),
        tensors["penalty.inner"].item(),
        _read_layers(tensors),
    )


def _read_layers(tensors: dict[str, Tensor]) -> dict[str, dict[str, LayerOnSplit]]:
    fields: dict[tuple[str, str, str], dict[str, Tensor]] = {}
    for key in sorted(key for key in tensors if key.startswith("layers/")):
        _, _, name, split, part, field = key.split("/")
        fields.setdefault((name, split, part), {})[field] = tensors[key]
    names = dict.fromkeys(name for name, _, _ in fields)
    return {
        name: {
            split: LayerOnSplit(
                ClassStatistics(**fields[name, split, "statistics"]),
                SampleStatistics(**fields[name, split, "samples"]),
            )
            for split in SPLITS
        }
        for name in names
    }
