"""When a value conforms to the exact one: see docs/metrics.md, Conformance."""

import math
from fractions import Fraction

RELATIVE, ULPS = Fraction(1, 10**9), 10
LEAST = Fraction(2) ** -1074  # of float64's positive numbers
COUNTS = {"nc1_pinv_rank", "rank_means", "rank_weights", "ncc_error", "nc4_mismatch"}


def conforms(metric: str, found: float, value: str, ulp: str, relative: Fraction = RELATIVE) -> bool:
    """Equal where not finite or a count, else within `relative` of the value or 10 of its ulps."""
    nearest = float(value)
    if metric in COUNTS or not math.isfinite(nearest) or not math.isfinite(found):
        return found == nearest or (math.isnan(found) and math.isnan(nearest))
    error = abs(Fraction(found) - Fraction(value))
    return error <= max(relative * abs(Fraction(value)), ULPS * Fraction(ulp), LEAST)
