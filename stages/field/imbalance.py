"""Unbalanced classes in the features model [2208.05512].

Half of the K classes have R times as many samples as the others, which have one.

K  classes, even    R  ratio    lambda  decay of W and of each sample's features
"""

import math
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ncpipe.study import Bound, Count, InputError, Positive, cross_entropy, numerical, ufm

Even = Annotated[int, Bound(low=4)]
Array = np.ndarray


def seli_distance(classes: Even, ratio: Count, decay: Positive) -> float:
    """Return the larger distance, of W W^T or of the logits, from SELI at a numerical minimum; norms are 1.

    decay is that of the summed loss: lambda N |W|^2/2 + lambda N |H|^2/2 beside the sum over samples.
    """
    counts = _counts(classes, ratio)
    own = ufm.Decay(decay / float(counts.sum()), decay / float(counts.sum()), None)
    found = numerical.minimise_ufm(cross_entropy, torch.eye(classes), counts, classes, own, starts=1, seed=0)
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


def seli_slope(classes: Even, ratio: Count, low: Positive, high: Positive) -> float:
    """Return the slope of the log distance from SELI on log decay, between two decays."""
    near, far = (seli_distance(classes, ratio, decay) for decay in (low, high))
    return math.log(far / near) / math.log(high / low)


def _counts(classes: int, ratio: int) -> Tensor:
    if classes % 2:
        raise InputError(f"classes: {classes}; half of them are large, so give an even number")
    return torch.tensor([ratio] * (classes // 2) + [1] * (classes // 2), dtype=torch.float64)


def _apart(one: Array, other: Array) -> float:
    return float(np.linalg.norm(one / np.linalg.norm(one) - other / np.linalg.norm(other)))
