"""Say from which decay on minorities collapse in the features model with unequal classes [K23 3.1.6].

K_A majority classes of R n_B samples and K_B minority classes of n_B, N all samples; decay on A and on every
sample's features as in `ufm`. The problem is convex in the logits with a nuclear norm, so that classes of one
size are alike at some optimum. The minority's contrast is the length of its classifier rows about their mean;
it falls to 0 before the majority's does.
"""

import math
from dataclasses import dataclass

from ncpipe.system.errors import InputError


@dataclass(frozen=True)
class Classes:
    """K_A and K_B classes, `minority` samples in each of the K_B and ratio times as many in the others."""

    majorities: int
    minorities: int
    minority: int
    ratio: float

    def __post_init__(self) -> None:
        if min(self.majorities, self.minorities, self.minority) < 1:
            raise InputError("majorities, minorities and samples of a minority must be at least 1 each")
        if not self.ratio >= 1:
            raise InputError(f"ratio: {self.ratio:g}; a majority is at least as large as a minority")

    @property
    def samples(self) -> float:
        return self.minority * (self.majorities * self.ratio + self.minorities)


def minority_threshold(classes: Classes) -> float:
    """Return sqrt(n_B)/N: minority contrast is 0 iff sqrt(lambda_A lambda_F) is at least this.

    Exact for cross-entropy and MSE, whatever the bias: at contrast 0 its derivative of the loss is -n_B/N for
    each direction and that of the nuclear norm sqrt(n_B) sqrt(lambda_A lambda_F).
    """
    return math.sqrt(classes.minority) / classes.samples


def largest_ratio(majorities: int, minorities: int, minority: int, decay: float) -> float:
    """Return R* = (1/(sqrt(n_B) decay) - K_B)/K_A, from which on minorities collapse; below 1: at any ratio.

    decay: sqrt(lambda_A lambda_F).
    """
    return (1 / (math.sqrt(minority) * decay) - minorities) / majorities
