"""Run the first pass as one compiled loop that reads every feature once. Needs numba.

B  samples of a batch    K  classes    d  feature width
"""

import numpy as np
from numba import njit

from ncpipe.system.compile import compiled

# features (B, d), labels (B,), counts (K,), origins (K, d), sums (K, d), squares (K,)
SIGNATURES = [
    f"void({features}[:,::1], int64[::1], int64[::1], float64[:,::1], float64[:,::1], float64[::1])"
    for features in ("float32", "float64")
]


# Terms that are never negative may be added in any order, several at a time. Nothing else may.
@njit(fastmath={"reassoc"})
def _sum_of_squares(row: np.ndarray) -> float:
    total = 0.0
    for j in range(len(row)):
        total += row[j] * row[j]
    return total


@compiled(SIGNATURES)
def add_rows(
    features: np.ndarray,
    labels: np.ndarray,
    counts: np.ndarray,
    origins: np.ndarray,
    sums: np.ndarray,
    squares: np.ndarray,
) -> None:
    """Add features (B, d) to what a StatisticsAccumulator holds; a class's first sample is its origin."""
    width = features.shape[1]
    difference = np.empty(width)
    for i in range(len(labels)):
        k = labels[i]
        row, origin, total = features[i], origins[k], sums[k]
        if counts[k] == 0:
            for j in range(width):
                origin[j] = row[j]
        counts[k] += 1
        for j in range(width):
            difference[j] = np.float64(row[j]) - origin[j]
        for j in range(width):
            total[j] += difference[j]
        squares[k] += _sum_of_squares(difference)
