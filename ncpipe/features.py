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
from ncpipe.metrics.meters import CentreMeter, CentreStatistics, LayerMeter, LayerStatistics
from ncpipe.metrics.table import LAST_LAYER, TEST, TRAIN
from ncpipe.models.build import LAST_WEIGHT, penalties
from ncpipe.specs import Run

SPLITS = (TRAIN, TEST)

Batches = Iterable[tuple[dict[str, Tensor], Tensor]]
Classifier = Callable[[str], tuple[Tensor | None, Tensor | None]]


@dataclass(frozen=True)
class LayerOnSplit:
    """One layer on one split: its statistics, and where its samples lie about the train means."""

    statistics: LayerStatistics
    centres: CentreStatistics


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

    The second is for what lies nearest to a class mean, which is known when the means are.
    """
    network = load_network(run, state, data, device)
    weight = state[LAST_WEIGHT].double()
    bias = state["last.bias"].double() if "last.bias" in state else None

    def classifier(name: str) -> tuple[Tensor | None, Tensor | None]:
        return (weight, bias) if name == LAST_LAYER else (None, None)

    def batches(split: str) -> Batches:
        return layers_by_batch(network, run, data, getattr(data, split), device)

    seen = {split: _first_pass(batches(split), data.classes, classifier) for split in SPLITS}
    about = {split: _second_pass(batches(split), seen["train"], classifier) for split in SPLITS}
    last_penalty, inner_penalty = penalties(run.spec.penalty, run.depth, state)
    return Features(
        Split(about["train"][1], data.train.labels),
        Split(about["test"][1], data.test.labels),
        weight,
        bias,
        last_penalty,
        inner_penalty,
        {
            name: {split: LayerOnSplit(seen[split][name], about[split][0][name]) for split in SPLITS}
            for name in seen["train"]
        },
    )


def _first_pass(batches: Batches, classes: int, classifier: Classifier) -> dict[str, LayerStatistics]:
    meters: dict[str, LayerMeter] = {}
    for layers, labels in batches:
        for name, h in layers.items():
            if name not in meters:
                meters[name] = LayerMeter(classes, h.shape[1], *classifier(name), device=h.device)
            meters[name].update(h, labels)
    return {name: meter.result() for name, meter in meters.items()}


def _second_pass(
    batches: Batches, train: dict[str, LayerStatistics], classifier: Classifier
) -> tuple[dict[str, CentreStatistics], Tensor]:
    """Statistics about the train means by layer, and the last layer's features (N, d)."""
    meters = {name: CentreMeter(seen.classes.means, *classifier(name)) for name, seen in train.items()}
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
            for part, fields in (("statistics", layer.statistics), ("centres", layer.centres)):
                for field, tensor in fields.tensors().items():
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
                LayerStatistics.from_tensors(fields[name, split, "statistics"]),
                CentreStatistics.from_tensors(fields[name, split, "centres"]),
            )
            for split in SPLITS
        }
        for name in names
    }
