"""Spec of the last layer, whatever the architecture."""

from dataclasses import dataclass
from typing import Literal

from ncpipe.config.bounds import Positive


@dataclass(frozen=True)
class Classifier:
    """What the last layer is.

    kind: `learned`, as without the key, or `etf`: rows of a simplex equiangular tight frame in a drawn
    orientation, which nothing trains and nothing penalises; it needs a width of K - 1 or more.
    length: norm of each row of an etf; not allowed for a learned classifier.
    """

    kind: Literal["learned", "etf"]
    length: Positive | None = None

    def __post_init__(self) -> None:
        if (self.kind == "etf") != (self.length is not None):
            raise ValueError("length is a number with `kind: etf` and no key with `kind: learned`")
