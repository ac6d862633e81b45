"""Solve for features under two linear layers with decay on all three factors [K23 eq. 36-39].

    1/(2N) |A_2 A_1 F - Y|^2 + lambda_2/2 |A_2|^2 + lambda_1/2 |A_1|^2 + lambda_F/2 |F|^2

The penalties amount to 3/2 (n lambda_1 lambda_2 lambda_F)^(1/3) sum_i sigma_i^(2/3) of the class logits'
singular values, so that each of these is the z that minimises (z - 1)^2/2 + 3/2 c z^(2/3), c = K (n lambda_1
lambda_2 lambda_F)^(1/3): an orthogonal frame in every factor, or nothing. z jumps from 1/2 to 0 at c =
2^(-4/3).

K  classes    n  samples of a class    both widths are K or more
"""

from scipy.optimize import brentq

from ncpipe.study import Positive

JUMP = 2 ** (-4 / 3)  # c from which on the optimum is 0


def best_logit(strength: Positive) -> float:
    """Return z of two linear layers at c = K (n lambda_1 lambda_2 lambda_F)^(1/3).

    It is the larger root of (1 - z) z^(1/3) = c, or 0 for c of 2^(-4/3) or more.
    """
    if strength >= JUMP:
        return 0.0
    return float(brentq(lambda z: (1 - z) * z ** (1 / 3) - strength, 0.5, 1.0, xtol=1e-16))
