"""Solve the unconstrained features model with feature decay [K23 sec. 3.1.3, 3.1.4, eq. 21-29].

    loss(A F + b) + lambda_A/2 |A|^2 + lambda_F/2 |F|^2 + lambda_b/2 |b|^2

over A (K, m), features F (m, N) and b (K,), for K classes of n samples, N = K n, with mean cross-entropy
[eq. 21] or 1/(2N) |A F + b - Y|^2 [eq. 28]. All depends on K, under MSE on lambda_b, and on
kappa = K sqrt(n lambda_A lambda_F): from
kappa = 1 on, the optimum is A = 0, F = 0. The proof: the two decays amount to
sqrt(lambda_A lambda_F) |Z|_* of the logits Z = A F [eq. 24], which makes a convex program in Z [eq. 23], and
by symmetry some minimiser is Z = (alpha E + beta 1 1^T/K) (x) 1_n^T, with E = I - 1 1^T/K. The factors are
A = c P and one feature P_k/c per class, with P P^T = alpha E + beta 1 1^T/K and c^4 = n lambda_F/lambda_A.

CE, kappa < 1: alpha = log(K/kappa - K + 1), beta = 0, b = 0;
    value -log(1 - kappa (K-1)/K) + kappa (K-1)/K alpha. From kappa = 1 on alpha = 0, value log K.
MSE: alpha = max(1 - kappa, 0), beta = max(1 - kappa/mu, 0), b = (1 - beta)/(K (1 + lambda_b));
    value ((K-1) h(1) + h(mu))/K, with h(m) = kappa - kappa^2/(2m) for kappa < m, else m/2, and
    mu = lambda_b/(1 + lambda_b). A bias without penalty has beta = 0; without a bias mu = 1 and b = 0.

K  classes    n  samples of a class    N = K n    m  width
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ncpipe.system.errors import InputError
from ncpipe.theory.frames import zero_sum_basis
from ncpipe.theory.gufm import Loss as Loss
from ncpipe.theory.gufm import Optimum
from ncpipe.theory.gufm import check_loss as check_loss


@dataclass(frozen=True)
class Decay:
    """lambda_A, lambda_F and lambda_b; bias: 0 for a bias without penalty, None for no bias."""

    weight: float
    features: float
    bias: float | None

    def __post_init__(self) -> None:
        if not all(0 < strength < math.inf for strength in (self.weight, self.features)):
            raise InputError(f"lambda_A {self.weight:g}, lambda_F {self.features:g}; both must be positive")
        if self.bias is not None and not 0 <= self.bias < math.inf:
            raise InputError(f"lambda_b: {self.bias:g}; expected 0 or more, or None for no bias")

    @property
    def nuclear(self) -> float:
        """sqrt(lambda_A lambda_F), the strength of the nuclear norm the two decays amount to [eq. 24]."""
        return math.sqrt(self.weight) * math.sqrt(self.features)


def kappa(classes: int, per_class: int, decay: Decay) -> float:
    """Return K sqrt(n lambda_A lambda_F); from 1 on the optimum is A = 0, F = 0."""
    return classes * per_class**0.5 * decay.nuclear


def optimum(loss: Loss, classes: int, per_class: int, width: int, decay: Decay) -> Optimum:
    """Return a minimiser; features (K, m), each of which all n samples of a class share.

    Cross-entropy and MSE with an unpenalised bias: A and F along one simplex ETF. MSE without bias: along
    one orthogonal frame; with a penalised bias: a frame between the two. Raises InputError for an unknown
    loss, for fewer than two classes or one sample, and for a width below the rank of the optimal logits (at
    most K).
    """
    check_loss(loss)
    if classes < 2 or per_class < 1:
        raise InputError(
            f"{classes} classes of {per_class}; the features model needs 2 classes and a sample of each"
        )
    ratio = kappa(classes, per_class, decay)
    contrast, common, offset, fit = _solve(loss, classes, ratio, decay.bias)
    factor = _square_root(contrast, common, classes, width)
    balance = (per_class * decay.features / decay.weight) ** 0.25  # lambda_A |A|^2 = lambda_F |F|^2
    penalty = ratio / classes * ((classes - 1) * contrast + common)
    return Optimum(
        fit,
        penalty + (decay.bias or 0.0) / 2 * classes * offset**2,
        balance * factor,
        factor / balance,
        None if decay.bias is None else torch.full((classes,), offset, dtype=torch.float64),
    )


def _solve(loss: Loss, classes: int, ratio: float, bias: float | None) -> tuple[float, float, float, float]:
    """Return contrast, common, offset and fit: A F = contrast E_K + common 11^T/K, b = offset 1."""
    if loss == "ce":
        contrast = math.log(classes / ratio - classes + 1) if ratio < 1 else 0.0
        return contrast, 0.0, 0.0, math.log1p((classes - 1) * math.exp(-contrast))
    contrast = common = max(1 - ratio, 0.0)
    offset = 0.0
    if bias is not None:
        share = bias / (1 + bias)  # of the common part, which the bias would fit alone, that is left to A F
        common = 1 - ratio / share if ratio < share else 0.0
        offset = (1 - common) / (1 + bias) / classes
    rest = common + classes * offset - 1
    return contrast, common, offset, ((classes - 1) * (contrast - 1) ** 2 + rest**2) / (2 * classes)


def _square_root(contrast: float, common: float, classes: int, width: int) -> Tensor:
    """Return P (K, m) with P P^T = contrast E_K + common 11^T/K."""
    parts = []
    if contrast > 0:
        parts.append(contrast**0.5 * zero_sum_basis(classes).T)
    if common > 0:
        parts.append(torch.full((classes, 1), (common / classes) ** 0.5, dtype=torch.float64))
    rank = sum(part.shape[1] for part in parts)
    if width < rank:
        raise InputError(f"width: {width} is below {rank}, the rank of the optimal logits")
    return torch.cat([*parts, torch.zeros(classes, width - rank, dtype=torch.float64)], 1)
