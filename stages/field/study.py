"""A metric of this study."""

from ncpipe.metrics.catalogue import Metric


def feature_length(samples):
    total, count = 0.0, 0
    for h, _ in samples:
        total, count = total + h.norm(dim=1).sum(), count + len(h)
    return total / count


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
METRICS = {FEATURE_LENGTH: feature_length}
