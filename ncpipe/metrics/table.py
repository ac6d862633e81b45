"""All metrics of one run: what is measured, on which layer and split, as rows of the long table."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from ncpipe.metrics.collapse import nc1_trace_ratio, nc2_etf, nc2_identity, nc3_cosine

LAST_LAYER = "last"
WEIGHTS = "weights"  # the split of metrics that look at no sample


@dataclass(frozen=True)
class Measurement:
    """One value of one metric: a row of the long table, less the run's own columns."""

    layer: str
    split: str
    metric: str
    value: float


def measure_split(split: str, features: Tensor, labels: Tensor, weight: Tensor) -> Iterator[Measurement]:
    """Metrics of last-layer features (N, d) with labels (N,) under last-layer weights (K, d)."""
    classes = len(weight)
    yield Measurement(LAST_LAYER, split, "nc1_trace_ratio", nc1_trace_ratio(features, labels, classes))
    yield Measurement(LAST_LAYER, split, "nc3_cosine", nc3_cosine(features, labels, weight))


def measure_weights(weight: Tensor) -> Iterator[Measurement]:
    """Metrics of the last-layer weights (K, d) alone."""
    yield Measurement(LAST_LAYER, WEIGHTS, "nc2_etf", nc2_etf(weight))
    yield Measurement(LAST_LAYER, WEIGHTS, "nc2_identity", nc2_identity(weight))
