"""Compute how near decayed weights are to rank K, for claims (`ncpipe.papers.k23.rank_bound`)."""

import math
from typing import Annotated

from ncpipe.config.bounds import Bound, Count, Index, NonNegative, Positive
from ncpipe.papers.k23.rank_bound import clusters, trained_ranks

Classes = Annotated[int, Bound(low=2)]
Few = Annotated[int, Bound(2, 12)]  # L-BFGS takes minutes


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
    samples = clusters(classes, modes, per_mode, width, spread, seed)
    return max(rank.distance / rank.bound for rank in trained_ranks(samples, depth, decay, seed))


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
    samples = clusters(classes, modes, per_mode, width, spread, seed)
    return max(rank.distance for rank in trained_ranks(samples, depth, decay, seed))


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
    samples = clusters(classes, modes, per_mode, width, spread, seed)
    first, second = (trained_ranks(samples, depth, decay, seed)[0].distance for decay in (low, high))
    return math.log(second / first) / math.log(high / low)
