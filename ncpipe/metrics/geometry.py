"""The shapes that collapsed features and weights take."""

import torch
from torch import Tensor


def simplex_etf_gram(classes: int) -> Tensor:
    """E_K = I_K - 11^T/K (K, K) float64, up to scale the Gram matrix of a simplex equiangular tight frame.

    S25 prints E_K without the 1/K, which is the Gram matrix of no frame (it has a negative eigenvalue).
    """
    return torch.eye(classes, dtype=torch.float64) - 1 / classes
