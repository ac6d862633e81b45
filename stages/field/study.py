"""Modular addition as a data set, and two metrics of this study."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ncpipe.config.specs import Count, Index, OwnData
from ncpipe.metrics.catalogue import Metric


@dataclass(frozen=True)
class ModularData(OwnData):
    kind = "vector"
    source: Literal["modular"]
    modulus: Count
    per_class: Count
    seed: Index


def modular(spec):
    draw = np.random.default_rng(spec.seed)
    first, second = np.divmod(np.arange(spec.modulus**2), spec.modulus)
    sums = (first + second) % spec.modulus
    order = np.concatenate([draw.permutation(np.flatnonzero(sums == k)) for k in range(spec.modulus)])
    order = order.reshape(spec.modulus, spec.modulus)
    train, test = order[:, : spec.per_class].ravel(), order[:, spec.per_class :].ravel()
    pairs = np.concatenate([np.eye(spec.modulus)[first], np.eye(spec.modulus)[second]], axis=1)
    return {
        "inputs": pairs[train],
        "labels": sums[train],
        "test_inputs": pairs[test],
        "test_labels": sums[test],
    }


DATA = {ModularData: modular}


def row_sum(weight):
    return weight.sum(0).square().sum() / len(weight)


def feature_length(samples):
    total, count = 0.0, 0
    for h, _ in samples:
        total, count = total + h.norm(dim=1).sum(), count + len(h)
    return total / count


ROW_SUM = Metric(
    "row_sum",
    "NC0",
    "0",
    "squared length of the sum of W's rows, over K",
    "‖Wᵀ1‖²/K",
    "[0, ∞)",
    "2602.16642",
    "last, weights",
)
FEATURE_LENGTH = Metric(
    "feature_length",
    "norms",
    "-",
    "mean length of features",
    "mean over samples of ‖h‖",
    "[0, ∞)",
    "2604.00230",
    "every, both",
)
METRICS = {ROW_SUM: row_sum, FEATURE_LENGTH: feature_length}
