"""Compute features of half the width for K classes: an orthoplex under cross-entropy [K23 sec. 5].

With m = K/2 there is no room for a simplex. K vectors in opposite pairs along m axes, cosines -1 and 0, are
what `numerical` finds; a proof is not known to us.

K  classes, even    n  samples of a class    m = K/2
"""

import math
from typing import Annotated

from scipy.optimize import minimize_scalar

from ncpipe.study import Bound, Count, InputError, Positive


def orthoplex_value(classes: Annotated[int, Bound(low=2)], per_class: Count, decay: Positive) -> float:
    """Return the least loss of collapsed features along an orthoplex, in half the width for K classes.

    With penalties, sqrt(lambda_A lambda_F) = decay, and classifier rows along the same one. Logits g, -g and
    0 (K - 2 times): log(1 + (K-2) exp(-g) + exp(-2 g)) + sqrt(n lambda_A lambda_F) K g. InputError for an odd
    K.
    """
    if classes % 2:
        raise InputError(f"classes: {classes}; an orthoplex has an even number of vectors")
    strength = math.sqrt(per_class) * decay * classes

    def value(gap: float) -> float:
        wrong = (classes - 2) * math.exp(-gap) + math.exp(-2 * gap)
        return math.log1p(wrong) + strength * gap

    highest = 1 + math.log(classes) / strength  # beyond, the penalty alone exceeds the value at 0
    minimum = minimize_scalar(value, bounds=(0.0, highest), method="bounded", options={"xatol": 1e-10})
    return min(float(minimum.fun), math.log(classes))
