"""Last-layer features of a trained run, in float64, and the two parts of its penalty."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ncpipe.artifacts import publish_file
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.errors import InputError
from ncpipe.models.build import LAST_WEIGHT, arrange, build_model, input_shape, penalised
from ncpipe.specs import Run

ROWS = 50_000  # samples x tokens of one forward pass


@dataclass(frozen=True)
class Features:
    """What `measure` sees of a run, all float64.

    train, test: features (N, d) as inputs, with their labels (N,). weight (K, d), bias (K,) or None: the
    last layer. last_penalty, inner_penalty: lambda_L/2 |W_L|^2, and lambda/2 |.|^2 of all other penalised
    matrices.
    """

    train: Split
    test: Split
    weight: Tensor
    bias: Tensor | None
    last_penalty: float
    inner_penalty: float


@torch.no_grad()
def extract(run: Run, state: dict[str, Tensor], data: Prepared, device: torch.device) -> Features:
    """Forward passes of a trained run over both splits; weights and arithmetic in float64."""
    model = run.spec.model
    shape = input_shape(data, model)
    network = build_model(model, shape, data.classes, run.depth, run.seed)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{run.name}: weights do not fit the architecture ({reason}); train it anew"
        ) from None
    network = network.to(device, torch.float64).eval()
    splits = []
    for split in (data.train, data.test):
        samples = arrange(split, data.kind, model, device, torch.float64)
        chunk = max(1, ROWS // (shape.tokens or 1))
        parts = [samples[start : start + chunk] for start in range(0, len(samples), chunk)]
        features = torch.cat([network.features(part.inputs, part.lengths) for part in parts])
        splits.append(Split(features.cpu(), split.labels))
    squares = {name: t.double().square().sum().item() for name, t in state.items() if penalised(name)}
    last_square = squares.pop(LAST_WEIGHT)
    bias = state.get("last.bias")
    return Features(
        splits[0],
        splits[1],
        state[LAST_WEIGHT].double(),
        None if bias is None else bias.double(),
        run.spec.penalty.last_strength(run.depth) / 2 * last_square,
        run.spec.penalty.inner_strength(run.depth) / 2 * sum(squares.values()),
    )


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
    )
