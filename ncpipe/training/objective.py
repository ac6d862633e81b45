"""The regularised loss of S25 eq. 7 and 11, for every run of a stack at once.

S  runs    N  samples    K  classes    P  numbers per run
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ncpipe.models.build import LAST_WEIGHT, penalised
from ncpipe.specs import Run
from ncpipe.training.stack import Stack


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum over samples of -log softmax(logits)_label: logits (S, N, K), labels (S, N) -> (S,)."""
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return losses.view(labels.shape).sum(1)


def squared_error(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum over samples of |f - y|^2/2 with one-hot y: logits (S, N, K), labels (S, N) -> (S,).

    Divided by N this is 1/(2N) |f - Y|_F^2, S25's MSE.
    """
    targets = torch.zeros_like(logits).scatter_(-1, labels.unsqueeze(-1), 1)  # one_hot reads on the host
    return (logits - targets).square().sum((1, 2)) / 2


FITS = {"ce": cross_entropy, "mse": squared_error}


def penalty_strengths(stack: Stack, runs: Sequence[Run]) -> Tensor:
    """lambda of every number of every run, (S, P): 0 on biases and embedding layers, lambda_L on W_L."""
    inner, last = (
        torch.tensor(column, dtype=stack.values.dtype, device=stack.values.device)
        for column in zip(
            *((r.spec.penalty.inner_strength(r.depth), r.spec.penalty.last_strength(r.depth)) for r in runs),
            strict=True,
        )
    )
    return stack.per_parameter(
        {name: last if name == LAST_WEIGHT else inner for name in stack.names if penalised(name)}
    )


def penalty(values: Tensor, strengths: Tensor) -> Tensor:
    """lambda/2 |theta_bar|^2 of each run: values, strengths (S, P) -> (S,)."""
    return (strengths * values.square()).sum(1) / 2
