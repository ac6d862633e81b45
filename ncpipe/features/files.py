"""A run's features on disk: one safetensors file, arrays by name and what the network says of itself."""

import json
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ncpipe.datasets.prepared import FORMS
from ncpipe.features.extraction import Features, NetworkMetadata
from ncpipe.features.rank_bound import MatrixRank
from ncpipe.metrics.kept_pass import LayerOnSplit
from ncpipe.metrics.sample_statistics import SampleStatistics
from ncpipe.metrics.statistics import ClassStatistics
from ncpipe.metrics.table import TEST, TRAIN, TRUE
from ncpipe.system.errors import InputError
from ncpipe.system.tensor_files import load_tensors, save_tensors

METADATA = "network"  # the note in a file that holds them
SPLITS = ("train", "test", "target", "ood")
NUMBERS = {"penalty.last": "last_penalty", "penalty.inner": "inner_penalty", "gradient.norm": "gradient_norm"}


def features_at(run: Path, epoch: int) -> Path:
    """Return the file of features of weights kept during training. run: its place, without a suffix."""
    return run / f"e{epoch}.safetensors"


def write_features(path: Path, features: Features) -> None:
    """Write as one safetensors file, into a folder that is published when all of its files are written."""
    tensors = {"weight": features.weight}
    for name, field in NUMBERS.items():
        tensors[name] = torch.tensor(getattr(features, field), dtype=torch.float64)
    for name in SPLITS:
        if (split := getattr(features, name)) is not None:
            tensors |= {f"{name}.features": split.inputs, f"{name}.{split.array}": split.labels}
    if features.bias is not None:
        tensors["bias"] = features.bias
    for name, rank in features.ranks.items():
        tensors[f"ranks/{name}"] = torch.tensor(astuple(rank), dtype=torch.float64)
    for index, (name, splits) in enumerate(features.layers.items()):
        for on, layer in splits.items():
            for part, record in (("statistics", layer.statistics), ("samples", layer.samples)):
                for field, tensor in record.tensors().items():
                    tensors[f"layers/{index:03d}/{name}/{on}/{part}/{field}"] = tensor.cpu()
    metadata = {METADATA: json.dumps(asdict(features.metadata))}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_tensors({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata)


def read_features(path: Path) -> Features:
    """Read what `write_features` wrote; InputError if it is missing or damaged."""
    if not path.is_file():
        raise InputError(f"{path}: not found; run dvc repro (stage extract)")
    try:
        tensors = load_tensors(path)
        with safe_open(path, "pt") as file:
            notes = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: damaged ({error}); run ncpipe repair {path}") from None
    try:
        return _features(tensors, NetworkMetadata(**json.loads(notes[METADATA])))
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: of another version ({error}); run dvc repro (stage extract)") from None


def _features(tensors: dict[str, Tensor], metadata: NetworkMetadata) -> Features:
    numbers: dict[str, Any] = {field: tensors[name].item() for name, field in NUMBERS.items()}
    splits: dict[str, Any] = dict.fromkeys(SPLITS)
    for name in SPLITS:
        for form in FORMS.values():
            if f"{name}.{form.array}" in tensors:
                splits[name] = form(tensors[f"{name}.features"], tensors[f"{name}.{form.array}"])
    ranks = {
        key.removeprefix("ranks/"): MatrixRank(*tensors[key].tolist())
        for key in sorted(tensors)
        if key.startswith("ranks/")
    }
    return Features(
        weight=tensors["weight"],
        bias=tensors.get("bias"),
        layers=_layers(tensors),
        metadata=metadata,
        ranks=ranks,
        **numbers,
        **splits,
    )


def _layers(tensors: dict[str, Tensor]) -> dict[str, dict[str, LayerOnSplit]]:
    fields: dict[str, dict[str, dict[str, dict[str, Tensor]]]] = {}  # by layer, split and part
    for key in sorted(key for key in tensors if key.startswith("layers/")):
        _, _, name, split, part, field = key.split("/")
        parts = fields.setdefault(name, {}).setdefault(split, {"statistics": {}, "samples": {}})
        parts[part][field] = tensors[key]
    return {
        name: {
            split: LayerOnSplit(
                ClassStatistics.from_tensors(**splits[split]["statistics"]),
                SampleStatistics(**splits[split]["samples"]),
            )
            for split in (TRAIN, TEST, TRUE)
            if split in splits
        }
        for name, splits in fields.items()
    }
