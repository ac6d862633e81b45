"""Slopes of S25's bounds for global optima in depth, to be drawn beside what training reached.

Bounds up to constants and logarithms, proved for the optimum: training promises none of them.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd

from ncpipe.metrics.study_metrics import entry
from ncpipe.tables.gaps import HOLDS

# The gap's power of 1/L at constant lambda [S25 App. A], which lambda(L) multiplies.
GAP_RATES = {"L-RN1": Fraction(1), "L-T11": Fraction(1, 2), "L-T21": Fraction(1, 2)}
TWO_LAYERS = ("L-RN2", "L-T12", "L-T22")  # lambda(L) log L instead [Theorem 4.6]
BOUNDED = ("NC1", "NC2", "NC3", "gap")  # the optimum's training samples and loss; no held-out ones


@dataclass(frozen=True)
class ReferenceSlope:
    """L^-exponent (log L)^logarithm."""

    exponent: Fraction
    logarithm: Fraction

    def log10(self, depth: np.ndarray) -> np.ndarray:
        """Return its log10; -inf at L = 1 where there is a logarithm."""
        with np.errstate(divide="ignore"):
            return float(self.logarithm) * np.log10(np.log(depth)) - float(self.exponent) * np.log10(depth)

    @property
    def label(self) -> str:
        """Mathtext."""
        power = rf"L^{{-{self.exponent}}}"
        if not self.logarithm:
            return f"${power}$"
        logarithm = r"\log L" if self.logarithm == 1 else rf"(\log L)^{{{self.logarithm}}}"
        return rf"${power}\,{logarithm}$"


def reference_slope_of(metric: str, runs: pd.DataFrame) -> ReferenceSlope | None:
    """Return the slope of a metric's bound for one experiment, or None where the theory has none that falls.

    runs: with architecture, loss_name, last_bias, penalty_rule, penalty_scope, last_strength and bound.
    lambda_L has to be the same at every depth, and the optimum's conditions hold, such as balanced classes
    that are no more than d. Under the squared error the optimum needs a last bias that is not penalised.
    """
    if not (runs["bound"] == HOLDS).any():  # `theory.gap` has checked the conditions
        return None
    architecture, rule = (str(runs[name].iloc[0]) for name in ("architecture", "penalty_rule"))
    known = entry(metric)
    if known.order is None or known.group not in BOUNDED or runs["last_strength"].nunique() != 1:
        return None
    scope = runs.get("penalty_scope", "matrices")  # no column of tables from before the key
    if ((runs["loss_name"] == "mse") & runs["last_bias"].astype(bool) & (scope == "all")).any():
        return None
    two_layers = architecture in TWO_LAYERS
    if not two_layers and architecture not in GAP_RATES:  # no theorem about it
        return None
    rate = (Fraction(0) if two_layers else GAP_RATES[architecture]) + (rule == "over_depth")
    if not rate:
        return None
    power = Fraction(known.order, 2)  # distances to the optimum go with the square root of the gap's bound
    return ReferenceSlope(rate * power, power if two_layers else Fraction(0))
