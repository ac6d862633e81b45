"""Unbalanced classes in the features model [2208.05512; 2401.02058; 2306.07960].

Half of the K classes have R times as many samples as the others, which have one.

K  classes, even    R  ratio    lambda  decay of W and of each sample's features
"""

import math
from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from ncpipe.config.bounds import Bound, Positive
from ncpipe.metrics.loss_functions import cross_entropy
from ncpipe.system.errors import InputError
from ncpipe.theory.numerical import Bounds, descend, minimise_ufm
from ncpipe.theory.ufm import Decay

Even = Annotated[int, Bound(low=4)]
Whole = Annotated[int, Bound(low=1)]
Array = np.ndarray


def seli_distance(classes: Even, ratio: Whole, decay: Positive) -> float:
    """Return the larger distance, of W W^T or of the logits, from SELI at a numerical minimum; norms are 1.

    decay is that of the summed loss: lambda N |W|^2/2 + lambda N |H|^2/2 beside the sum over samples.
    """
    counts = _counts(classes, ratio)
    own = Decay(decay / float(counts.sum()), decay / float(counts.sum()), None)
    found = minimise_ufm(cross_entropy, torch.eye(classes), counts, classes, own, starts=1, seed=0)
    weight, features = found.weight.numpy(), found.features.numpy()
    repeats = counts.int().numpy()
    logits = np.repeat(features, repeats, 0) @ weight.T
    target = simplex_encoded_labels(repeats)
    left, sizes, _ = np.linalg.svd(target.T, full_matrices=False)
    return max(_apart(weight @ weight.T, (left * sizes) @ left.T), _apart(logits, target))


def simplex_encoded_labels(counts: Array) -> Array:
    """Return the SEL matrix (N, K): 1 - 1/K at a sample's class, -1/K elsewhere."""
    labels = np.repeat(np.arange(len(counts)), counts)
    found: Array = np.eye(len(counts))[labels] - 1 / len(counts)
    return found


def seli_slope(classes: Even, ratio: Whole, low: Positive, high: Positive) -> float:
    """Return the slope of the log distance from SELI on log decay, between two decays."""
    near, far = (seli_distance(classes, ratio, decay) for decay in (low, high))
    return math.log(far / near) / math.log(high / low)


def relu_cosine(classes: Even, ratio: Whole, decay: Positive) -> float:
    """Return the largest cosine of classes' features, none below 0, at cross-entropy's minimum with decay."""
    features = _relu_features(classes, ratio, decay)
    return _largest_cosine(features)


def relu_length_ratio(classes: Even, ratio: Whole, decay: Positive) -> float:
    """Return the length of a majority's features over that of a minority's at that minimum."""
    lengths = np.linalg.norm(_relu_features(classes, ratio, decay), axis=1)
    half = classes // 2
    return float(lengths[:half].mean() / lengths[half:].mean())


def supcon_cosine_spread(
    classes: Even, ratio: Whole, temperature: Positive, sign: Literal["any", "none below 0"]
) -> float:
    """Return the largest less the least cosine of two classes' features at supervised contrast's minimum.

    Over unit features, all samples of a class at one point, any signs or none below 0.
    """
    rows = _supcon_features(classes, ratio, temperature, sign)
    cosines = (rows @ rows.T)[np.triu_indices(classes, 1)]
    return float(cosines.max() - cosines.min())


def supcon_relu_cosine(classes: Even, ratio: Whole, temperature: Positive) -> float:
    """Return the largest cosine between features of two classes, none below 0, at that minimum."""
    return _largest_cosine(_supcon_features(classes, ratio, temperature, "none below 0"))


def _counts(classes: int, ratio: int) -> Tensor:
    if classes % 2:
        raise InputError(f"classes: {classes}; half of them are large, so give an even number")
    return torch.tensor([ratio] * (classes // 2) + [1] * (classes // 2), dtype=torch.float64)


def _relu_features(classes: int, ratio: int, decay: float) -> Array:
    """Return one point a class (K, d), d = 2 K, at the best end of four starts."""
    counts, width = _counts(classes, ratio), 2 * classes

    def objective(flat: Tensor) -> Tensor:
        weight, features = flat.view(2, classes, width)
        fit = (counts * cross_entropy(features @ weight.T, torch.eye(classes).double())).sum()
        lengths = (counts * features.square().sum(1)).sum()
        return (fit + decay / 2 * (weight.square().sum() + lengths)) / counts.sum()

    free: Bounds = [(None, None)] * (classes * width) + [(0, None)] * (classes * width)
    return _bounded(objective, 2 * classes * width, free)[classes * width :].reshape(classes, width)


def _supcon_features(classes: int, ratio: int, temperature: float, sign: str) -> Array:
    """Return unit features (K, d), d = K."""
    counts = _counts(classes, ratio)

    def objective(flat: Tensor) -> Tensor:
        unit = torch.nn.functional.normalize(flat.view(classes, classes), dim=-1)
        similar = unit @ unit.T / temperature
        total = (similar + counts.log()).logsumexp(1)  # over all samples, the own one included
        return (counts / counts.sum() * (total - 1 / temperature)).sum()

    low = 0.0 if sign == "none below 0" else None
    point = _bounded(objective, classes**2, [(low, None)] * classes**2).reshape(classes, classes)
    found: Array = point / np.linalg.norm(point, axis=1, keepdims=True)
    return found


def _bounded(objective: Callable[[Tensor], Tensor], size: int, free: Bounds) -> Array:
    """Return the best end of four starts within bounds."""
    ends = []
    for seed in range(4):
        start = np.random.default_rng(seed).standard_normal(size)
        start = np.where([low is not None for low, _ in free], np.abs(start), start)
        ends.append(descend(objective, start, steps=5000, slope=1e-9, bounds=free))
    return min(ends, key=lambda end: end.value).point


def _largest_cosine(rows: Array) -> float:
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return float((unit @ unit.T)[np.triu_indices(len(rows), 1)].max())


def _apart(one: Array, other: Array) -> float:
    return float(np.linalg.norm(one / np.linalg.norm(one) - other / np.linalg.norm(other)))
