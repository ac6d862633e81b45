"""A run's features on disk: one safetensors file, arrays by name and what the network says of itself."""

import json
from dataclasses import asdict, astuple
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ncpipe.datasets.prepared import FORMS, Split
from ncpipe.features.extraction import Features, NetworkMetadata
from ncpipe.features.rank_bound import MatrixRank
from ncpipe.metrics.sample_statistics import LayerOnSplit, SampleStatistics
from ncpipe.metrics.statistics import ClassStatistics
from ncpipe.metrics.table import TEST, TRAIN, TRUE
from ncpipe.system.errors import InputError
from ncpipe.system.tensor_files import load_tensors, save_tensors

METADATA = "network"  # the note in a file that holds them


def features_at(run: Path, epoch: int) -> Path:
    """Return the file of features of weights kept during training. run: its place, without a suffix."""
    return run / f"e{epoch}.safetensors"


def write_features(path: Path, features: Features) -> None:
    """Write as one safetensors file, into a folder that is published when all of its files are written."""
    answers = features.train.array
    tensors = {
        "train.features": features.train.inputs,
        f"train.{answers}": features.train.labels,
        "weight": features.weight,
        "penalty.last": torch.tensor(features.last_penalty, dtype=torch.float64),
        "penalty.inner": torch.tensor(features.inner_penalty, dtype=torch.float64),
        "gradient.norm": torch.tensor(features.gradient_norm, dtype=torch.float64),
    }
    if features.test is not None:
        tensors |= {"test.features": features.test.inputs, f"test.{answers}": features.test.labels}
    if features.target is not None:
        tensors |= {"target.features": features.target.inputs, "target.labels": features.target.labels}
    if features.ood is not None:
        tensors["ood.features"] = features.ood.inputs
    if features.bias is not None:
        tensors["bias"] = features.bias
    for name, rank in features.ranks.items():
        tensors[f"ranks/{name}"] = torch.tensor(astuple(rank), dtype=torch.float64)
    for index, (name, splits) in enumerate(features.layers.items()):
        for split, layer in splits.items():
            for part, record in (("statistics", layer.statistics), ("samples", layer.samples)):
                for field, tensor in record.tensors().items():
                    tensors[f"layers/{index:03d}/{name}/{split}/{part}/{field}"] = tensor.cpu()
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
    form = next(form for form in FORMS.values() if f"train.{form.array}" in tensors)
    return Features(
        form(tensors["train.features"], tensors[f"train.{form.array}"]),
        form(tensors["test.features"], tensors[f"test.{form.array}"]) if "test.features" in tensors else None,
        tensors["weight"],
        tensors.get("bias"),
        tensors["penalty.last"].item(),
        tensors["penalty.inner"].item(),
        tensors["gradient.norm"].item(),
        _read_layers(tensors),
        metadata,
        Split(tensors["target.features"], tensors["target.labels"]) if "target.labels" in tensors else None,
        {
            key.removeprefix("ranks/"): MatrixRank(*tensors[key].tolist())
            for key in sorted(tensors)
            if key.startswith("ranks/")
        },
        Split(tensors["ood.features"], torch.zeros(len(tensors["ood.features"]), dtype=torch.int64))
        if "ood.features" in tensors
        else None,
    )


def _read_layers(tensors: dict[str, Tensor]) -> dict[str, dict[str, LayerOnSplit]]:
    fields: dict[tuple[str, str, str], dict[str, Tensor]] = {}
    for key in sorted(key for key in tensors if key.startswith("layers/")):
        _, _, name, split, part, field = key.split("/")
        fields.setdefault((name, split, part), {})[field] = tensors[key]
    names, written = (dict.fromkeys(key[at] for key in fields) for at in (0, 1))
    splits = [split for split in (TRAIN, TEST, TRUE) if split in written]
    return {
        name: {
            split: LayerOnSplit(
                ClassStatistics.from_tensors(**fields[name, split, "statistics"]),
                SampleStatistics(**fields[name, split, "samples"]),
            )
            for split in splits
        }
        for name in names
    }
