"""Bound within-class variability in the deep features model with a smoothed ReLU [S24 Def. 7, Thm 8]."""

import math

from torch import Tensor

from ncpipe.system.errors import InputError
from ncpipe.theory.dufm import Dufm


def relaxed_relu(inputs: Tensor, epsilon: float) -> Tensor:
    """Return a sigma_epsilon of Def. 7: ReLU outside (0, epsilon), x^2 (2 epsilon - x)/epsilon^2 inside.

    Continuously differentiable, with a slope of at most 4/3; below ReLU and rising inside.
    """
    if not epsilon > 0:
        raise InputError(f"epsilon: {epsilon:g}; the ReLU is smoothed on an interval of positive length")
    share = (inputs / epsilon).clamp(0, 1)
    return inputs.clamp(min=0) * share * (2 - share)


def within_class_bound(model: Dufm, width: int, epsilon: float) -> float:
    """Return the printed bound on the distance of two samples of a class, in any layer [Thm 8].

    6 epsilon sqrt(D (L+1))/((L+1)^(L+1) lambda_H prod_l lambda_Wl sqrt(n)), D = `width` the widest of the
    layers 2..L. Raises InputError for a lambda above 1/(L+1), which the theorem leaves out. docs/low_rank.md
    says why its proof does not give this bound, and that no run can violate it in practice.
    """
    depth = model.depth
    if max(model.features, *model.weights) > 1 / (depth + 1):
        raise InputError(f"the bound holds for lambdas of at most 1/(L + 1) = {1 / (depth + 1):g}")
    product = math.exp(model.log_product) / model.per_class
    top = 6 * epsilon * math.sqrt(width * (depth + 1))
    return top / ((depth + 1) ** (depth + 1) * product * math.sqrt(model.per_class))
