"""Define the spec of the last layer, for all architectures."""

from dataclasses import dataclass
from typing import Literal

from ncpipe.config.bounds import Positive


@dataclass(frozen=True)
class Classifier:
    """The last layer.

    kind: `learned`, as without the key, or `etf`: rows of a simplex equiangular tight frame in a random
    orientation, which are neither trained nor penalised; it needs a width of K - 1 or more.
    length: norm of each row of an etf; not allowed for a learned classifier.
    """

    kind: Literal["learned", "etf"]
    length: Positive | None = None

    def __post_init__(self) -> None:
        if (self.kind == "etf") != (self.length is not None):
            raise ValueError("length is a number with `kind: etf` and no key with `kind: learned`")
