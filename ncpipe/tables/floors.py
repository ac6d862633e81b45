"""Define the rounding floor of each metric: a value at or below it is rounding error, not a measurement.

Trained weights are used unchanged, and everything is computed from them in float64, with eps = 2^-52.
Relative to the distances of class means, features have rounding errors of 2 to 10 eps in trained networks.
They are at most 95 eps in the architectures of S25 at L = 34 at initialisation with gains 0.5 and 1, by
comparison of forward passes in float32 and float64. A bound of 1024 eps = 2^-42 = 2.3e-13 is ten times
larger. So the floor is

- 2^-42 for a metric that is linear in the deviation from collapse;
- 2^-84 = 5.2e-26 for one that is quadratic in it (variances, squared distances, 1 - cos);
- 2^-42 for a difference of losses, which are at most of order 1.

Other metrics have no floor: shares of samples are exact, ranks, margins and condition numbers do not vanish
at collapse, and `tcv` and `dnc1_trace_pinv` scale with the square and the fourth power of the features.

Training in float32 rounds weights to a relative 2^-24, so `nc2_etf` hardly falls below 1e-8. Such a value is
far above the floor: it is a property of the trained network, not of the measurement.
"""

from ncpipe.metrics.study_metrics import entry

LINEAR_FLOOR = 2.0**-42
QUADRATIC_FLOOR = LINEAR_FLOOR**2
FLOAT32_LEVEL = 2.0**-17  # 64 eps of float32, which training in it leaves of a linear deviation


def floor_of(name: str) -> float:
    """Return the metric's floor; 0 if it has none."""
    metric = entry(name)
    if metric.order is None or metric.rounding == "none":
        return 0.0
    return LINEAR_FLOOR if metric.rounding == "loss" else LINEAR_FLOOR**metric.order


def float32_level_of(name: str) -> float:
    """Return the size that training in float32 may leave of a metric that vanishes at collapse; 0 of others.

    Weights that should cancel, such as the two opposite rows of two classes, do so up to rounding.
    """
    metric = entry(name)
    return 0.0 if metric.order is None or metric.rounding in ("none", "loss") else FLOAT32_LEVEL**metric.order
