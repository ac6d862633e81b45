"""NC0, NC2 without a best scale, and losses by hand; the conformance suite has all metrics exactly."""

import math

import numpy as np
import pytest
import torch
from conftest import rotation
from torch import Tensor

from ncpipe.metrics.geometry import nc0_relative, nc0_row_sum, nc2_etf, nc3_duality, simplex_etf_gram
from ncpipe.metrics.losses import logits_of, prediction_error, unregularised_loss
from ncpipe.metrics.statistics import class_statistics


def simplex_etf(classes: int, width: int, seed: int = 0) -> Tensor:
    """Rows: a simplex ETF of unit vectors in a random orientation."""
    frame = simplex_etf_gram(classes) * (classes / (classes - 1)) ** 0.5
    return frame @ rotation(width, seed)[:classes]


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_nc0_is_0_for_a_simplex_and_1_for_equal_rows(classes: int) -> None:
    """A shift of every row by s adds K |s|^2. Red: |W|^2 in place of its sum; a division by K^2."""
    simplex, shift = simplex_etf(classes, 16), rotation(16, 3)[0]
    assert nc0_row_sum(5 * simplex) < 1e-25
    assert nc0_relative(5 * simplex) < 1e-25
    assert nc0_row_sum(simplex + 2 * shift) == pytest.approx(4 * classes, rel=1e-12)
    assert nc0_relative(simplex + 2 * shift) == pytest.approx(4 / 5, rel=1e-12)
    equal = shift.expand(classes, -1)
    assert nc0_relative(1e-200 * equal) == pytest.approx(1, rel=1e-14)
    assert math.isnan(nc0_relative(torch.zeros(classes, 3)))


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


def test_a_common_shift_of_the_rows_counts_in_nc3_duality() -> None:
    """0 for W = M and for a shift that no mean sees, by the formula for any other. Red: the promise of 0."""
    means = torch.eye(4, 7, dtype=torch.float64) - torch.eye(4, 7, dtype=torch.float64).mean(0)
    statistics = class_statistics(means.repeat(2, 1), torch.arange(4).repeat(2), 4)
    apart, along = torch.zeros(7, dtype=torch.float64), torch.zeros(7, dtype=torch.float64)
    apart[5], along[0] = 3.0, 3.0
    assert nc3_duality(statistics, 2 * means) == pytest.approx(0, abs=1e-15)
    assert nc3_duality(statistics, 2 * means + apart) == pytest.approx(0, abs=1e-15)
    rows = means.numpy() / np.linalg.norm(means.numpy(), axis=1, keepdims=True)
    product = (2 * means + along).numpy() @ rows.T
    target = (np.eye(4) - 1 / 4) / np.sqrt(3)
    wanted = np.linalg.norm(product / np.linalg.norm(product) - target)
    assert nc3_duality(statistics, 2 * means + along) == pytest.approx(wanted, rel=1e-12)
    assert wanted > 0.5
