"""Find the nearest class mean and the largest logit of each sample, with ties up to rounding.

What is equal to rounding goes to the lowest class, whatever the batch that a sample comes in. Both classes
look at scores that one matrix product gives, and compute anew, more exactly, only what these leave open.

b  samples of a chunk    m  those of them that are close    K  classes    d  feature width
"""

from collections.abc import Callable
from functools import cached_property

from ncpipe.metrics.pairs import tiles
from ncpipe.metrics.powers_of_two import EPS
from ncpipe.metrics.statistics import ClassStatistics
from ncpipe.system.lazy_torch import Tensor, torch

SLACK = 8  # the product's and the centring's rounding are below this many cutoffs


class NearestMeans:
    """Choose the lowest class whose mean is at most `cutoff` further away than the nearest."""

    def __init__(self, statistics: ClassStatistics, samples: ClassStatistics) -> None:
        """Take statistics of the means, and of the samples to be decided, in the same unit."""
        self.means, self.cutoff = statistics.means, statistics.cutoff
        self.centre = self.means.mean(0)
        self.centred = self.means - self.centre  # where a common offset costs no digits
        radius = torch.linalg.vector_norm(self.centred, dim=1).max()
        spread = samples.squares.sqrt()  # no sample is further from its class's mean
        self.longest = (torch.linalg.vector_norm(samples.means, dim=1) + spread).max()  # and none is longer
        self.reach = (torch.linalg.vector_norm(samples.means - self.centre, dim=1) + spread).max()
        self._close = SLACK * self.cutoff * (self.reach + radius)

    def decide(self, scores: Tensor, rows: Tensor) -> Tensor:
        """Return classes (b,) of rows (b, d). scores (K, b): |h - mu|^2/2 less what all classes share."""
        nearest = scores.min(0)
        return _decided(nearest.indices, scores <= nearest.values + self._close, rows, self._compare)

    def _compare(self, rows: Tensor, among: Tensor, best: Tensor) -> Tensor:
        """Return classes (m,) of rows (m, d) among those marked (K,), by the extra distance over `best`."""
        classes = torch.unique(self._lowest_coinciding[among])
        if len(classes) == 1:
            return classes.expand(len(rows))
        mean = self.means[self._lowest_coinciding[best]]
        offset = rows - mean
        distance = torch.linalg.vector_norm(offset, dim=1)
        further = []
        for k in classes:
            other = rows - self.means[k]
            # |h - mu_k| - |h - mu| by |a|^2 - |b|^2 = (a - b)(a + b), exact where the means share an entry.
            product = torch.linalg.vecdot(mean - self.means[k], other + offset)
            both = torch.linalg.vector_norm(other, dim=1) + distance
            further.append(torch.where(both > 0, product / both, 0.0))
        return classes[_first_near_least(torch.stack(further), self.cutoff)]

    @cached_property
    def _lowest_coinciding(self) -> Tensor:
        """For each class (K,) the lowest one whose mean is at most `cutoff` away."""
        lowest = torch.arange(len(self.means), device=self.means.device)
        for tile in tiles(self.means):
            first, second = torch.nonzero(tile.distances <= self.cutoff, as_tuple=True)
            first, second = first + tile.rows.start, second + tile.columns.start
            lowest.scatter_reduce_(0, second, first, "amin")
        return lowest


class LargestLogits:
    """Choose the lowest class whose logit W_k h + b_k is largest, up to rounding at the logits' size.

    Rounding is max(K, d) 2^-52 (max_k |W_k| |h| + max_k |b_k|).
    """

    def __init__(self, weight: Tensor, bias: Tensor, longest: Tensor) -> None:
        """Take an upper bound `longest` () of the features' lengths."""
        self._weight, self._bias = weight, bias
        self._eps = max(weight.shape) * EPS
        self._close = SLACK * self._rounding(longest)

    def logits(self, rows: Tensor) -> Tensor:
        """Return logits (K, b) of rows (b, d)."""
        return torch.addmm(self._bias.unsqueeze(1), self._weight, rows.T)

    def decide(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return classes (b,) of rows (b, d) with logits (K, b)."""
        largest = logits.max(0)
        return _decided(largest.indices, logits >= largest.values - self._close, rows, self._compare)

    def _compare(self, rows: Tensor, among: Tensor, best: Tensor) -> Tensor:
        """Return classes (m,) of rows (m, d) among those marked (K,), by how far a logit is below `best`."""
        classes = torch.unique(self._lowest_equal[among])
        smaller = []
        for k in classes:
            product = torch.linalg.vecdot(self._weight[best] - self._weight[k], rows)
            smaller.append(product + (self._bias[best] - self._bias[k]))
        rounding = self._rounding(torch.linalg.vector_norm(rows, dim=1))
        return classes[_first_near_least(torch.stack(smaller), rounding)]

    def _rounding(self, lengths: Tensor) -> Tensor:
        """Return the rounding of logits of features of these lengths."""
        return self._eps * (
            torch.linalg.vector_norm(self._weight, dim=1).max() * lengths + self._bias.abs().max()
        )

    @cached_property
    def _lowest_equal(self) -> Tensor:
        """For each class (K,) the lowest one with the same weights and bias."""
        rows = torch.cat([self._weight, self._bias.unsqueeze(1)], 1)
        _, groups = torch.unique(rows, dim=0, return_inverse=True)
        classes = torch.arange(len(groups), device=groups.device)
        return torch.full_like(classes, len(groups)).scatter_reduce_(0, groups, classes, "amin")[groups]


def _decided(
    best: Tensor, near: Tensor, rows: Tensor, compare: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    """Return `best` (b,), where other classes than it are `near` (K, b) by what `compare` finds."""
    if int(torch.count_nonzero(near)) > len(rows):
        close = near.sum(0) > 1
        best[close] = compare(rows[close], near[:, close].any(1), best[close])
    return best


def _first_near_least(values: Tensor, tolerance: Tensor | float) -> Tensor:
    """Return the first row (m,) of values (n, m) within the tolerance of the least."""
    return (values <= values.min(0).values + tolerance).int().argmax(0)
