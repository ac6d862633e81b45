"""Define the spec of L-RN1 and L-RN2; `ncpipe.models.resnet` has the network."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ncpipe.config.architectures.architecture import Kind
from ncpipe.config.architectures.classifier import Classifier
from ncpipe.config.architectures.paper import PaperArchitecture
from ncpipe.config.bounds import Bound, NonNegative, Positive, Size


@dataclass(frozen=True)
class ResNetModel(PaperArchitecture):
    """A ResNet of S25 Def. 3.1 (norm: post) or B.1 (norm: pre).

    architecture: L-RN1 or L-RN2, with blocks of one or two layers.
    norm: `post` normalises after each branch has been added, `pre` inside the branch alone.
    width: d, of every layer.
    last_bias: whether the last layer has a bias; it is not penalised.
    layer_norm_eps: added to the variance that a layer normalisation divides by.
    initialisation: weights are drawn with variance gain^2 / fan_in, normal or uniform, and biases start at 0;
    or training starts from the construction of Theorem 4.3 or 4.6, of which only the first layer is drawn
    (`ncpipe.theory.constructions.networks`).
    gain: gain of the random initialisation.
    mlp_width: hidden width of two-layer blocks (L-RN2); no key of L-RN1.
    classifier: kind of the last layer; learned by default.
    """

    architecture: Literal["L-RN1", "L-RN2"]
    norm: Literal["post", "pre"]
    width: Annotated[int, Bound(2, 10**6)]
    last_bias: bool
    layer_norm_eps: NonNegative
    initialisation: Literal["normal", "uniform", "construction"]
    gain: Positive
    mlp_width: Size | None = None
    classifier: Classifier | None = None

    def incompatibility(self, kind: Kind, source: str) -> str:
        if kind not in ("tokens", "next_tokens"):
            return ""
        return f"model.architecture: {self.architecture} takes vectors or images, {source} is token sequences"

    def depth_incompatibility(self, depth: int) -> str:
        return "" if depth >= 2 else "L >= 2 (L counts the last layer of a ResNet)"
