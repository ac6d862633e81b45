"""Small runs and data sets on which the constructions of S25 App. A stay small."""

from typing import Any

import torch
from conftest import TEXT, architecture, experiment
from torch import Tensor

from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.models.build import build_model, input_shape, prepare_split
from ncpipe.models.network import Network
from ncpipe.papers.s25.constructions.networks import Choices

SHARP = Choices("sharp", draws=32, detours=32, attention_exponent=0.25)
PRINTED = Choices("printed", draws=32, detours=32, attention_exponent=0.25)


def small_run(name: str, depth: int, width: int = 8, seed: int = 0, **changes: Any) -> Run:
    """A run of an architecture with LN's eps 0; model=... and other keys as of conftest.experiment."""
    keys = architecture(name, "post", width=width, layer_norm_eps=0.0)
    if "mlp_width" in keys:
        keys["mlp_width"] = width
    changes["model"] = keys | changes.get("model", {})
    return Run("small", depth, seed, experiment(**changes))


def context_run(name: str, depth: int, width: int = 8, **changes: Any) -> Run:
    return small_run(name, depth, width, data=TEXT, **changes)


def contexts() -> Prepared:
    """Six contexts of three tokens out of V = 3, two of them of two; pairs differ in their past alone."""
    ids = torch.tensor([[1, 0, 2], [2, 2, 1], [0, 1, 0], [0, 0, 2], [1, 2, 1], [2, 0, 0]])
    split = Split(ids, torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([3, 3, 2, 3, 3, 2]))
    return Prepared("tokens", 2, 3, split, split, {}, checksum="made by a test")


def network_of(run: Run, data: Prepared, state: dict[str, Tensor]) -> Network:
    """The run's own module with these weights, in float64."""
    model = run.spec.model
    network = build_model(model, input_shape(data, model), data.classes, run.depth, run.seed).double()
    network.load_state_dict(state)
    return network


@torch.no_grad()
def layers_of(run: Run, data: Prepared, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every step of the training samples' way, (N, d) by name."""
    samples = prepare_split(data.train, data.kind, run.spec.model, torch.device("cpu"), torch.float64)
    layers = network_of(run, data, state).layers(samples.inputs, samples.lengths)
    return {layer.name: layer.values for layer in layers if layer.position is not None}


def inner_square(state: dict[str, Tensor]) -> float:
    """sum |W|^2 over the matrices of the blocks."""
    return sum(
        value.square().sum().item()
        for name, value in state.items()
        if name.startswith("blocks.") and value.dim() == 2
    )
