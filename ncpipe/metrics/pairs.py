"""Compute the distances of all pairs of K vectors a tile at a time, in memory that does not grow as K^2.

Products are in float64. In float32 pairs that are close next to their lengths would keep too few digits
(tests/test_metric_table.py).

K  vectors    d  their coordinates    b, c  vectors of a tile's rows and columns
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ncpipe.system.lazy_torch import Tensor, torch

TILE_ENTRIES = 2**18  # distances held at a time: tiles that leave the cache take 1.7 times as long
# A squared distance by |a|^2 - 2ab + |b|^2 rounds at the size of |a|^2 + |b|^2. Below this share of it, and
# where centring would round by more than 1e-12 of the distance, the difference itself is taken.
NEAR, NEAR_CENTRE = 2.0**-6, 2.0**-24
MANY_NEAR = 16  # a tile with more than one pair in so many near is taken as differences as a whole
PAIR_ENTRIES = 2**20  # numbers of the differences held at a time
ROW_ENTRIES = 2**24  # numbers of whole rows held at a time


class Tile(NamedTuple):
    """Hold the distances (b, c) of the vectors `rows` to the vectors `columns`, the same or later ones."""

    rows: slice
    columns: slice
    distances: Tensor

    def pairs(self, values: Tensor) -> Tensor:
        """Return the values (b, c) of pairs i < j alone, (p,)."""
        if self.rows != self.columns:
            return values.flatten()
        places = torch.arange(len(values), device=values.device)
        return values[places.unsqueeze(1) < places]

    def sums(self, numbers: Tensor) -> Tensor:
        """Return x_i + x_j (b, c) of numbers x (K,)."""
        return numbers[self.rows].unsqueeze(1) + numbers[self.columns]


def tiles(vectors: Tensor) -> Iterator[Tile]:
    """Yield tiles that hold every pair i <= j of vectors (K, d) float64 once.

    Distances are exact to 32 (d + 3) 2^-52 of their size, however close two vectors are: a square that is
    taken by products is at least NEAR of what they round at.
    """
    side = max(1, math.isqrt(TILE_ENTRIES))
    if len(vectors) <= side:
        yield Tile(slice(0, len(vectors)), slice(0, len(vectors)), _by_difference(vectors, vectors))
        return
    centre = vectors.mean(0)
    centred = vectors - centre  # a common offset would make all pairs close next to their lengths
    squares = centred.square().sum(1)
    floor = NEAR_CENTRE * float(centre.square().sum())
    for start in range(0, len(vectors), side):
        rows = slice(start, min(start + side, len(vectors)))
        for other in range(start, len(vectors), side):
            columns = slice(other, min(other + side, len(vectors)))
            lengths = squares[rows].unsqueeze(1) + squares[columns]
            products = torch.addmm(lengths, centred[rows], centred[columns].T, alpha=-2)
            near = products < lengths.mul_(NEAR).add_(floor)
            distances = products.clamp_(min=0).sqrt_()
            _take_differences(distances, near, vectors[rows], vectors[columns], start == other)
            yield Tile(rows, columns, distances)


def nearest_distances(rows: Tensor, points: Tensor, k: int) -> Tensor:
    """Return the distances (n, k) of each of rows (n, d) to its k nearest of points (N, d), least first."""
    parts = in_parts(rows, len(points))
    return torch.cat([_by_difference(part, points).topk(k, 1, largest=False).values for part in parts])


def in_parts(rows: Tensor, columns: int) -> Sequence[Tensor]:
    """Return rows (n, d) in parts, of which a matrix with so many columns may be held at a time."""
    return rows.split(max(1, ROW_ENTRIES // columns))


def _take_differences(distances: Tensor, near: Tensor, a: Tensor, b: Tensor, same: bool) -> None:
    """Write |a_i - b_j| into distances (b, c) where `near`. same: a and b are the same vectors."""
    if same:
        near.fill_diagonal_(False)
        distances.fill_diagonal_(0.0)
    count = int(torch.count_nonzero(near))
    if count * MANY_NEAR > near.numel():
        distances.copy_(_by_difference(a, b))
    elif count:
        first, second = torch.nonzero(near, as_tuple=True)
        step = max(1, PAIR_ENTRIES // a.shape[1])
        for i, j in zip(first.split(step), second.split(step), strict=True):
            distances[i, j] = torch.linalg.vector_norm(a[i] - b[j], dim=1)


def _by_difference(a: Tensor, b: Tensor) -> Tensor:
    """Return |a_i - b_j| (b, c) of a (b, d) and b (c, d), by differences.

    A product of matrices would lose the digits of neighbours in a collapsed class.
    """
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
