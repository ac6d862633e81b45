"""Counts, means and scatter of every class, accumulated in one pass over the samples, in float64.

B  samples of a batch    K  classes    d  feature width
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from ncpipe.errors import InputError

# Two float64 copies of a CPU chunk are 2 MiB, a core's cache: smaller ones make threads wait
# for each other more often.
CHUNK_ENTRIES = {"cpu": 2**17, "cuda": 2**25}
BLOCK = 128  # a symmetric product by blocks of this width saves up to half of its work


@dataclass(frozen=True)
class ClassStatistics:
    """What the metrics of one layer and split need to know of its samples.

    counts (K,) int64; means (K, d); squares (K,) = sum_i |h_ki - mu_k|^2; scatter (d, d) =
    sum_k sum_i (h_ki - mu_k)(h_ki - mu_k)^T, or None where it was not asked for. All but counts float64.
    """

    counts: Tensor
    means: Tensor
    squares: Tensor
    scatter: Tensor | None

    @property
    def classes(self) -> int:
        return len(self.counts)

    @property
    def samples(self) -> int:
        return int(self.counts.sum())

    def centred_means(self) -> Tensor:
        """mu_k - mu_G (K, d), with mu_G the mean of the class means, whatever the counts [S25 sec. 3]."""
        return self.means - self.means.mean(0)

    def tensors(self) -> dict[str, Tensor]:
        """Fields by name, for a file; `from_tensors` reads them back."""
        fields = {"counts": self.counts, "means": self.means, "squares": self.squares}
        return fields if self.scatter is None else fields | {"scatter": self.scatter}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Self:
        return cls(tensors["counts"], tensors["means"], tensors["squares"], tensors.get("scatter"))


class StatisticsAccumulator:
    """ClassStatistics of samples that come in batches, in any order and of any size.

    Every class's samples are taken relative to an origin, the first sample seen of the class. The difference
    of two close float64 numbers is exact, so a common offset costs nothing; and no sample is further than
    sqrt(n_k) standard deviations from its class mean, so moving from the origin to the mean costs at most a
    factor n_k of float64's 1e-16, and 2 on average. Samples that are all equal give exactly 0.
    """

    def __init__(
        self, classes: int, width: int, device: torch.device | str = "cpu", scatter: bool = True
    ) -> None:
        self.classes, self.width, self.device = classes, width, torch.device(device)
        self._counts = torch.zeros(classes, dtype=torch.int64, device=device)
        self._origins = torch.zeros(classes, width, dtype=torch.float64, device=device)
        self._sums = torch.zeros(classes, width, dtype=torch.float64, device=device)  # of h - origin
        self._squares = torch.zeros(classes, dtype=torch.float64, device=device)  # of |h - origin|^2
        self._scatter = (
            torch.zeros(width, width, dtype=torch.float64, device=device) if scatter else None
        )  # of (h - o)(h - o)^T
        self._all_seen = False

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add features (B, d) of any float type with labels (B,) in 0..K-1; raises InputError on others."""
        check_batch(features, labels, self.classes, self.width)
        labels = labels.to(self.device, torch.int64)
        rows = min(len(labels), chunk_rows(self.width, self.device))
        # Written over chunk by chunk: fresh memory would miss the cache.
        space = torch.empty(2, rows, self.width, dtype=torch.float64, device=self.device)
        for start in range(0, len(labels), max(1, rows)):
            chunk = features[start : start + rows].detach().to(self.device)
            self._add(chunk, labels[start : start + rows], space[:, : len(chunk)])

    def merge(self, other: "StatisticsAccumulator") -> None:
        """Add everything that another accumulator of the same sizes has seen."""
        if (self.classes, self.width) != (other.classes, other.width):
            raise InputError("accumulators of different numbers of classes or widths cannot be merged")
        if (self._scatter is None) != (other._scatter is None):
            raise InputError("an accumulator with scatter cannot be merged with one without")
        fresh = ((self._counts == 0) & (other._counts > 0)).unsqueeze(1)
        self._origins = torch.where(fresh, other._origins, self._origins)
        counts = other._counts.double().unsqueeze(1)
        shift = torch.where(counts > 0, other._origins - self._origins, 0.0)
        self._counts = self._counts + other._counts
        self._sums += other._sums + counts * shift
        self._squares += other._squares + (shift * (2 * other._sums + counts * shift)).sum(1)
        if self._scatter is not None and other._scatter is not None:
            cross = shift.T @ other._sums
            self._scatter += other._scatter + cross + cross.T + shift.T @ (counts * shift)
        self._all_seen = bool((self._counts > 0).all())

    def result(self) -> ClassStatistics:
        """Statistics of all samples so far; raises InputError that names an empty class."""
        if empty := torch.nonzero(self._counts == 0).flatten().tolist():
            raise InputError(f"class {empty[0]} has no samples; every class needs at least one")
        counts = self._counts.double().unsqueeze(1)
        offsets = self._sums / counts
        weighted = offsets * counts.sqrt()  # one factor on both sides keeps the correction symmetric
        scatter = None if self._scatter is None else _mirrored(self._scatter) - weighted.T @ weighted
        squares = self._squares - weighted.square().sum(1)
        return ClassStatistics(self._counts.clone(), self._origins + offsets, squares, scatter)

    def _add(self, chunk: Tensor, labels: Tensor, space: Tensor) -> None:
        """Add a chunk (B, d); space (2, B, d) is written over."""
        if not self._all_seen:
            self._plant_origins(chunk, labels)
        relative, origins = space
        torch.index_select(self._origins, 0, labels, out=origins)
        relative.copy_(chunk).sub_(origins)  # a difference of mixed types would be taken entry by entry
        self._counts += torch.bincount(labels, minlength=self.classes)
        _add_by_class(self._sums, labels, relative)
        squares = torch.linalg.vector_norm(relative, dim=1, keepdim=True).square_()
        _add_by_class(self._squares.unsqueeze(1), labels, squares)
        if self._scatter is not None:
            _add_outer_products(self._scatter, relative)

    def _plant_origins(self, chunk: Tensor, labels: Tensor) -> None:
        places = torch.arange(len(labels), device=self.device)
        first = torch.full((self.classes,), len(labels), device=self.device)
        first.scatter_reduce_(0, labels, places, "amin")
        fresh = torch.nonzero((self._counts == 0) & (first < len(labels))).flatten()
        self._origins[fresh] = chunk[first[fresh]].double()
        seen = self._counts > 0
        seen[fresh] = True
        self._all_seen = bool(seen.all())


def class_statistics(features: Tensor, labels: Tensor, classes: int, scatter: bool = True) -> ClassStatistics:
    """ClassStatistics of features (N, d) with labels (N,), on the features' device."""
    accumulator = StatisticsAccumulator(classes, features.shape[1], features.device, scatter)
    accumulator.update(features, labels)
    return accumulator.result()


def _add_by_class(sums: Tensor, labels: Tensor, values: Tensor) -> None:
    """sums[y] += values of class y; sums (K, m), values (B, m)."""
    if values.is_cuda:  # index_add_ adds in a different order every time there
        classes = torch.arange(len(sums), device=labels.device).unsqueeze(1)
        sums += (labels == classes).double() @ values
    else:
        sums.index_add_(0, labels, values)


def _add_outer_products(scatter: Tensor, rows: Tensor) -> None:
    """Add rows^T rows to the diagonal blocks of a (d, d) matrix and to what is right of them."""
    for start in range(0, len(scatter), BLOCK):
        stop = start + BLOCK
        scatter[start:stop, start:].addmm_(rows[:, start:stop].T, rows[:, start:])


def _mirrored(scatter: Tensor) -> Tensor:
    return scatter.triu() + scatter.triu(1).T


def chunk_rows(width: int, device: torch.device) -> int:
    """Rows of one chunk of a batch: few enough that its float64 copy is read from the cache again."""
    return max(64, CHUNK_ENTRIES.get(device.type, CHUNK_ENTRIES["cuda"]) // max(1, width))


def check_batch(features: Tensor, labels: Tensor, classes: int, width: int) -> None:
    """Raise InputError unless features are (B, width) floats and labels (B,) integers in 0..classes-1."""
    if features.ndim != 2 or features.shape[1] != width or not features.is_floating_point():
        shape = tuple(features.shape)
        raise InputError(f"features must be floats of shape (samples, {width}), not {features.dtype} {shape}")
    if labels.shape != features.shape[:1] or labels.is_floating_point() or labels.is_complex():
        shape = tuple(labels.shape)
        raise InputError(f"labels must be {len(features)} integers, one a sample, not {labels.dtype} {shape}")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        wrong = int(torch.nonzero((labels < 0) | (labels >= classes))[0])
        raise InputError(f"label {int(labels[wrong])} of sample {wrong} is not in 0..{classes - 1}")
