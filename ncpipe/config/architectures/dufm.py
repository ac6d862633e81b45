"""Spec of the deep unconstrained features model; `ncpipe.models.dufm` has the network."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ncpipe.config.architectures.architecture import Architecture, Head, Kind, numbered_head
from ncpipe.config.bounds import NonNegative, Positive, Size


@dataclass(frozen=True)
class DufmModel(Architecture):
    """L matrices without biases behind features that are learned themselves, ReLU between them [S24 Def. 2].

    architecture: dufm.
    width: width of the features and of every hidden layer.
    columns: initial features of a class, each drawn on its `own` or all `equal`.
    initialisation: `normal` draws; `dnc`, `srg` and `srg_k` are optimal solutions of these structures.
    gain: weights are drawn with variance gain^2 / fan_in; with `normal` alone.
    feature_deviation: standard deviation of the features' drawn entries; with `normal` alone.
    noise: of a solution, moves each entry by so many times its matrix's root mean square; not with `normal`.
    """

    # fixed, and so no keys
    norm: ClassVar[str] = "none"  # type: ignore[misc]
    last_bias: ClassVar[bool] = False  # type: ignore[misc]
    has_free_features: ClassVar[bool] = True  # type: ignore[misc]
    has_head: ClassVar[bool] = True  # type: ignore[misc]

    architecture: Literal["dufm"]
    width: Size
    columns: Literal["own", "equal"]
    initialisation: Literal["normal", "dnc", "srg", "srg_k"]
    gain: Positive | None = None
    feature_deviation: Positive | None = None
    noise: NonNegative | None = None

    def __post_init__(self) -> None:
        drawn = self.initialisation == "normal"
        for key, needed in (("gain", drawn), ("feature_deviation", drawn), ("noise", not drawn)):
            if needed and getattr(self, key) is None:
                raise ValueError(f"{key} is needed with `initialisation: {self.initialisation}`")
            if not needed and getattr(self, key) is not None:
                raise ValueError(
                    f"{key} does not apply to `initialisation: {self.initialisation}`; remove it"
                )

    @property
    def starts_built(self) -> bool:  # type: ignore[override]
        return self.initialisation != "normal"

    def head(self, depth: int) -> Head:
        """Return the whole network as head."""
        return numbered_head(depth)

    def incompatibility(self, kind: Kind, source: str) -> str:
        if kind == "free":
            return ""
        return f"model.architecture: dufm learns its features and reads no {source}; take `source: free`"

    def free_features_incompatibility(self, experiment: Any) -> str:
        data, optimizer = experiment.data, experiment.optimizer.name
        if problem := self._start_incompatibility(data.classes):
            return problem
        if not data.reduced:
            return ""
        if self.columns != "equal":
            return "data.reduced: one sample stands for n that start equal; write `columns: equal` in model"
        if experiment.batch_size != "full":
            return "data.reduced: mini-batches move the samples of a class apart; write `batch_size: full`"
        if optimizer != "sgd":
            return (
                f"data.reduced: exact for gradient descent, not for {optimizer}; take `name: sgd`, or "
                "`per_class: 1` with penalty.features = n lambda_H, a problem with the same minima"
            )
        return ""

    def _start_incompatibility(self, classes: int) -> str:
        """Return why training cannot start from a solution for K = `classes`, '' if it can."""
        if not self.starts_built:
            return ""
        if self.initialisation != "dnc" and classes < 6:
            return f"model.initialisation: {self.initialisation} exists from 6 classes on, not for {classes}"
        least = _least_width(self.initialisation, classes)
        if self.width < least:
            return (
                f"model.width: {self.width} is less than the {least} coordinates that "
                f"{self.initialisation} needs for {classes} classes"
            )
        return ""


def _least_width(initialisation: str, classes: int) -> int:
    """Return the coordinates that a solution needs in its widest layer; the least of two constructions."""
    points = (1 + math.isqrt(1 + 8 * classes)) // 2
    if initialisation == "dnc":
        return classes
    minus = points // 2 if initialisation == "srg_k" else 2
    rest = classes - points * (points - 1) // 2
    block = max(math.comb(points, minus), points)
    return min(block + rest, math.comb(points + 1, minus)) if rest else block
