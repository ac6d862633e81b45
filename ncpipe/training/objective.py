"""The regularised loss of S25 eq. 7 and 11, for every run of a stack at once.

S  runs    N  samples    K  classes    P  numbers per run
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ncpipe.models.penalties import is_penalised, strength_of
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
    """lambda of every number of every run, (S, P): lambda_L on W_L, 0 on what is not penalised."""
    return stack.per_parameter(
        lambda role, dimensions: [strength_of(role, dimensions, r.spec.penalty, r.depth) for r in runs]
    )


def decayed_numbers(stack: Stack, runs: Sequence[Run]) -> Tensor:
    """(S, P): 1 on every number that is penalised, whatever its lambda; there AdamW may decay."""
    return stack.per_parameter(
        lambda role, dimensions: [float(is_penalised(role, dimensions, r.spec.penalty)) for r in runs]
    )


def penalty(values: Tensor, strengths: Tensor) -> Tensor:
    """lambda/2 |theta_bar|^2 of each run: values, strengths (S, P) -> (S,)."""
    return (strengths * values.square()).sum(1) / 2
