"""Features of half the width that K classes need: an orthoplex under cross-entropy with decay [K23 sec. 5].

With m = K/2 there is no room for a simplex. K vectors in opposite pairs along m axes, cosines -1 and 0, are
what `numerical` finds; a proof is not known to us.

K  classes, even    n  samples of a class    m = K/2
"""

import math

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from ncpipe.system.errors import InputError
from ncpipe.theory.ufm import Decay


def orthoplex(classes: int) -> Tensor:
    """Return K unit vectors (K, K/2), e_1, -e_1, e_2, ..."""
    if classes < 2 or classes % 2:
        raise InputError(f"classes: {classes}; an orthoplex has an even number of vectors")
    axes = torch.eye(classes // 2, dtype=torch.float64)
    return torch.stack([axes, -axes], 1).flatten(0, 1)


def orthoplex_value(classes: int, per_class: int, decay: Decay) -> float:
    """Return the least loss with penalties of collapsed features and rows along one orthoplex.

    Logits g, -g and 0 (K - 2 times): log(1 + (K-2) exp(-g) + exp(-2 g)) + sqrt(n lambda_A lambda_F) K g.
    """
    orthoplex(classes)
    strength = math.sqrt(per_class) * decay.nuclear * classes

    def value(gap: float) -> float:
        wrong = (classes - 2) * math.exp(-gap) + math.exp(-2 * gap)
        return math.log1p(wrong) + strength * gap

    highest = 1 + math.log(classes) / strength  # beyond, the penalty alone exceeds the value at 0
    found = minimize_scalar(value, bounds=(0.0, highest), method="bounded", options={"xatol": 1e-10})
    return min(float(found.fun), math.log(classes))
