"""Define the result of a solved features model.

K  classes    d  feature width
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Optimum:
    """A global minimiser of a features model, float64.

    fit, penalty: the parts of the value. weight (K, d); features (K, d), one for all samples of a class; bias
    (K,), None in a model without one. A minimiser is unique up to rotations and, where adding a number to all
    logits costs nothing, up to the mean of the bias, which is 0 here.
    """

    fit: float
    penalty: float
    weight: Tensor
    features: Tensor
    bias: Tensor | None

    @property
    def value(self) -> float:
        """The least regularised loss."""
        return self.fit + self.penalty
