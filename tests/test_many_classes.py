"""More classes than a simplex has corners, K > d + 1: what is undefined says so; what is asked instead."""

import math

import pytest
import torch
from conftest import normal, rotation, split_values
from torch import Tensor, nn

from ncpipe.metrics.hooks import measure_model
from ncpipe.metrics.statistics import class_statistics
from ncpipe.metrics.table import measure
from ncpipe.metrics.uniformity import means_uniformity, unc3_cosine, weight_margin, weight_uniformity
from ncpipe.system.errors import MeasurementWarning

# The last of a code that is not known.
UNDEFINED = {"nc2_means", "nc2_equiangular_means", "nc3_duality", "gnc2_code_means"}
UNDEFINED_WEIGHTS = {"nc2_etf", "nc2_identity", "nc2_equiangular_weights", "gnc2_code_weights"}


def samples(classes: int, width: int, per_class: int = 3) -> tuple[Tensor, Tensor]:
    labels = torch.arange(classes).repeat(per_class)
    return normal(classes, width)[labels] + 0.3 * normal(len(labels), width, seed=1), labels


def test_a_simplex_of_d_plus_1_still_fits() -> None:
    """Red: K > d."""
    features, labels = samples(5, 4)
    names = {row.metric for row in measure(features, labels, normal(5, 4))}
    assert not any(name.startswith(("gnc2", "unc3")) for name in names)
    simplex = torch.linalg.svd(torch.eye(5, dtype=torch.float64) - 0.2)[0][:, :4]
    assert split_values(measure(features, labels, simplex), "weights")["nc2_etf"] < 1e-14


def test_where_directions_coincide_or_are_none() -> None:
    """Two means that point the same way to rounding, far from 0; a mean at the centre; a row of zeros."""
    rows = normal(8, 3)
    rows[1] = 2 * rows[0]
    assert weight_uniformity(rows)[:3] == (math.inf, math.inf, 1)
    means = normal(4, 2)
    means[1] = 2 * means[0] + torch.tensor([2e-13, 0])
    means = torch.cat([means, -means])  # about 0
    far = class_statistics(means + 100, torch.arange(8), 8)
    assert means_uniformity(far)[0] == math.inf
    near = class_statistics(means, torch.arange(8), 8)
    assert 0 < means_uniformity(near)[0] < math.inf
    rows[1] = 0
    assert all(math.isnan(value) for value in weight_uniformity(rows))
    assert math.isnan(unc3_cosine(near, rows[:, :2]))


def test_a_model_of_many_classes_says_what_is_undefined() -> None:
    classes, width = 100, 9
    features, labels = samples(classes, width)
    network = nn.Sequential(nn.Linear(width, classes)).double()
    with pytest.warns(MeasurementWarning, match="100 classes of width 9: no simplex has more than 10"):
        rows = measure_model(network, "0", [(features, labels)])
    found = split_values(rows, "train") | split_values(rows, "weights")
    assert {name for name, value in found.items() if math.isnan(value)} == UNDEFINED | UNDEFINED_WEIGHTS


def test_softmax_codes_have_their_margin() -> None:
    """A simplex and two pairs in orthogonal spaces, an orthoplex, a polygon; coinciding, too many rows."""
    simplex = torch.linalg.svd(torch.eye(4, dtype=torch.float64) - 0.25)[0][:, :3]
    pair = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    turns = torch.arange(7, dtype=torch.float64) * 2 * math.pi / 7
    for code in (
        torch.block_diag(simplex, pair, 3 * pair) @ rotation(5, 0),
        torch.block_diag(*[pair] * 4) @ rotation(4, 1),
        torch.stack([turns.cos(), turns.sin()], 1),
    ):
        assert weight_margin(code)[1] == pytest.approx(0, abs=1e-14)
    assert weight_margin(torch.cat([code, code[:1]])) == pytest.approx((0, 1), abs=1e-14)
    assert math.isnan(weight_margin(normal(257, 3))[0])
