"""Singular values, ranks and condition number of a matrix (class means, weights, pre-activations), float64.

Low-rank bias shows as a rank of the uncentred class means below K, their rank at collapse [S24 sec. 6].
"""

import math
from collections.abc import Sequence

from ncpipe.metrics.powers_of_two import EPS, times_two_to, unit_of
from ncpipe.system.lazy_torch import Tensor, torch

RANK_TOLERANCE = 1e-3  # `rank` counts singular values above this share of the largest


def singular_values(matrix: Tensor) -> Tensor:
    """Return the singular values (min(m, n),) of a matrix (m, n), largest first; NaN for NaN or inf."""
    if not bool(torch.isfinite(matrix).all()):
        return torch.full((min(matrix.shape),), math.nan, dtype=torch.float64, device=matrix.device)
    exponent = unit_of(matrix)
    values = torch.linalg.svdvals(times_two_to(matrix.double(), -exponent))
    return times_two_to(values, exponent)


def numerical_rank(singular: Tensor, tolerance: float = RANK_TOLERANCE) -> float:
    """Return the number of singular values above tolerance s_1, in 0..min(m, n) [S24 sec. 6].

    0 for the zero matrix, NaN where the singular values are. S24 states no tolerance; ours is relative and
    far above float32's rounding of features and weights.
    """
    return math.nan if singular[0].isnan() else int((singular > tolerance * singular[0]).sum())


def stable_rank(singular: Tensor) -> float:
    """Return |A|_F^2/|A|_2^2 = sum_j s_j^2/s_1^2, in [1, rank], no tolerance; NaN for the zero matrix."""
    return (singular / singular[0]).square().sum().item()


def effective_rank(singular: Tensor) -> float:
    """Return exp(-sum_j p_j log p_j), p_j = s_j/sum_i s_i, in [1, rank]; NaN for the zero matrix.

    r equal singular values give r. Of the singular values, not of their squares [Roy & Vetterli 2007].
    """
    shares = singular / singular.sum()
    return torch.special.entr(shares).sum().exp().item()


def condition_number(singular: Tensor, shape: Sequence[int], of_type: float = 0.0) -> float:
    """Return s_1/s_min: 1 for orthogonal rows of one length, inf where s_min is rounding, NaN for A = 0.

    of_type: the share of s_1 up to which the entries' type rounds.
    """
    if singular[0] == 0:
        return math.nan
    rounding = singular[-1] / singular[0] <= max(max(shape) * EPS, of_type)
    return math.inf if rounding else (singular[0] / singular[-1]).item()
