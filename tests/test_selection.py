"""`measure_model` on some of the classes, on positions of sequences, and under masks."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ncpipe.metrics.hooks import measure_model
from ncpipe.metrics.table import measure

K, D = 6, 5
pytestmark = pytest.mark.filterwarnings(
    "ignore::ncpipe.system.errors.MeasurementWarning"
)  # classes not balanced


class Net(nn.Module):
    """The features are the inputs (n, d) or (n, T, d) themselves."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(D, K)

    def forward(self, features: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.fc(features)


def values(rows: Any) -> dict[tuple[str, str, str], float]:
    return {(row.layer, row.split, row.metric): row.value for row in rows}


def expected(
    net: Net, h: Tensor, labels: Tensor, ids: list[int], test: tuple[Tensor, Tensor] | None = None
) -> dict[tuple[str, str, str], float]:
    """By arrays that are cut down by hand: rows of the weight, samples and labels."""

    def cut(h: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        own = torch.tensor([int(label) in ids for label in labels])
        return h[own], torch.tensor([ids.index(int(label)) for label in labels[own]])

    with torch.no_grad():
        weight, bias = net.fc.weight[ids], net.fc.bias[ids]
        return values(measure(*cut(h, labels), weight, bias, *(cut(*test) if test else ())))


def close(found: dict[Any, float], wanted: dict[Any, float]) -> None:
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key] == pytest.approx(value, rel=1e-9, abs=1e-9, nan_ok=True), key


@pytest.mark.parametrize("classes", ["present", [1, 2, 4], [4, 1]])
def test_some_classes_are_measured_as_if_there_were_no_others(classes: Any) -> None:
    """Red: rows of the weight that are not those of the classes, labels that keep their numbers, test samples
    of other classes."""
    net, h = Net(), torch.randn(40, D)
    labels = torch.tensor([1, 2, 4, 2] * 10)
    if classes != "present":
        labels[::8] = 5  # of no class that is asked for
    test = torch.randn(30, D), torch.tensor([0, 1, 2, 4, 5] * 6)
    rows = measure_model(
        net, "fc", list(zip(h.split(7), labels.split(7), strict=True)), [test], classes=classes
    )
    ids = [1, 2, 4] if classes == "present" else sorted(classes)
    close(values(rows), expected(net, h, labels, ids, test))


@pytest.mark.parametrize("mask", [None, "attention_mask", lambda inputs: inputs["attention_mask"]])
def test_labels_of_positions_with_an_ignored_index_and_a_mask(mask: Any) -> None:
    """Red: rows and labels that no longer belong together after some are left out; a mask without effect."""
    net, h = Net(), torch.randn(16, 7, D)
    labels = torch.randint(0, K, (16, 7), generator=torch.Generator().manual_seed(1))
    labels[:, 0] = -100
    attention = (torch.arange(7) < 5).long().repeat(16, 1)
    batches = [
        {"features": h[i : i + 5], "labels": labels[i : i + 5], "attention_mask": attention[i : i + 5]}
        for i in range(0, 16, 5)
    ]
    kept = labels != -100
    if mask:
        kept &= attention.bool()
    rows = measure_model(net, "fc", batches, mask=mask)
    close(values(rows), expected(net, h[kept], labels[kept], list(range(K))))


def test_another_ignored_index() -> None:
    net, h, labels = Net(), torch.randn(48, D), torch.arange(48) % (K + 1)
    rows = measure_model(net, "fc", [(h, labels)], ignore_index=K)
    close(values(rows), expected(net, h[labels < K], labels[labels < K], list(range(K))))
