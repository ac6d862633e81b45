"""Define the rounding floor of each metric, below which its value is no measurement.

Weights are taken as they are and everything after them is in float64, whose unit is eps = 2^-52. Features
come out with rounding errors that are, against the distances of class means, 2 to 10 eps in trained networks
and at most 95 eps over the architectures of S25 at L = 34 as initialised with gains 0.5 and 1 (seen by
comparing forward passes in float32 and float64). 1024 eps = 2^-42 = 2.3e-13 leaves a factor of ten. So

- a metric that is linear in the deviation from collapse is rounding error at or below 2^-42;
- one that is quadratic in it (variances, squared distances, 1 - cos) at or below 2^-84 = 5.2e-26;
- a difference of losses, which are of order 1 at most, at or below 2^-42 again.

Other metrics have no floor: shares of samples are exact, ranks, margins and condition numbers do not vanish
at collapse, and `tcv` and `dnc1_trace_pinv` carry the square and the fourth power of the features' scale.

Training in float32 puts weights on a grid of relative width 2^-24, so that `nc2_etf` hardly falls below 1e-8.
Such a value is far above the floor: it is a property of the trained network, not of the measurement.
"""

from ncpipe.metrics.catalogue import entry

LINEAR_FLOOR = 2.0**-42
QUADRATIC_FLOOR = LINEAR_FLOOR**2


def floor_of(name: str) -> float:
    """Return the metric's floor; 0 where it has none."""
    metric = entry(name)
    if metric.order is None or metric.rounding == "none":
        return 0.0
    return LINEAR_FLOOR if metric.rounding == "loss" else LINEAR_FLOOR**metric.order
