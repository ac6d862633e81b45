"""Compute the supervised contrastive loss on the unit sphere and its least value [K23 eq. 32, 33].

K  classes    n  samples of a class    N = K n, ordered by class    d  width
"""

import math
from typing import Annotated

import torch
from torch import Tensor

from ncpipe.study import Bound, Count, InputError, Positive


def supcon_loss(features: Tensor, classes: int, temperature: float, *, include_self: bool) -> Tensor:
    """Return the mean of -1/n sum_j log(exp(f_i f_j/tau)/sum_l exp(f_i f_l/tau)), j of i's class.

    features (N, d), of any length. include_self: as eq. 32 is printed; else neither sum has i itself (n - 1
    samples j) [Khosla et al. 2020].
    """
    similar = features @ features.T / temperature
    labels = torch.arange(classes).repeat_interleave(len(features) // classes)
    same = labels[:, None] == labels
    if not include_self:
        diagonal = torch.eye(len(features), dtype=torch.bool)
        same = same & ~diagonal
        similar = similar.masked_fill(diagonal, -torch.inf)
    ratios = similar - similar.logsumexp(1, keepdim=True)
    return -ratios[same].sum() / same.sum()


def supcon_optimum(
    classes: Annotated[int, Bound(low=2)], per_class: Count, temperature: Positive, include_self: bool
) -> float:
    """Return the least supervised contrastive loss over unit features of K - 1 or more coordinates.

    That of a collapsed simplex ETF: log n + log(1 + (K-1) exp(-K/((K-1) tau))), and without i itself
    log(n - 1 + n (K-1) exp(-K/((K-1) tau))). Eq. 33 is this for a c_2/c_1 = (K-1) exp(-K Omega_F/((K-1)
    tau)); the one it prints has an Omega_A, which the problem has not. InputError for a class of one sample
    without i itself.
    """
    if per_class == 1 and not include_self:
        raise InputError("per_class: 1; without a sample itself its class needs 2 or more")
    odds = (classes - 1) * math.exp(-classes / ((classes - 1) * temperature))
    same = per_class - (0 if include_self else 1)
    return math.log(same) + math.log1p(per_class * odds / same)  # of odds that 1 + odds rounds away too
