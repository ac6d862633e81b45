"""NC0, NC2 without a best scale, and losses by hand; the conformance suite has all metrics exactly."""

import math

import pytest
import torch

from ncpipe.metrics.geometry import nc2_etf
from ncpipe.metrics.losses import logits_of, prediction_error, unregularised_loss


def test_negative_scales_are_not_allowed() -> None:
    """All rows equal: W W^T = 11^T has no ETF part, so the best c >= 0 is 0 and the distance is 1."""
    assert nc2_etf(torch.ones(4, 6)) == pytest.approx(1.0)


def test_losses_by_hand() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    labels = torch.tensor([0, 1, 1])
    weight, bias = torch.eye(2), torch.tensor([0.5, 0.0])
    logits = [[1.5, 0.0], [0.5, 2.0], [1.5, 1.0]]
    assert logits_of(features, weight, bias).tolist() == logits
    ce = sum(math.log(sum(map(math.exp, f))) - f[y] for f, y in zip(logits, labels.tolist(), strict=True)) / 3
    assert unregularised_loss(features, labels, weight, bias, "ce") == pytest.approx(ce, rel=1e-14)
    mse = (0.25 + 0.0 + 0.25 + 1.0 + 2.25 + 0.0) / 6
    assert unregularised_loss(features, labels, weight, bias, "mse") == pytest.approx(mse, rel=1e-14)
    assert prediction_error(features, labels, weight, bias) == pytest.approx(1 / 3)
    assert prediction_error(features, labels, weight, None) == pytest.approx(1 / 3)
