"""The supervised contrastive loss of features on the unit sphere, and its least value [K23 eq. 32, 33].

K  classes    n  samples of a class    N = K n, ordered by class    d  width
"""

import math

import torch
from torch import Tensor

from ncpipe.system.errors import InputError


def supcon_loss(features: Tensor, classes: int, temperature: float, *, include_self: bool) -> Tensor:
    """Return the mean of -1/n sum_j log(exp(f_i f_j/tau)/sum_l exp(f_i f_l/tau)), j of i's class.

    features (N, d), of any length. include_self: as eq. 32 is printed; else neither sum has i itself (n - 1
    samples j) [Khosla et al. 2020].
    """
    check(classes, len(features) // classes, temperature, include_self)
    similar = features @ features.T / temperature
    labels = torch.arange(classes).repeat_interleave(len(features) // classes)
    same = labels[:, None] == labels
    if not include_self:
        own = torch.eye(len(features), dtype=torch.bool)
        same = same & ~own
        similar = similar.masked_fill(own, -torch.inf)
    ratios = similar - similar.logsumexp(1, keepdim=True)
    return -ratios[same].sum() / same.sum()


def supcon_optimum(classes: int, per_class: int, temperature: float, *, include_self: bool) -> float:
    """Return the least loss over unit features, that of a collapsed simplex ETF.

    log n + log(1 + (K-1) exp(-K/((K-1) tau))), and without i itself log(n - 1 + n (K-1) exp(-K/((K-1) tau))).
    Eq. 33 is this for a c_2/c_1 = (K-1) exp(-K Omega_F/((K-1) tau)); the one it prints has an Omega_A, which
    the problem has not.
    """
    check(classes, per_class, temperature, include_self)
    odds = (classes - 1) * math.exp(-classes / ((classes - 1) * temperature))
    return math.log(per_class * (1 + odds) - (0 if include_self else 1))


def check(classes: int, per_class: int, temperature: float, include_self: bool) -> None:
    """Raise InputError for a temperature of 0 or below, fewer than 2 classes, or no sample to be near to."""
    if not (temperature > 0 and math.isfinite(temperature)):
        raise InputError(f"temperature: {temperature:g}; expected a positive number")
    least = 1 if include_self else 2
    if classes < 2 or per_class < least:
        sizes = f"{classes} classes of {per_class}"
        raise InputError(f"{sizes}; a contrastive loss needs 2 classes of {least} or more samples")
