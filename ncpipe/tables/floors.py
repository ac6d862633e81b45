"""Where a metric's value is rounding and no measurement any more.

Weights are taken as they are and everything after them is in float64, whose unit is eps = 2^-52. Features
come out with rounding errors that are, against the distances of class means, 2 to 10 eps in trained networks
and at most 95 eps over the architectures of S25 at L = 34 as initialised with gains 0.5 and 1 (seen by
comparing forward passes in float32 and float64). 1024 eps = 2^-42 = 2.3e-13 leaves a factor of ten. So

- a metric that is linear in the deviation from collapse is rounding at or below 2^-42;
- one that is quadratic in it (variances, squared distances, 1 - cos) at or below 2^-84 = 5.2e-26;
- a difference of losses, which are of order 1 at most, at or below 2^-42 again.

Other metrics have no floor: shares of samples are exact, ranks, margins and condition numbers do not vanish
at collapse, and `dnc1_trace_pinv` carries the fourth power of the features' scale.

Training in float32 is another matter: it puts weights on a grid of relative width 2^-24, so that `nc2_etf`
hardly falls below 1e-8. Such a value is far above the floor, and is what the trained network has.
"""

LINEAR_FLOOR = 2.0**-42
QUADRATIC_FLOOR = LINEAR_FLOOR**2

LINEAR = (
    "nc2_etf",
    "nc2_identity",
    "nc2_means",
    "nc2_equinorm_means",
    "nc2_equinorm_weights",
    "nc2_equiangular_means",
    "nc2_equiangular_weights",
    "nc3_duality",
)
QUADRATIC = (
    "nc1_trace_ratio",
    "nc1_pinv",
    "cdnv",
    "nc3_cosine",
    "weak_test_collapse",
    "strong_test_collapse",
)
LOSS_DIFFERENCES = ("loss_gap", "gap_gufm", "gap_fit", "gap_last_penalty")
FLOORS = dict.fromkeys((*LINEAR, *LOSS_DIFFERENCES), LINEAR_FLOOR) | dict.fromkeys(QUADRATIC, QUADRATIC_FLOOR)
