"""The distance of decayed weights from rank K and its bound by the spread of what enters the layer."""

import numpy as np
import pytest
import torch

from ncpipe.claims.theory import CALLS
from ncpipe.metrics.collapse import within_trace
from ncpipe.metrics.statistics import class_statistics
from ncpipe.optima.rank_bound import clusters, layer_ranks, trained_ranks

DECAY = 0.02


def drawn(seed: int, width: int = 6, depth: int = 4, classes: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(width, width)] * (depth - 1) + [(classes, width)]
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("seed", range(5))
def test_it_holds_wherever_the_weights_stand(seed: int) -> None:
    """At no critical point, by the gradient that is left. Red: without it, or with another layer's deltas."""
    data = clusters(2, 3, 4, 6, 0.5, seed)
    weights = drawn(seed)
    found = layer_ranks(weights, data, DECAY)
    assert len(found) == 3
    for rank, weight in zip(found, weights, strict=False):
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
    found = trained_ranks(clusters(3, 1, 4, 6, 0.0, 0), 3, 0.01, 0)
    for rank in found:
        assert rank.variation < 1e-30
        assert rank.gradient < 1e-6
        assert rank.distance <= rank.bound < 1e-4


def test_classes_of_several_clusters_need_more_than_rank_k() -> None:
    """The bound is then no empty statement: distances are of the weights' own size."""
    args = {"classes": 2, "modes": 4, "per_mode": 4, "width": 6, "depth": 4, "spread": 0.3, "seed": 0}
    assert 0.01 < CALLS["rank_bound.share"].number(**args, decay=0.003) <= 1
    assert CALLS["rank_bound.distance"].number(**args, decay=0.003) > 0.5
    assert CALLS["rank_bound.decay_slope"].number(**args, low=0.0003, high=0.01) < 0
