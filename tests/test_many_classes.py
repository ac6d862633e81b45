"""More classes than a simplex has corners, K > d + 1: what is undefined says so; what is asked instead."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import normal, split_values
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

from ncpipe.commands.cli import app
from ncpipe.metrics.hooks import measure_model
from ncpipe.metrics.statistics import class_statistics
from ncpipe.metrics.table import measure
from ncpipe.metrics.uniformity import means_uniformity, unc3_cosine, weight_uniformity
from ncpipe.system.errors import MeasurementWarning

UNDEFINED = {"nc2_means", "nc2_equiangular_means", "nc3_duality"}
UNDEFINED_WEIGHTS = {"nc2_etf", "nc2_identity", "nc2_equiangular_weights"}


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


def test_a_thousand_classes_of_width_64(tmp_path: Path) -> None:
    """A model and the command give the same, and say what is undefined."""
    classes, width = 1000, 64
    features, labels = (t.float() if t.is_floating_point() else t for t in samples(classes, width))
    head = nn.Linear(width, classes)
    with torch.no_grad():
        head.weight.copy_(normal(classes, width, seed=2))
    loader = DataLoader(TensorDataset(features, labels), batch_size=500)
    with pytest.warns(MeasurementWarning, match="1000 classes of width 64: no simplex has more than 65 corn"):
        rows = measure_model(nn.Sequential(head), "0", loader)
    found = split_values(rows, "train") | split_values(rows, "weights")
    assert {name for name, value in found.items() if math.isnan(value)} == UNDEFINED | UNDEFINED_WEIGHTS
    np.savez(tmp_path / "h.npz", features=features, labels=labels, weight=head.weight.detach())
    result = CliRunner().invoke(app, ["metrics", str(tmp_path / "h.npz"), "--json"])
    said = json.loads(result.stdout)
    assert [warning.split(":")[0] for warning in said["warnings"]] == ["1000 classes of width 64"]
    of_command = {r["metric"]: float(r["value"]) for r in said["measurements"] if r["split"] == "train"}
    assert of_command["nc2_means"] != of_command["nc2_means"]
    assert of_command["gnc2_spread_means"] == pytest.approx(found["gnc2_spread_means"], rel=1e-12)
