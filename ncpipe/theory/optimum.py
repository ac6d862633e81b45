"""What a solved features model gives back.

K  classes    d  feature width
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Optimum:
    """A global minimiser of a features model, float64.

    fit, penalty: the loss's and all penalties' share of the value. weight (K, d); features (K, d), the one
    that all samples of a class share; bias (K,), None in a model without one. A minimiser is unique only up
    to rotations (and, where adding one number to all logits is free, the mean of the bias, which is 0 here).
    """

    fit: float
    penalty: float
    weight: Tensor
    features: Tensor
    bias: Tensor | None

    @property
    def value(self) -> float:
        return self.fit + self.penalty
