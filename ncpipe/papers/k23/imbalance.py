"""Say from which decay on minorities collapse in the features model with unequal classes [K23 3.1.6].

K_A majority classes of R n_B samples and K_B minority classes of n_B, N all samples: majority, per_minority,
ratio and minority of the functions. Decay on A and on every sample's features is as in `ufm`. The problem is
convex in the logits with a nuclear norm, for widths of K or more, so that classes of one size are alike at
some optimum. The minority's contrast is the length of its classifier rows about their mean; it falls to 0
before the majority's does.
"""

import math
from typing import Annotated

from ncpipe.study import Bound, Count, Positive


def minority_threshold(
    majority: Count, minority: Count, per_minority: Count, ratio: Annotated[float, Bound(low=1)]
) -> float:
    """Return the decay sqrt(lambda_A lambda_F) from which on minority classes collapse to one point.

    sqrt(n_B)/N. Exact for cross-entropy and MSE, whatever the bias: at contrast 0 its derivative of the loss
    is -n_B/N for each direction and that of the nuclear norm sqrt(n_B) sqrt(lambda_A lambda_F).
    """
    return math.sqrt(per_minority) / (per_minority * (majority * ratio + minority))


def largest_ratio(majority: Count, minority: Count, per_minority: Count, decay: Positive) -> float:
    """Return R*, the imbalance from which on minorities collapse.

    (1/(sqrt(n_B) decay) - K_B)/K_A, decay = sqrt(lambda_A lambda_F); below 1: at any ratio.
    """
    return (1 / (math.sqrt(per_minority) * decay) - minority) / majority
