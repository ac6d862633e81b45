"""Minority collapse: whether the classifier separates the small classes of unbalanced data [K23 sec. 3.1.6].

K  classes    M  large ones, the first    B  small ones, the others    d  feature width    N  samples
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ncpipe.metrics.geometry import scaled, unit_rows
from ncpipe.metrics.losses import prediction_error


def minority_cosine(weight: Tensor, majority: int) -> float:
    """Return the mean cosine over pairs of the small classes' rows of W (K, d), rows M, ..., K - 1.

    -1/(K-1) for a simplex, 1 at minority collapse; NaN for fewer than two small classes and rows of 0.
    """
    rows = unit_rows(weight[majority:].double())
    pairs = torch.triu_indices(len(rows), len(rows), offset=1)
    cosines = (rows @ rows.T)[pairs[0], pairs[1]]
    return cosines.mean().item() if len(cosines) else math.nan


def minority_spread(weight: Tensor, majority: int) -> float:
    """Return |W_B - its mean row|_F/|W|_F of W (K, d): 0 at minority collapse, also where W_B goes to 0.

    sqrt((B - 1)/(K - 1)) for a simplex. NaN for W = 0.
    """
    rows = scaled(weight)
    small = rows[majority:]
    return ((small - small.mean(0)).norm() / rows.norm()).item()


def errors_by_size(
    features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None, majority: int
) -> Iterator[tuple[str, float]]:
    """Yield the classifier's error on the samples (N, d) of the large classes and of the small ones."""
    for name, own in (("majority_error", labels < majority), ("minority_error", labels >= majority)):
        yield name, prediction_error(features[own], labels[own], weight, bias)
