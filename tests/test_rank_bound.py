"""The distance of decayed weights from rank K and its bound by the spread of what enters the layer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import experiment_tree, vector_data
from training_cases import MLP, PLAIN

from ncpipe.config.experiment import Experiment
from ncpipe.config.records import read
from ncpipe.config.run import Run
from ncpipe.features.extraction import extract
from ncpipe.features.files import read_features, write_features
from ncpipe.features.rank_bound import matrix_ranks
from ncpipe.features.run_metrics import ranks_of
from ncpipe.metrics.catalogue import RANKS
from ncpipe.metrics.collapse import within_trace
from ncpipe.metrics.statistics import class_statistics
from ncpipe.models.build import build_model, input_shape
from ncpipe.models.network import Network
from ncpipe.papers.k23.rank_bound import (
    clusters,
    decay_slope,
    largest_distance,
    largest_share,
    layer_ranks,
    trained_ranks,
)
from ncpipe.training.loop import train_batch

DECAY = 0.02
CPU = torch.device("cpu")
DATA = vector_data(per_class=5)
ALL = {"rule": "constant", "value": DECAY, "last_layer": None, "scope": "all"}


def drawn(seed: int, width: int = 6, depth: int = 4, classes: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(width, width)] * (depth - 1) + [(classes, width)]
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("seed", range(5))
def test_it_holds_wherever_the_weights_stand(seed: int) -> None:
    """At no critical point, by the gradient that is left. Red: without it, or with another layer's deltas."""
    data = clusters(2, 3, 4, 6, 0.5, seed)
    weights = drawn(seed)
    ranks = layer_ranks(weights, data, DECAY)
    assert len(ranks) == 3
    for rank, weight in zip(ranks, weights, strict=False):
        u, s, v = np.linalg.svd(weight.numpy())
        nearest = (u[:, :2] * s[:2]) @ v[:2]
        assert rank.distance == pytest.approx(np.linalg.norm(weight.numpy() - nearest), rel=1e-10)
        assert rank.distance <= rank.bound


def test_its_parts_are_those_of_the_definitions() -> None:
    """|delta| from the change of the loss as a pre-activation is shifted; TCV as NC1's numerator."""
    data = clusters(3, 1, 5, 4, 0.5, 0)
    weights = drawn(1, width=4, depth=3, classes=3)
    h = data.inputs

    def loss(shift: torch.Tensor) -> torch.Tensor:
        out = (h @ weights[0].T).tanh() @ weights[1].T + shift
        logits = out.tanh() @ weights[2].T
        return torch.nn.functional.cross_entropy(logits, data.labels)

    step, size = 1e-6, 0.0
    for i in range(len(h)):
        for j in range(4):
            moved = torch.zeros(len(h), 4, dtype=torch.float64)
            moved[i, j] = step
            size += ((loss(moved) - loss(-moved)).item() / (2 * step)) ** 2
    second = layer_ranks(weights, data, DECAY)[1]
    entering = class_statistics((h @ weights[0].T).tanh(), data.labels, 3)
    assert second.variation == pytest.approx(within_trace(entering).item(), rel=1e-12)
    allowed = (size * len(h) * second.variation) ** 0.5 + second.gradient
    assert second.bound == pytest.approx(allowed / DECAY, rel=1e-6)


def test_of_collapsed_inputs_nothing_is_left_but_the_gradient() -> None:
    ranks = trained_ranks(clusters(3, 1, 4, 6, 0.0, 0), 3, 0.01, 0)
    for rank in ranks:
        assert rank.variation < 1e-30
        assert rank.gradient < 1e-6
        assert rank.distance <= rank.bound < 1e-4


def test_classes_of_several_clusters_need_more_than_rank_k() -> None:
    """The bound is then no empty statement: distances are of the weights' own size."""
    args = {"classes": 2, "modes": 4, "per_mode": 4, "width": 6, "depth": 4, "spread": 0.3, "seed": 0}
    assert 0.01 < largest_share(**args, decay=0.003) <= 1
    assert largest_distance(**args, decay=0.003) > 0.5
    assert decay_slope(**args, low=0.0003, high=0.01) < 0


def perceptron(model: dict[str, Any] = MLP, **changes: Any) -> Run:
    tree = experiment_tree(**{"penalty": ALL} | changes) | {"model": model}
    return Run("x", 4, 0, read(Experiment, tree))


def built(run: Run) -> Network:
    """With weights as drawn, in float64, running statistics far from the batch's."""
    return build_model(run.spec.model, input_shape(DATA, run.spec.model), 3, run.depth, 0).double().eval()


def fit(network: Network, shifted: int | None = None, shift: torch.Tensor | None = None) -> torch.Tensor:
    """Mean cross-entropy of a perceptron, written out; what comes out of one of its matrices shifted."""
    state = network.state_dict()
    h = DATA.train.inputs.double()
    for at in range(3):
        z = h @ state[f"maps.{at}.weight"].T + state[f"maps.{at}.bias"]
        z = z + shift if at == shifted and shift is not None else z
        if f"norms.{at}.weight" in state:
            z = (z - z.mean(0)) / (z.var(0, unbiased=False) + 1e-5).sqrt()
            z = z * state[f"norms.{at}.weight"] + state[f"norms.{at}.bias"]
        h = z.clamp(min=0)
    logits = h @ state["last.weight"].T + state["last.bias"]
    return torch.nn.functional.cross_entropy(logits, DATA.train.labels)


@pytest.mark.parametrize("model", [MLP, PLAIN], ids=["batch norm", "none"])
def test_networks_have_the_parts_of_the_definition(model: dict[str, Any]) -> None:
    """Of the second, by differences of the loss. Red: batch norm by running statistics; the fit's sum."""
    run = perceptron(model)
    network = built(run)
    ranks = matrix_ranks(network, run, DATA, CPU)
    assert list(ranks) == ["maps.0", "maps.1", "maps.2"]
    weight = network.get_parameter("maps.1.weight").detach()
    samples, step = len(DATA.train), 1e-6
    delta = torch.zeros(samples, 7, dtype=torch.float64)
    for i in range(samples):
        for j in range(7):
            moved = torch.zeros_like(delta)
            moved[i, j] = step
            delta[i, j] = (fit(network, 1, moved) - fit(network, 1, -moved)) / (2 * step)
    first = DATA.train.inputs.double() @ network.get_parameter("maps.0.weight").detach().T
    first = first + network.get_parameter("maps.0.bias").detach()
    if model is MLP:
        first = (first - first.mean(0)) / (first.var(0, unbiased=False) + 1e-5).sqrt()
    h = first.clamp(min=0)
    spread = sum(
        (h[i] - h[DATA.train.labels == DATA.train.labels[i]].mean(0)).square().sum() for i in range(samples)
    )
    gradient = (delta.T @ h + DECAY * weight).norm()
    bound = (delta.norm() * spread.sqrt() + gradient) / DECAY
    assert ranks["maps.1"].bound == pytest.approx(bound.item(), rel=1e-5)
    assert ranks["maps.1"].distance == pytest.approx(np.linalg.norm(np.linalg.svd(weight)[1][3:]), rel=1e-9)
    assert ranks["maps.1"].size == pytest.approx(weight.norm().item())
    assert all(rank.distance <= rank.bound for rank in ranks.values())
    assert not network.training


def test_runs_with_decay_on_everything_have_both_columns(tmp_path: Path) -> None:
    """Through the file of features. Red: of the first matrix alone; of networks whose first layer is free."""
    run = perceptron()
    (trained,) = train_batch([run], DATA, CPU, "float32")
    write_features(tmp_path / "f.safetensors", extract(run, trained.state, DATA, CPU))
    features = read_features(tmp_path / "f.safetensors")
    ranks = features.ranks.values()
    assert list(features.ranks) == ["maps.0", "maps.1", "maps.2"]
    values = {row.metric: row.value for row in ranks_of(features)}
    assert set(values) == {metric.name for metric in RANKS}
    assert values["rank_distance"] == max(r.distance / r.size for r in ranks) < 1
    assert values["rank_bound_share"] == max(r.distance / r.bound for r in ranks) <= 1
    for other in (perceptron(penalty=ALL | {"scope": "matrices"}), perceptron(batch_size=4)):
        assert matrix_ranks(built(other), other, DATA, CPU) == {}
    broken = built(run)
    torch.nn.init.constant_(broken.last.weight, float("nan"))
    assert matrix_ranks(broken, run, DATA, CPU) == {}
