"""Cross-entropy and S25's squared error, for training, for measurements and for features models.

K  classes; the axes before it are samples, of several networks or of one
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, targets: Tensor, reduction: Literal["none", "mean"] = "none") -> Tensor:
    """-sum_j y_j log softmax(f)_j of each sample, or the mean over all: logits (..., K) -> (...) or ().

    targets: labels (...), or shares of the classes (..., K).
    """
    samples = targets.shape[: logits.dim() - 1]
    flat = targets.reshape(-1, *targets.shape[len(samples) :])
    losses = F.cross_entropy(logits.flatten(0, -2), flat, reduction=reduction)
    return losses.view(samples) if reduction == "none" else losses


def half_squared_error(logits: Tensor, targets: Tensor, over: tuple[int, ...] = (-1,)) -> Tensor:
    """|f - y|^2/2 of each sample, its mean being S25's 1/(2N) |f - Y|_F^2; summed over more axes on request.

    logits (..., K), targets as for `cross_entropy` -> the axes that are not summed over.
    """
    if targets.dim() < logits.dim():  # one_hot would read the labels on the host
        targets = torch.zeros_like(logits).scatter_(-1, targets.unsqueeze(-1), 1)
    return (logits - targets).square().sum(over) / 2


LOSSES: dict[str, Loss] = {"ce": cross_entropy, "mse": half_squared_error}
