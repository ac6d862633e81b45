"""Cross-entropy and squared error against sums that are written out, and each room's way to take them."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from ncpipe.metrics.loss_functions import LOSSES, cross_entropy, half_squared_error
from ncpipe.metrics.losses import logits_of, prediction_error, unregularised_loss
from ncpipe.training.objective import FITS, Outputs


def naive(name: str, logits: Tensor, shares: Tensor) -> np.ndarray:
    """Of each sample, class by class in Python's floats; logits and shares (M, K)."""
    found = []
    for f, y in zip(logits.tolist(), shares.tolist(), strict=True):
        if name == "ce":
            top = max(f)
            norm = top + math.log(sum(math.exp(a - top) for a in f))
            found.append(sum(share * (norm - a) for a, share in zip(f, y, strict=True)))
        else:
            found.append(sum((a - share) ** 2 for a, share in zip(f, y, strict=True)) / 2)
    return np.array(found)


@pytest.mark.parametrize("name", LOSSES)
def test_they_are_their_definitions(name: str) -> None:
    """Of labels and of shares, of one network's samples and of several networks'."""
    draw = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(3, 7, 5, generator=draw, dtype=torch.float64)
    labels = torch.randint(0, 5, (3, 7), generator=draw)
    hard = torch.nn.functional.one_hot(labels, 5).double()
    soft = torch.rand(3, 7, 5, generator=draw, dtype=torch.float64)
    soft /= soft.sum(-1, keepdim=True)
    loss = LOSSES[name]
    for targets, shares in ((labels, hard), (hard, hard), (soft, soft)):
        expected = naive(name, logits.flatten(0, 1), shares.flatten(0, 1))
        found = loss(logits, targets)
        assert found.shape == (3, 7)
        assert found.flatten().numpy() == pytest.approx(expected, rel=1e-13)
        assert loss(logits[0], targets[0]).numpy() == pytest.approx(expected[:7], rel=1e-13)
    each = naive(name, logits.flatten(0, 1), hard.flatten(0, 1)).reshape(3, 7)
    assert FITS[name](Outputs(logits, labels), name).numpy() == pytest.approx(each.sum(1), rel=1e-13)
    weight = torch.eye(5, dtype=torch.float64)
    found_mean = unregularised_loss(logits[1], labels[1], weight, None, name)
    assert found_mean == pytest.approx(each[1].mean(), rel=1e-13)


def test_logits_and_errors_by_hand() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    labels, weight, bias = torch.tensor([0, 1, 1]), torch.eye(2), torch.tensor([0.5, 0.0])
    assert logits_of(features, weight, bias).tolist() == [[1.5, 0.0], [0.5, 2.0], [1.5, 1.0]]
    assert prediction_error(features, labels, weight, bias) == pytest.approx(1 / 3)
    assert prediction_error(features, labels, weight, None) == pytest.approx(1 / 3)


def test_a_stack_of_runs_may_share_its_labels() -> None:
    """Red: a view of labels that are expanded and not copied."""
    logits, labels = torch.randn(3, 4, 2), torch.tensor([0, 1, 1, 0]).expand(3, 4)
    for loss in (cross_entropy, half_squared_error):
        assert torch.equal(loss(logits, labels), loss(logits, labels.clone()))
