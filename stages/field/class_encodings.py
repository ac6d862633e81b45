"""The angle between classes in the features model with squared error and a penalised bias [2202.08087].

K  classes    n  samples of a class    lambda  decay of W and of the features
"""

import math
from typing import Annotated

import torch
from torch import Tensor

from ncpipe.study import (
    Bound,
    Count,
    InputError,
    NonNegative,
    Positive,
    half_squared_error,
    numerical,
    ufm,
)

Classes = Annotated[int, Bound(low=2)]


def encoding_cosine(classes: Classes, per_class: Count, decay: Positive, bias: NonNegative) -> float:
    """Return the cosine of two classes' uncentred features at the optimum of MSE with a penalised bias."""
    return _cosine(ufm.optimum("mse", classes, per_class, classes, ufm.Decay(decay, decay, bias)).features)


def encoding_cosine_numerical(
    classes: Classes, per_class: Count, decay: Positive, bias: NonNegative
) -> float:
    """Return the same cosine at a numerical minimum."""
    targets, counts = torch.eye(classes), torch.full((classes,), per_class)
    own = ufm.Decay(decay, decay, bias)
    return _cosine(
        numerical.minimise_ufm(half_squared_error, targets, counts, classes, own, starts=1, seed=0).features
    )


def _cosine(features: Tensor) -> float:
    """Return that of the first two of features that are alike in all pairs; InputError if they are 0."""
    first, second = features[:2]
    length = float(first.norm() * second.norm())
    if not length or math.isnan(length):
        raise InputError("decay: so large that all features are 0; give a smaller one")
    return float(first @ second) / length
