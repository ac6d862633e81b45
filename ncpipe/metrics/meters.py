"""Meters that see a layer's samples batch by batch, and what they have seen, from which all metrics follow.

B  samples of a batch    K  classes    d  feature width
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ncpipe.errors import InputError
from ncpipe.metrics.decisions import NearestMean, logit_margins, misalignments
from ncpipe.metrics.losses import logits_of
from ncpipe.metrics.statistics import (
    ClassStatistics,
    StatisticsAccumulator,
    check_batch,
    chunk_rows,
)


@dataclass(frozen=True)
class LayerStatistics:
    """What one pass over one split tells of one layer, all float64.

    misalignment (): sum over samples of 1 - cos(h_ki, W_k); margins (N,): logit margins, sorted. Both None
    without a classifier.
    """

    classes: ClassStatistics
    misalignment: Tensor | None
    margins: Tensor | None

    def tensors(self) -> dict[str, Tensor]:
        """Fields by name, for a file; `from_tensors` reads them back."""
        fields = self.classes.tensors()
        if self.misalignment is not None and self.margins is not None:
            fields |= {"misalignment": self.misalignment, "margins": self.margins}
        return fields

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Self:
        classes = ClassStatistics.from_tensors(tensors)
        return cls(classes, tensors.get("misalignment"), tensors.get("margins"))


class LayerMeter:
    """LayerStatistics of batches (B, d): everything that needs no final class means, in one pass.

    weight (K, d), bias (K,): the classifier on this layer, where there is one. The margins of all samples are
    kept (8 bytes each), because quantiles have no exact running form.
    """

    def __init__(
        self,
        classes: int,
        width: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        device: torch.device | str = "cpu",
        scatter: bool = True,
    ) -> None:
        check_classifier(classes, width, weight, bias)
        self._statistics = StatisticsAccumulator(classes, width, device, scatter)
        self._weight = None if weight is None else weight.to(device, torch.float64)
        self._bias = None if bias is None else bias.to(device, torch.float64)
        self._misalignment = torch.zeros((), dtype=torch.float64, device=device)
        self._margins: list[Tensor] = []

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add features (B, d) of any float type with labels (B,) in 0..K-1; raises InputError on others."""
        self._statistics.update(features, labels)
        if self._weight is None:
            return
        device = self._statistics.device
        labels = labels.to(device, torch.int64)
        rows = chunk_rows(features.shape[1], device)
        space = self._weight.new_empty(min(rows, len(labels)), features.shape[1])
        for start in range(0, len(labels), rows):
            right = labels[start : start + rows]
            chunk = space[: len(right)].copy_(features[start : start + rows].detach())
            self._margins.append(logit_margins(logits_of(chunk, self._weight, self._bias), right))
            self._misalignment += misalignments(chunk, right, self._weight).sum()

    def result(self) -> LayerStatistics:
        """Statistics of all samples so far; raises InputError that names an empty class."""
        statistics = self._statistics.result()
        if self._weight is None:
            return LayerStatistics(statistics, None, None)
        return LayerStatistics(statistics, self._misalignment.clone(), torch.cat(self._margins).sort().values)


@dataclass(frozen=True)
class CentreStatistics:
    """How one split's samples lie about the train means of one layer: counts and sums over its samples.

    samples: N. wrong: samples whose nearest mean is not their class's. mismatched: samples that the
    classifier and the nearest mean put in different classes, None without a classifier. nearest, right: sums
    of |h - mu|^2 to the nearest mean and to the mean of the sample's own class, float64. All ().
    """

    samples: Tensor
    wrong: Tensor
    mismatched: Tensor | None
    nearest: Tensor
    right: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """Fields by name, for a file; `from_tensors` reads them back."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Self:
        names = ("samples", "wrong", "mismatched", "nearest", "right")
        return cls(*(tensors.get(name) for name in names))  # type: ignore[arg-type]


class CentreMeter:
    """CentreStatistics of batches (B, d), in a second pass, when the train means are known.

    Which mean is nearest depends on the final means sample by sample: no sums over a first pass decide it.
    """

    def __init__(self, train_means: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> None:
        check_classifier(len(train_means), train_means.shape[1], weight, bias)
        device = train_means.device
        self._means = train_means
        self._nearest = NearestMean(train_means)
        self._weight = None if weight is None else weight.to(device, torch.float64)
        self._bias = None if bias is None else bias.to(device, torch.float64)
        self._counts = torch.zeros(3, dtype=torch.int64, device=device)  # samples, wrong, mismatched
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)  # nearest, right

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add features (B, d) of any float type with labels (B,) in 0..K-1; raises InputError on others."""
        classes, width = self._means.shape
        check_batch(features, labels, classes, width)
        device = self._means.device
        labels = labels.to(device, torch.int64)
        rows = chunk_rows(width, device)
        space = self._means.new_empty(2, min(rows, len(labels)), width)
        for start in range(0, len(labels), rows):
            right = labels[start : start + rows]
            chunk, other = space[:, : len(right)]
            self._add(chunk.copy_(features[start : start + rows].detach()), right, other)

    def result(self) -> CentreStatistics:
        """Counts and sums over all samples so far."""
        samples, wrong, mismatched = self._counts.clone().unbind()
        nearest, right = self._sums.clone().unbind()
        return CentreStatistics(samples, wrong, None if self._weight is None else mismatched, nearest, right)

    def _add(self, chunk: Tensor, labels: Tensor, space: Tensor) -> None:
        """Add a chunk (B, d) of float64; both (B, d) tensors are written over."""
        decided = self._nearest(chunk, space)
        wrong = torch.nonzero(decided != labels).flatten()
        self._counts[0] += len(labels)
        self._counts[1] += len(wrong)
        if self._weight is not None:
            self._counts[2] += (logits_of(chunk, self._weight, self._bias).argmax(1) != decided).sum()
        torch.index_select(self._means, 0, labels, out=space)
        torch.sub(chunk, space, out=space)
        right = squared_norm(space)
        self._sums[1] += right
        if len(wrong):  # not by taking their part off `right`, which is nearly all of it far from collapse
            space[wrong] = chunk[wrong] - self._means[decided[wrong]]
            right = squared_norm(space)
        self._sums[0] += right


def squared_norm(rows: Tensor) -> Tensor:
    """sum of |row|^2 () of contiguous rows (B, d)."""
    return torch.dot(rows.view(-1), rows.view(-1))


def check_classifier(classes: int, width: int, weight: Tensor | None, bias: Tensor | None) -> None:
    """Raise InputError unless weight is (classes, width) and bias (classes,), where they are given."""
    if weight is not None and weight.shape != (classes, width):
        raise InputError(
            f"weight must have a row per class and a column per feature, ({classes}, {width}), "
            f"not {tuple(weight.shape)}"
        )
    if bias is not None and weight is None:
        raise InputError("a bias needs a weight; give both or neither")
    if bias is not None and bias.shape != (classes,):
        raise InputError(f"bias must have an entry per class, ({classes},), not {tuple(bias.shape)}")
