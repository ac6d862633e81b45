"""Losses of a features model, sample by sample.

M  samples    K  classes
"""

from collections.abc import Callable

from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """-sum_j y_j log softmax(f)_j of each sample; logits and targets (M, K), soft or one-hot, -> (M,)."""
    return -(targets * logits.log_softmax(1)).sum(1)


def half_squared_error(logits: Tensor, targets: Tensor) -> Tensor:
    """|f - y|^2/2 of each sample, (M, K) -> (M,); its mean is S25's 1/(2N) |f - Y|^2."""
    return (logits - targets).square().sum(1) / 2


LOSSES: dict[str, Loss] = {"ce": cross_entropy, "mse": half_squared_error}
