"""Define the spec of plain multi-layer perceptrons; `ncpipe.models.mlp` has the network."""

from dataclasses import dataclass
from typing import Literal

from ncpipe.config.architectures.architecture import Architecture, Classifier
from ncpipe.config.bounds import NonNegative, Positive, Size


@dataclass(frozen=True)
class MLPModel(Architecture):
    """A multi-layer perceptron of L matrices, the last layer's included; nothing bounds its features.

    architecture: mlp.
    norm: `batch` normalises what enters each activation over the samples of a batch; `none` does not.
    activation: behind every matrix but the last one.
    width: width of every hidden layer.
    bias: whether the hidden layers have biases.
    last_bias: whether the last layer has one; `scope: all` penalises it, nothing else does.
    initialisation: weights are drawn with variance gain^2 / fan_in, normal or uniform; biases start at 0.
    gain: gain of the random initialisation.
    batch_norm_eps: added to the variance that a batch normalisation divides by; no key with `norm: none`.
    classifier: kind of the last layer; learned by default.
    """

    architecture: Literal["mlp"]
    norm: Literal["none", "batch"]
    activation: Literal["relu", "tanh", "gelu", "identity"]
    width: Size
    bias: bool
    last_bias: bool
    initialisation: Literal["normal", "uniform"]
    gain: Positive
    batch_norm_eps: NonNegative | None = None
    classifier: Classifier | None = None

    def __post_init__(self) -> None:
        if (self.norm == "batch") != (self.batch_norm_eps is not None):
            raise ValueError("batch_norm_eps is a number with `norm: batch` and no key with `norm: none`")

    @property
    def feature_width(self) -> int:
        return self.width
