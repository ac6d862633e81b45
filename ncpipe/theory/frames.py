"""Construct orthonormal and equiangular sets of vectors, float64.

K  classes    d  feature width
"""

import torch
from scipy.linalg import helmert
from torch import Tensor


def zero_sum_basis(width: int) -> Tensor:
    """Return an orthonormal basis (d - 1, d) of the vectors with sum 0, where the outputs of LN lie."""
    return torch.from_numpy(helmert(width))


def simplex_frame(classes: int) -> Tensor:
    """Return K unit vectors (K, K - 1) with cosines -1/(K - 1): a simplex equiangular tight frame."""
    return zero_sum_basis(classes).T * (classes / (classes - 1)) ** 0.5
