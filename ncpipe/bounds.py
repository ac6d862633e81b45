"""Ranges of numbers in params.yaml, as annotations of what a record takes."""

import math
from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Bound:
    """Range of a number in params.yaml, carried by `Annotated` and checked by the reader."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def admits(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below and math.isfinite(value)

    def __str__(self) -> str:
        parts = []
        if self.low > -math.inf:
            parts.append(f"{'>' if self.open_low else '>='} {self.low:g}")
        if self.high < math.inf:
            parts.append(f"{'<' if self.open_high else '<='} {self.high:g}")
        return " and ".join(parts) or "finite"


Count = Annotated[int, Bound(low=1)]
Index = Annotated[int, Bound(low=0, high=2**32 - 1)]
Positive = Annotated[float, Bound(low=0, open_low=True)]
NonNegative = Annotated[float, Bound(low=0)]
Number = int | float  # as it is written: 64 is no 64.0
Fraction = Annotated[float, Bound(low=0, high=1, open_high=True)]
