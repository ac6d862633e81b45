"""Accumulate counts, means and spreads of classes in one pass over the samples, in float64.

B  samples of a batch    b  samples of a chunk of it    K  classes    d  feature width
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ncpipe.metrics.pairs import tiles
from ncpipe.metrics.powers_of_two import (
    EPS,
    entry_rounding_of,
    largest_entry,
    rounding_of,
    size_exponent,
    times_two_to,
    unit_exponent,
)
from ncpipe.metrics.spectrum import singular_values
from ncpipe.system.errors import InputError
from ncpipe.system.lazy_torch import Tensor, torch

# Two float64 copies of a CPU chunk are 4 MiB: half of that and less costs more in calls than it saves in
# the cache, and makes threads wait for each other more often.
CHUNK_ENTRIES = {"cpu": 2**18, "cuda": 2**25}
SHOWN = 12  # labels in an error
REGRESSION = "; numbers to be predicted take nc.measure_regression"


@dataclass(frozen=True)
class ClassStatistics:
    """Hold the class statistics that the metrics of one layer and split need.

    counts (K,) int64; means (K, d); squares (K,) = sum_i |h_ki - mu_k|^2. All but counts float64.
    exponent: means are in units of 2^exponent, squares of its square; 0 but for features whose largest entry
    is beyond 2^150 or below 2^-150, the squares of which would leave float64.
    rounding, entry_rounding: shares of s_1 and of each entry that the features' type rounds (`rounding_of`,
    `entry_rounding_of`).
    """

    counts: Tensor
    means: Tensor
    squares: Tensor
    exponent: int = 0
    rounding: float = 0.0
    entry_rounding: float = 0.0

    @property
    def classes(self) -> int:
        return len(self.counts)

    @property
    def samples(self) -> int:
        return int(self.counts.sum())

    @cached_property
    def cutoff(self) -> float:
        """Length between classes that is still rounding and counts as 0: max(K, d) 2^-52 max(s_1, r).

        s_1 is the largest singular value of the class means, not centred, because centring rounds at the size
        of the means themselves; r the largest sqrt(1/n_k sum_i |h_ki - mu_k|^2), at the size of which means
        round. NaN where a feature is not finite.
        """
        spread = (self.squares / self.counts).max().sqrt()
        return max(self.means.shape) * EPS * max(self._singular[0].item(), spread.item())

    @cached_property
    def centred_means(self) -> Tensor:
        """mu_k - mu_G (K, d), with mu_G the mean of the class means, whatever the counts [S25 sec. 3].

        Exactly 0 where no longer than `cutoff`.
        """
        centred = self.means - self.means.mean(0)
        rounding = torch.linalg.vector_norm(centred, dim=1, keepdim=True) <= self.cutoff
        return torch.where(rounding, 0.0, centred)

    def uncentred_means(self) -> Tensor:
        """Return mu_k (K, d), all exactly 0 where none is longer than `cutoff`."""
        lengths = torch.linalg.vector_norm(self.means, dim=1)
        return torch.zeros_like(self.means) if bool((lengths <= self.cutoff).all()) else self.means

    @cached_property
    def singular(self) -> Tensor:
        """Singular values (min(K, d),) of the `uncentred_means`, largest first; NaN for NaN or inf."""
        means = self.uncentred_means()
        return self._singular if means is self.means else singular_values(means)

    @cached_property
    def between_directions(self) -> tuple[Tensor, Tensor]:
        """Nonzero singular values (r,) and right singular vectors (r, d) of the centred means.

        In the statistics' unit. At most K-1, and those with s_j above `cutoff` and what the features' type
        rounds to. This is `rounding` s_1 in float32, where a network leaves rounding in directions that its
        last layers take away, such as the mean that layer normalisation subtracts. Of half types it is
        `entry_rounding` times sqrt(d) |c v_j|, with c the lengths of the means' columns, but no more than
        that times s_1: one large coordinate makes rounding in its own direction alone. None if a mean is not
        finite.
        """
        centred = self.centred_means
        if not bool(centred.isfinite().all()):  # the features of a run that diverged
            return centred.new_empty(0), centred.new_empty(0, centred.shape[1])
        _, singular, directions = torch.linalg.svd(centred, full_matrices=False)
        largest = self._singular[0]
        columns = torch.linalg.vector_norm(directions * torch.linalg.vector_norm(self.means, dim=0), dim=1)
        of_entries = self.entry_rounding * (columns * len(self.means[0]) ** 0.5).clamp(max=largest)
        kept = singular > of_entries.clamp(min=max(self.cutoff, self.rounding * largest.item()))
        kept[self.classes - 1 :] = False
        return singular[kept], directions[kept]

    @cached_property
    def pair_ratios(self) -> tuple[float, float]:
        """Mean over pairs of (Var_i + Var_j)/(2 |mu_i - mu_j|^2), and of its logarithm.

        Both inf where two class means coincide to rounding.
        """
        variances = self.squares / self.counts
        total, logs, pairs = 0.0, 0.0, 0
        for tile in tiles(self.means):
            distances = tile.pairs(tile.distances)
            if bool((distances <= self.cutoff).any()):
                return math.inf, math.inf
            values = tile.pairs(tile.sums(variances)) / (2 * distances.square())
            total, pairs = total + values.sum().item(), pairs + len(values)
            logs += values.log_().sum().item()
        return total / pairs, logs / pairs

    @cached_property
    def _singular(self) -> Tensor:
        return singular_values(self.means)

    def to(self, device: torch.device) -> ClassStatistics:
        """Return the same statistics on a device."""
        if self.means.device == device:
            return self
        counts, means, squares = self.counts.to(device), self.means.to(device), self.squares.to(device)
        return replace(self, counts=counts, means=means, squares=squares)

    def in_unit(self, exponent: int) -> ClassStatistics:
        """Return the same statistics in units of 2^exponent."""
        change = self.exponent - exponent
        means, squares = times_two_to(self.means, change), times_two_to(self.squares, 2 * change)
        return replace(self, means=means, squares=squares, exponent=exponent) if change else self

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields by name, for a file; `from_tensors(**tensors)` reads them back."""
        tensors = {"counts": self.counts, "means": self.means, "squares": self.squares}
        for name in ("exponent", "rounding", "entry_rounding"):
            if number := getattr(self, name):
                tensors[name] = torch.tensor(number, device=self.means.device)
        return tensors

    @staticmethod
    def from_tensors(**tensors: Tensor) -> ClassStatistics:
        fields: dict[str, Any] = {name: x if x.dim() else x.item() for name, x in tensors.items()}
        return ClassStatistics(**fields)


class StatisticsAccumulator:
    """Accumulate ClassStatistics of samples that come in batches, in any order and of any size.

    Every class's samples are taken relative to an origin, the first sample seen of the class. The difference
    of two close float64 numbers is exact, so a common offset costs nothing; and no sample is further than
    sqrt(n_k) standard deviations from its class mean, so moving from the origin to the mean costs at most a
    factor n_k of float64's 1e-16, and 2 on average. Samples that are all equal give exactly 0.
    """

    def __init__(self, classes: int, width: int, device: torch.device | str = "cpu") -> None:
        self.classes, self.width, self.device = classes, width, torch.device(device)
        self._counts = torch.zeros(classes, dtype=torch.int64, device=device)
        self._origins = torch.zeros(classes, width, dtype=torch.float64, device=device)
        self._sums = torch.zeros(classes, width, dtype=torch.float64, device=device)  # of h - origin
        self._squares = torch.zeros(classes, dtype=torch.float64, device=device)  # of |h - origin|^2
        self._size, self._exponent = 0.0, 0  # largest entry so far; what is held is in units of 2^exponent
        self._rounding = self._entry_rounding = 0.0

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add features (B, d) of any float type with labels (B,) in 0..K-1; raises InputError on others."""
        check_batch(features, labels, self.classes, self.width)
        of_entries = entry_rounding_of(features.dtype)
        self._entry_rounding = max(self._entry_rounding, of_entries)
        self._rounding = max(self._rounding, 0.0 if of_entries else rounding_of(features.dtype))
        # On a GPU one-hot labels (c, b) of the c classes in a chunk are made, at most b of them.
        classes = 1 if self.device.type == "cpu" else min(self.classes, math.isqrt(CHUNK_ENTRIES["cuda"]))
        for chunk in chunks(features, labels, classes, self.device):
            self._add(*chunk)

    def merge(self, other: StatisticsAccumulator) -> None:
        """Add everything that another accumulator of the same sizes has seen."""
        if (self.classes, self.width) != (other.classes, other.width):
            raise InputError("accumulators of different numbers of classes or widths cannot be merged")
        self._fit_unit(other._size)
        self._rounding = max(self._rounding, other._rounding)
        self._entry_rounding = max(self._entry_rounding, other._entry_rounding)
        change = other._exponent - self._exponent
        origins, sums = (times_two_to(state, change) for state in (other._origins, other._sums))
        fresh = ((self._counts == 0) & (other._counts > 0)).unsqueeze(1)
        self._origins = torch.where(fresh, origins, self._origins)
        counts = other._counts.double().unsqueeze(1)
        shift = torch.where(counts > 0, origins - self._origins, 0.0)
        self._counts = self._counts + other._counts
        self._sums += sums + counts * shift
        squares = times_two_to(other._squares, 2 * change)
        self._squares += squares + (shift * (2 * sums + counts * shift)).sum(1)

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of the state by name, of fixed shapes; `from_tensors` restores it."""
        tensors = {
            name: getattr(self, f"_{name}").clone() for name in ("counts", "origins", "sums", "squares")
        }
        for name in ("size", "rounding", "entry_rounding"):
            number = getattr(self, f"_{name}")
            tensors[name] = torch.tensor(number, dtype=torch.float64, device=self.device)
        return tensors

    @staticmethod
    def from_tensors(**tensors: Tensor) -> StatisticsAccumulator:
        classes, width = tensors["origins"].shape
        accumulator = StatisticsAccumulator(classes, width, tensors["origins"].device)
        for name, tensor in tensors.items():
            setattr(accumulator, f"_{name}", tensor.clone() if tensor.dim() else tensor.item())
        accumulator._exponent = unit_exponent(size_exponent(accumulator._size))
        return accumulator

    def result(self, split: str = "") -> ClassStatistics:
        """Return the statistics of all samples so far; raise InputError that names an empty class."""
        check_every_class(self._counts, split)
        return self.result_of(torch.arange(self.classes, device=self.device))

    @property
    def counts(self) -> Tensor:
        """Samples of each class so far (K,) int64."""
        return self._counts.clone()

    def result_of(self, classes: Tensor) -> ClassStatistics:
        """Return the statistics of some classes (k,), each with a sample, renumbered in their order."""
        counts = self._counts[classes]
        assert bool((counts > 0).all()), "a class without samples"
        sums = self._sums[classes]
        offsets = sums / counts.double().unsqueeze(1)
        squares = self._squares[classes] - sums.mul_(offsets).sum(1)
        means = offsets.add_(self._origins[classes])
        return ClassStatistics(counts, means, squares, self._exponent, self._rounding, self._entry_rounding)

    def _fit_unit(self, size: float) -> None:
        """Choose the unit for entries up to `size` and all before, and convert the state to it."""
        self._size = max(self._size, size)
        exponent = unit_exponent(size_exponent(self._size))
        if change := self._exponent - exponent:
            self._exponent = exponent
            for state, power in ((self._origins, 1), (self._sums, 1), (self._squares, 2)):
                state.copy_(times_two_to(state, power * change))

    def _add(self, rows: Tensor, labels: Tensor, buffer: Tensor) -> None:
        """Add rows (b, d) of float64; both (b, d) tensors are overwritten."""
        self._fit_unit(largest_entry(rows))
        rows = times_two_to(rows, -self._exponent)
        self._set_origins(rows, labels)
        rows.sub_(torch.index_select(self._origins, 0, labels, out=buffer))
        self._counts.index_add_(0, labels, torch.ones_like(labels))
        squares = torch.linalg.vector_norm(rows, dim=1).square_()
        if rows.is_cuda:  # index_add_ adds to one class in a different order every time there
            labels, (rows, squares) = _sums_by_class(labels, self.classes, rows, squares)
        self._sums.index_add_(0, labels, rows)
        self._squares.index_add_(0, labels, squares)

    def _set_origins(self, rows: Tensor, labels: Tensor) -> None:
        places = torch.nonzero(self._counts[labels] == 0).flatten()
        if not len(places):
            return
        # Nothing here is of size K: of a large vocabulary most chunks bring a few new tokens.
        fresh, numbers = torch.unique(labels[places], return_inverse=True)
        first = torch.full_like(fresh, len(labels)).scatter_reduce_(0, numbers, places, "amin")
        self._origins[fresh] = rows[first]


def class_statistics(features: Tensor, labels: Tensor, classes: int) -> ClassStatistics:
    """Return the ClassStatistics of features (N, d) with labels (N,), on the features' device."""
    accumulator = StatisticsAccumulator(classes, features.shape[1], features.device)
    accumulator.update(features, labels)
    return accumulator.result()


def chunks(
    features: Tensor, labels: Tensor, classes: int, device: torch.device, exponent: int = 0
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield float64 rows (b, d) of a batch on the device, their labels (b,), and a buffer (b, d).

    Rows are in units of 2^exponent. Both (b, d) tensors may be overwritten, and are by the next chunk,
    because fresh memory would miss the cache. b is small enough for (b, d) and (b, K) to stay there.
    """
    labels = labels.to(device, torch.int64)
    entries = CHUNK_ENTRIES.get(device.type, CHUNK_ENTRIES["cuda"])
    size = max(64, entries // max(1, classes, features.shape[1]))
    buffer = torch.empty(2, min(len(labels), size), features.shape[1], dtype=torch.float64, device=device)
    for start in range(0, len(labels), size):
        row_labels = labels[start : start + size]
        rows, spare = buffer[:, : len(row_labels)]
        # Once for all: an operation on mixed types would convert anew, and slower.
        rows.copy_(features[start : start + size].detach())
        yield (rows.copy_(times_two_to(rows, -exponent)) if exponent else rows), row_labels, spare


def _sums_by_class(labels: Tensor, total: int, *values: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return classes (c,), each once, and the sums (c, ...) of values (b, ...) over their samples.

    In the same order every time. Of K = `total` classes all, where they are fewer than samples; else those
    that occur, so that nothing is of the size of a vocabulary.
    """
    few = total <= len(labels)
    classes = torch.arange(total, device=labels.device) if few else torch.unique(labels)
    one_hot = (labels == classes.unsqueeze(1)).double()
    return classes, [one_hot @ value for value in values]


def check_batch(features: Tensor, labels: Tensor, classes: int, width: int) -> None:
    """Raise InputError unless features are (B, width) floats and labels (B,) integers in 0..classes-1."""
    if features.ndim != 2 or features.shape[1] != width or not features.is_floating_point():
        shape = tuple(features.shape)
        raise InputError(f"features must be floats of shape (samples, {width}), not {features.dtype} {shape}")
    if labels.shape != features.shape[:1] or labels.is_floating_point() or labels.is_complex():
        shape = tuple(labels.shape)
        raise InputError(
            f"labels must be {len(features)} integers, one a sample, not {labels.dtype} {shape}"
            f"{REGRESSION if labels.is_floating_point() else ''}"
        )
    if labels.dtype in (torch.uint16, torch.uint32, torch.uint64):  # PyTorch compares none of these
        labels = labels.long()
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        wrong = int(torch.nonzero((labels < 0) | (labels >= classes))[0])
        raise InputError(
            f"label {int(labels[wrong])} of sample {wrong} is not in 0..{classes - 1}; "
            f"{_expected_labels(labels.unique().tolist(), classes)}"
        )


def check_every_class(counts: Tensor, name: str = "") -> None:
    """Raise InputError that names a class of `counts` (K,) without samples. name: of the split, if any."""
    if empty := torch.nonzero(counts == 0).flatten().tolist():
        labels = _expected_labels(torch.nonzero(counts).flatten().tolist(), len(counts))
        raise InputError(f"class {empty[0]} has no {f'{name} ' if name else ''}samples; {labels}")


def check_statistics(split: str, layer: str, statistics: ClassStatistics) -> None:
    """Raise InputError for one class alone, and for features with NaN or inf."""
    if statistics.classes < 2:
        raise InputError(f"{split} labels name {statistics.classes} class; collapse needs at least 2")
    if not bool(statistics.squares.isfinite().all()):
        raise InputError(
            f"the {split} features of layer {layer} hold NaN or inf; there is nothing to measure"
        )


def _expected_labels(labels: list[int], classes: int) -> str:
    """Describe the labels found and expected, for an error; at most SHOWN are listed one by one."""
    listed = ", ".join(map(str, labels))
    if len(labels) > SHOWN:
        listed = f"{len(labels)} from {labels[0]} to {labels[-1]}"
    return f"labels found: {listed}; expected: 0 to {classes - 1}, each at least once"
