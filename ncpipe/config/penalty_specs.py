"""Define the keys of the penalty; `ncpipe.models.penalties` gives each parameter its lambda."""

from dataclasses import dataclass
from typing import Literal

from ncpipe.config.bounds import NonNegative


@dataclass(frozen=True)
class Penalty:
    """lambda of S25 eq. 7 and 11, half of which times the squared norm of the weights is added to the loss.

    rule: `constant` is value, `over_depth` is value / L; so are features and layers, but not last_layer.
    value: lambda, or its numerator.
    last_layer: the last layer's own lambda_L (eq. 11), or null for the same lambda as everywhere.
    biases: whether the inner layers' biases are penalised like their matrices, which the paper does not; so
    are other vectors, such as batch norm's, but not those of the first layer and of the last one.
    scope: `matrices` are those of the inner layers and of the last one; `all` is everything that is learned,
    first layer, biases and batch norm included, as weight decay has it by default; `weights` is `all` without
    vectors: every matrix, embeddings included, no bias or batch norm; `head` is the matrices of
    a ReLU head and of the last layer, and the features that enter it [S24 sec. 6.2].
    features: lambda_H, half of which times the squared norm of each training sample's features is added to
    the loss: of those that are learned themselves (`architecture: dufm`; value without it), that enter a head
    (`scope: head`) or the last layer of a network without bounded features; without it nothing is.
    features_over_value: lambda_H as a multiple of value, in place of features.
    layers: the lambda of each layer of a dufm, from the first to the last, in place of value.
    """

    rule: Literal["constant", "over_depth"]
    value: NonNegative
    last_layer: NonNegative | None
    biases: bool = False
    scope: Literal["matrices", "weights", "all", "head"] = "matrices"
    features: NonNegative | None = None
    features_over_value: NonNegative | None = None
    layers: tuple[NonNegative, ...] | None = None

    def __post_init__(self) -> None:
        if self.layers is not None and self.last_layer is not None:
            raise ValueError("last_layer does not apply: `layers` says the last layer's lambda; write null")
        if self.biases and self.scope != "matrices":
            does = "penalises them" if self.scope == "all" else "leaves them free"
            raise ValueError(f"biases does not apply: `scope: {self.scope}` {does}; remove it")
        if None not in (self.features, self.features_over_value):
            raise ValueError("features and features_over_value: both say lambda_H; remove one")
        if self.scope == "head" and self.features is None and self.features_over_value is None:
            raise ValueError(
                "features (or features_over_value) is needed with `scope: head`: lambda_H of its input"
            )

    def inner_strength(self, depth: int) -> float:
        """Return lambda(L) of every penalised matrix but the last, unless `layers` has one for each."""
        return self._at_depth(self.value, depth)

    def last_strength(self, depth: int) -> float:
        """Return lambda_L of the last layer's weights."""
        if self.layers is not None:
            return self._at_depth(self.layers[-1], depth)
        return self.inner_strength(depth) if self.last_layer is None else self.last_layer

    def feature_strength(self, depth: int) -> float:
        """Return lambda_H of free features, or of those that enter a head."""
        if self.features_over_value is not None:
            return self._at_depth(self.features_over_value * self.value, depth)
        return self._at_depth(self.value if self.features is None else self.features, depth)

    def layer_strengths(self, depth: int) -> tuple[float, ...]:
        """Return lambda of W_1, ..., W_L."""
        if self.layers is not None:
            return tuple(self._at_depth(value, depth) for value in self.layers)
        return (self.inner_strength(depth),) * (depth - 1) + (self.last_strength(depth),)

    def _at_depth(self, value: float, depth: int) -> float:
        return value / depth if self.rule == "over_depth" else value
