"""Loss of last-layer features, in float64.

N  samples    K  classes    d  feature width
"""

from typing import Literal

from torch import Tensor

from ncpipe.models.loss_functions import cross_entropy, half_squared_error


def unregularised_loss(
    features: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None, loss: Literal["ce", "mse"]
) -> float:
    """Return the mean cross-entropy, or 1/(2N) |f - Y|_F^2 with one-hot Y [S25 sec. 3].

    features (N, d), weight (K, d).
    """
    logits = logits_of(features, weight, bias)
    if loss == "ce":
        return cross_entropy(logits, labels, "mean").item()
    return half_squared_error(logits, labels, over=(0, 1)).item() / len(labels)


def logits_of(features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return h W^T + b, (N, K) float64."""
    logits = features.double() @ weight.double().T
    return logits if bias is None else logits + bias.double()
