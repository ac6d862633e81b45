"""Class encodings and losses in the features model [2606.00344; 2105.02375; 2203.01238; 2210.02192].

K  classes    q  length of a class's code    n  samples of a class    lambda  decay of W and of the features
"""

import math
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from ncpipe.config.bounds import Bound, Count, Index, NonNegative, Positive
from ncpipe.metrics.geometry import nc2_etf
from ncpipe.metrics.loss_functions import LOSSES, Loss, focal, half_squared_error
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import seeded_generator
from ncpipe.theory import ufm
from ncpipe.theory.numerical import NumericalOptimum, minimise_ufm
from ncpipe.theory.ufm import Decay

Classes = Annotated[int, Bound(low=2)]
LossName = Literal["ce", "mse", "focal", "smoothed"]
STARTS = 4
GAMMA, DELTA = 2.0, 0.1  # of focal loss and of label smoothing, the usual values


def encoding_cosine(classes: Classes, per_class: Count, decay: Positive, bias: NonNegative) -> float:
    """Return the cosine of two classes' uncentred features at the optimum of MSE with a penalised bias."""
    return _cosine(ufm.optimum("mse", classes, per_class, classes, Decay(decay, decay, bias)).features)


def encoding_cosine_numerical(
    classes: Classes, per_class: Count, decay: Positive, bias: NonNegative
) -> float:
    """Return the same cosine at a numerical minimum."""
    targets, counts = torch.eye(classes), torch.full((classes,), per_class)
    own = Decay(decay, decay, bias)
    return _cosine(minimise_ufm(half_squared_error, targets, counts, classes, own, starts=1, seed=0).features)


def encoding_fall(
    classes: Classes, per_class: Count, decay: Positive, low: Positive, high: Positive
) -> float:
    """Return that cosine's largest fall between neighbours of 50 penalties of the bias, `low` to `high`."""
    grid = np.geomspace(low, high, 50)
    found = [encoding_cosine(classes, per_class, decay, float(bias)) for bias in grid]
    return max(before - after for before, after in pairwise(found))


def encoding_bias(classes: Classes, length: Count, width: Count, decay: Positive, seed: Index) -> float:
    """Return the distance of the optimal bias, here free, from the mean of drawn class codes, over the mean.

    Codes are K normal vectors of q numbers; W is (q, d), and all classes have one sample.
    """
    codes = torch.randn(classes, length, generator=seeded_generator(seed, "codes"), dtype=torch.float64)
    own = Decay(decay, decay, 0.0)
    found = minimise_ufm(half_squared_error, codes, torch.ones(classes), width, own, starts=STARTS, seed=seed)
    assert found.bias is not None
    centre = codes.mean(0)
    return float((found.bias - centre).norm() / centre.norm())


def loss_simplex(loss: LossName, classes: Classes, width: Count, decay: Positive) -> float:
    """Return NC2 of the features at a numerical minimum with a free bias: 0 if they are a simplex ETF.

    focal: gamma = 2. smoothed: cross-entropy with delta = 0.1.
    """
    return nc2_etf(_minimum(loss, classes, width, decay, STARTS).features)


def benign_share(
    loss: Literal["ce", "mse"], classes: Classes, width: Count, decay: Positive, starts: Count
) -> float:
    """Return the share of random starts of a descent that end at the closed form of the global minimum."""
    least = ufm.optimum(loss, classes, 1, width, Decay(decay, decay, 0.0)).value
    return float((_minimum(loss, classes, width, decay, starts).values < least + 1e-8).double().mean())


def saddle_curvature(classes: Classes, width: Count, decay: Positive) -> float:
    """Return the least eigenvalue of cross-entropy's Hessian with decay at W = 0, H = 0, a critical point."""

    def objective(flat: Tensor) -> Tensor:
        weight, features = flat.view(2, classes, width)
        fit = LOSSES["ce"](features @ weight.T, torch.eye(classes, dtype=torch.float64)).mean()
        return fit + decay / 2 * flat.square().sum()

    origin = torch.zeros(2 * classes * width, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(objective, origin)
    return float(torch.linalg.eigvalsh(hessian)[0])


def _minimum(loss: LossName, classes: int, width: int, decay: float, starts: int) -> NumericalOptimum:
    share = DELTA if loss == "smoothed" else 0.0
    targets = (1 - share) * torch.eye(classes, dtype=torch.float64) + share / classes
    counts = torch.ones(classes, dtype=torch.float64)
    return minimise_ufm(_loss(loss), targets, counts, width, Decay(decay, decay, 0.0), starts=starts, seed=0)


def _loss(name: LossName) -> Loss:
    if name == "focal":
        return lambda logits, targets: focal(logits, targets.argmax(1), GAMMA)
    return LOSSES["mse" if name == "mse" else "ce"]


def _cosine(features: Tensor) -> float:
    """Return that of the first two of features that are alike in all pairs; InputError if they are 0."""
    first, second = features[:2]
    length = float(first.norm() * second.norm())
    if not length or math.isnan(length):
        raise InputError("decay: so large that all features are 0; give a smaller one")
    return float(first @ second) / length
