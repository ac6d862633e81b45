"""How near decayed weights are to rank K, for claims (`ncpipe.papers.k23.rank_bound`)."""

import math
from typing import Annotated

from ncpipe.config.bounds import Bound, Count, Index, NonNegative, Positive
from ncpipe.papers.k23.rank_bound import LayerRank, clusters, trained_ranks

Classes = Annotated[int, Bound(low=2)]
Few = Annotated[int, Bound(2, 12, why="L-BFGS takes minutes")]


def largest_share(
    classes: Classes,
    modes: Count,
    per_mode: Count,
    width: Few,
    depth: Few,
    decay: Positive,
    spread: NonNegative,
    seed: Index,
) -> float:
    """Return the largest share that a matrix's distance from rank K has of its bound by TCV."""
    found = _ranks(classes, modes, per_mode, width, depth, decay, spread, seed)
    return max(rank.distance / rank.bound for rank in found)


def largest_distance(
    classes: Classes,
    modes: Count,
    per_mode: Count,
    width: Few,
    depth: Few,
    decay: Positive,
    spread: NonNegative,
    seed: Index,
) -> float:
    """Return the largest distance of a matrix of the inner layers from rank K."""
    found = _ranks(classes, modes, per_mode, width, depth, decay, spread, seed)
    return max(rank.distance for rank in found)


def decay_slope(
    classes: Classes,
    modes: Count,
    per_mode: Count,
    width: Few,
    depth: Few,
    low: Positive,
    high: Positive,
    spread: NonNegative,
    seed: Index,
) -> float:
    """Return the slope of log distance of the first matrix from rank K on log decay, at a fixed TCV."""
    first = [
        _ranks(classes, modes, per_mode, width, depth, decay, spread, seed)[0].distance
        for decay in (low, high)
    ]
    return math.log(first[1] / first[0]) / math.log(high / low)


def _ranks(
    classes: int, modes: int, per_mode: int, width: int, depth: int, decay: float, spread: float, seed: int
) -> list[LayerRank]:
    return trained_ranks(clusters(classes, modes, per_mode, width, spread, seed), depth, decay, seed)
