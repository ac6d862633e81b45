"""Follow the central path: features under MSE with the least-squares classifier [K23 eq. 30, 31].

With the best A and b for the features, no decay, and white within-class scatter Sigma_W = I, the MSE is

    L = 1/2 sum_j 1/(K + omega_j^2)

of the singular values omega_j of the centred class means, j = 1..K-1: features with larger, equal omega_j
have collapsed further. Two flows keep Sigma_W = I, and in both each omega_j moves by itself. The tangent
flow, that of eq. 31 with its sign corrected, projects the gradient on the white features; renormalising after
every step, the text's words, multiplies all features by Sigma_W^(-1/2) and so lengthens the means too.

K  classes    n  samples of a class    N = K n
"""

import math
from typing import Literal

from scipy.optimize import brentq

Kind = Literal["tangent", "whitening"]


def clock(omega: float, classes: int, per_class: int, kind: Kind) -> float:
    """Return the time at which a singular value is omega, up to a constant that depends on its start.

    n (K^2 log omega + K omega^2 + omega^4/4) for the tangent flow: omega ~ (4 t/n)^(1/4), so that NC1 ~
    t^(-1/2). N (K log omega + omega^2/2) for whitening: omega ~ (2 t/N)^(1/2) and NC1 ~ 1/t.
    """
    if kind == "tangent":
        return per_class * (classes**2 * math.log(omega) + classes * omega**2 + omega**4 / 4)
    return classes * per_class * (classes * math.log(omega) + omega**2 / 2)


def signal_at(omega: float, time: float, classes: int, per_class: int, kind: Kind) -> float:
    """Return omega(t) from omega(0) = omega."""
    goal = clock(omega, classes, per_class, kind) + time
    highest = 2 * omega
    while clock(highest, classes, per_class, kind) < goal:
        highest *= 2
    return float(
        brentq(lambda value: clock(value, classes, per_class, kind) - goal, omega, highest, xtol=1e-14)
    )
