"""Define ranges of numbers in params.yaml, as annotations.

Every count has an upper bound with a reason: a larger number is a typing error and would fail deep in a
library, or never end. The memory of a run within these bounds is estimated before it is built
(`ncpipe.training.cost`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal


@dataclass(frozen=True)
class Bound:
    """Annotates a number of params.yaml with its range, as annotated_types.GroupedMetadata."""

    __is_annotated_types_grouped_metadata__: ClassVar[Literal[True]] = True

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __iter__(self) -> Iterator[object]:
        """Yield the two limits in pydantic's terms."""
        from annotated_types import Ge, Gt, Le, Lt  # only where values are validated

        if self.low > -math.inf:
            yield Gt(self.low) if self.open_low else Ge(self.low)
        if self.high < math.inf:
            yield Lt(self.high) if self.open_high else Le(self.high)

    def admits(self, value: float) -> bool:
        """Return whether a number is finite and in the range."""
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below and math.isfinite(value)

    def __str__(self) -> str:
        parts = []
        if self.low > -math.inf:
            parts.append(f"{'>' if self.open_low else '>='} {_plain(self.low)}")
        if self.high < math.inf:
            parts.append(f"{'<' if self.open_high else '<='} {_plain(self.high)}")
        return " and ".join(parts) or "finite"


def _plain(limit: float) -> str:
    return str(int(limit)) if abs(limit) < 1e15 and limit == int(limit) else f"{limit:g}"


LARGEST = 3.4028234e38  # of float32, rounded down

Size = Annotated[int, Bound(1, 10**6)]  # of what a matrix has as many rows of: a square one takes 4 TB
Count = Annotated[int, Bound(1, 10**9)]  # of samples: more do not fit into a machine
Epochs = Annotated[int, Bound(1, 10**8)]  # of a millisecond each, more take longer than a day
Draws = Annotated[int, Bound(1, 10**6)]  # beyond it nothing changes but the time
Depth = Annotated[int, Bound(1, 10_000)]  # a deeper network takes minutes to be laid out, before it trains
Index = Annotated[int, Bound(0, 2**32 - 1)]
Positive = Annotated[float, Bound(0, LARGEST, open_low=True)]
NonNegative = Annotated[float, Bound(0, LARGEST)]
Fraction = Annotated[float, Bound(0, 1, open_high=True)]
Number = int | float  # as it is written: 64 is no 64.0


def key_of(field: str) -> str:
    """Return the key of a field: its name, without the `_` at its end where Python reserves the word."""
    return field.removesuffix("_")
