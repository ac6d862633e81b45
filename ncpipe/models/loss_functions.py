"""Losses on tensors, for training, for measurements and for features models.

K  classes    N  samples    d  feature width; the axes before are samples, of several networks or of one
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, targets: Tensor, reduction: Literal["none", "mean"] = "none") -> Tensor:
    """Return -sum_j y_j log softmax(f)_j of each sample, or the mean: logits (..., K) -> (...) or ().

    targets: labels (...), or shares of the classes (..., K).
    """
    samples = targets.shape[: logits.dim() - 1]
    flat = targets.reshape(-1, *targets.shape[len(samples) :])
    losses = F.cross_entropy(logits.flatten(0, -2), flat, reduction=reduction)
    return losses.view(samples) if reduction == "none" else losses


def half_squared_error(logits: Tensor, targets: Tensor, over: tuple[int, ...] = (-1,)) -> Tensor:
    """Return |f - y|^2/2 of each sample; the mean is S25's 1/(2N) |f - Y|_F^2.

    logits (..., K), targets as for `cross_entropy` -> the axes that are not summed over.
    """
    if targets.dim() < logits.dim():  # one_hot would read the labels on the host
        targets = torch.zeros_like(logits).scatter_(-1, targets.unsqueeze(-1), 1)
    return (logits - targets).square().sum(over) / 2


LOSSES: Mapping[str, Loss] = MappingProxyType({"ce": cross_entropy, "mse": half_squared_error})


def smoothed(labels: Tensor, classes: int, smoothing: float, like: Tensor) -> Tensor:
    """Return targets (1 - delta) e_y + delta/K of labels (...), as shares (..., K) of the kind of `like`."""
    shares = like.new_full((*labels.shape, classes), smoothing / classes)
    return shares.scatter_(-1, labels.unsqueeze(-1), 1 - smoothing + smoothing / classes)


def focal(logits: Tensor, labels: Tensor, gamma: float, alpha: Tensor | None = None) -> Tensor:
    """Return -alpha_y (1 - p_y)^gamma log p_y of each sample, p = softmax f [Lin et al. 2017, eq. 5].

    logits (..., K), labels (...), alpha (K,) -> (...).
    """
    loss = cross_entropy(logits, labels)  # -log p_y
    if gamma:  # expm1 keeps the digits of 1 - p_y; 0 would have an infinite slope for gamma < 1
        other = (-torch.expm1(-loss)).clamp(min=torch.finfo(loss.dtype).tiny)
        # Of other powers PyTorch rounds the last samples of a tensor, so those of other runs, in another way.
        power = other.pow(gamma) if gamma in (0.5, 1, 2, 3) else (gamma * other.log()).exp()
        loss = power * loss
    return loss if alpha is None else alpha[labels] * loss


def label_aware_margins(
    logits: Tensor, labels: Tensor, counts: Tensor, max_margin: float, scale: float
) -> Tensor:
    """Return cross-entropy of s (f - Delta_y e_y), Delta_k = C/n_k^(1/4) [Cao et al. 2019, eq. 12, 13].

    logits (..., K), labels (...), counts (K,): n_k -> (...). C is such that the largest Delta is max_margin.
    """
    margins = counts.to(logits.dtype).pow(-0.25)
    margins = max_margin * margins / margins.max()
    less = torch.zeros_like(logits).scatter(-1, labels.unsqueeze(-1), margins[labels].unsqueeze(-1))
    return cross_entropy(scale * (logits - less), labels)


def logit_adjusted(logits: Tensor, labels: Tensor, counts: Tensor, tau: float) -> Tensor:
    """Return cross-entropy of f + tau log pi, pi_k = n_k/N [Menon et al. 2021, eq. 10].

    logits (..., K), labels (...), counts (K,): n_k -> (...).
    """
    priors = counts.to(logits.dtype) / counts.sum()
    return cross_entropy(logits + tau * priors.log(), labels)


def half_distance_to(logits: Tensor, labels: Tensor, reach: Tensor) -> Tensor:
    """Return (f_y - c)^2/(2 c) of each sample, the pull term of dot regression [Yang et al. 2022].

    logits (..., N, K), labels (..., N), reach c (...), positive -> (..., N).
    """
    of_label = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    reach = reach.unsqueeze(-1)
    return (of_label - reach).square() / (2 * reach)


def supervised_contrast(
    features: Tensor, labels: Tensor, temperature: float, include_self: bool, rows: slice = slice(None)
) -> tuple[Tensor, Tensor]:
    """Return log sum_l exp(s_il) - mean_j s_ij of each row i, j the others of its class [K23 eq. 32].

    s_ij = f_i f_j/tau of features f (..., N, d) divided by their lengths, l over all others; with
    include_self i is one of the j and of the l. labels (..., N) -> losses (..., B), and (..., B) bool:
    whether there is a j. Without one the loss is 0.
    """
    units = F.normalize(features, dim=-1)
    similar = units[..., rows, :] @ units.mT / temperature
    same = labels[..., rows].unsqueeze(-1) == labels.unsqueeze(-2)
    if not include_self:
        places = torch.arange(labels.shape[-1], device=labels.device)
        itself = places[rows].unsqueeze(-1) == places
        similar, same = similar.masked_fill(itself, -torch.inf), same & ~itself
    counts = same.sum(-1)
    near = similar.where(same, 0.0).sum(-1) / counts.clamp(min=1)
    compared = counts > 0
    return (similar.logsumexp(-1) - near).where(compared, 0.0), compared
