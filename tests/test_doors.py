"""Doors into other people's loops, tried with their own libraries."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ncpipe.doors.torchmetrics import ClassCollapse
from ncpipe.errors import InputError
from ncpipe.metrics.table import measure_arrays

SECOND_PASS = {"nc1_pinv", "nc1_pinv_rank", "ncc_error"}


def samples(classes: int = 4, width: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(60) % classes
    means = torch.randn(classes, width, generator=draw)
    return means[labels] + 0.3 * torch.randn(60, width, generator=draw), labels


def wanted(features: Tensor, labels: Tensor) -> dict[str, float]:
    rows = {row.metric: row.value for row in measure_arrays(features, labels)}
    return {n: v for n, v in rows.items() if n not in SECOND_PASS and not n.startswith("singular_")}


@pytest.mark.parametrize("width", [6, 2])
def test_it_gives_what_arrays_give_whatever_the_batches(width: int) -> None:
    """Also with more classes than a simplex has corners. Red: batches averaged."""
    features, labels = samples(width=width)
    metric = ClassCollapse(4, width)
    for start in range(0, 60, 7):
        metric.update(features[start : start + 7], labels[start : start + 7])
    found = metric.compute()
    assert found == pytest.approx(wanted(features, labels), rel=1e-9, nan_ok=True)
    assert any(math.isnan(value) for value in found.values()) == (width == 2)


@pytest.mark.parametrize("scale", [1.0, 1e200])
def test_processes_are_merged(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchmetrics gathers states without a reduction; one process has no sample of some class."""
    features, labels = samples()
    features = scale * features.double()
    parts = [(features[:50], labels[:50]), (features[50:52], labels[50:52]), (features[52:], labels[52:])]
    metrics = []
    for part in parts:
        metrics.append(ClassCollapse(4, 6, distributed_available_fn=lambda: True))
        metrics[-1].update(*part)

    def gather(state: Tensor, group: Any = None) -> list[Tensor]:
        names = [name for name in metrics[0]._defaults if getattr(metrics[0], name) is state]
        return [getattr(metric, names[0]) for metric in metrics]

    metrics[0].dist_sync_fn = gather
    assert metrics[0].compute() == pytest.approx(wanted(features, labels), rel=1e-9)
    assert metrics[0].counts.shape == (4,)  # its own again afterwards


def test_it_goes_on_from_its_state_and_starts_anew() -> None:
    features, labels = samples()
    metric = ClassCollapse(4, 6)
    metric.persistent(True)
    metric.update(features[:30], labels[:30])
    other = ClassCollapse(4, 6)
    other.persistent(True)
    other.load_state_dict(metric.state_dict())
    other.update(features[30:], labels[30:])
    assert other.compute() == pytest.approx(wanted(features, labels), rel=1e-9)
    other.reset()
    other.update(features[:30], labels[:30])
    assert other.compute() == metric.compute()


def test_a_class_without_a_sample_is_named() -> None:
    features, labels = samples()
    metric = ClassCollapse(5, 6)
    metric.update(features, labels)
    with pytest.raises(InputError, match="class 4 has no samples"):
        metric.compute()
