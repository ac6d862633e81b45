"""Define the spec of L-T11, L-T12, L-T21 and L-T22; `ncpipe.models.transformer` has the network."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ncpipe.config.architectures.architecture import Kind
from ncpipe.config.architectures.classifier import Classifier
from ncpipe.config.architectures.paper import PaperArchitecture
from ncpipe.config.bounds import Bound, NonNegative, Positive, Size


@dataclass(frozen=True)
class TransformerModel(PaperArchitecture):
    """A transformer of S25 Def. 3.2 (norm: post) or B.2 (norm: pre).

    architecture: L-Tax, with a matrices each for values and scores, and x-layer MLPs.
    norm: `post` normalises after each branch has been added, `pre` inside the branch alone.
    width: d, of every layer.
    last_bias: whether the last layer has a bias; it is not penalised.
    layer_norm_eps: added to the variance that a layer normalisation divides by.
    initialisation: weights are drawn with variance gain^2 / fan_in, normal or uniform, and biases start at 0;
    or training starts from the construction of Theorem 4.3 or 4.6, of which only the first layer is drawn
    (`ncpipe.theory.constructions.networks`).
    gain: gain of the random initialisation.
    mlp_width: hidden width of two-layer MLPs (L-T12, L-T22); no key of the others.
    patch: side of the square patches of an image, or coordinates per token of a vector; no key on token
    sequences.
    classifier: kind of the last layer; learned by default.
    """

    architecture: Literal["L-T11", "L-T12", "L-T21", "L-T22"]
    norm: Literal["post", "pre"]
    width: Annotated[int, Bound(2, 10**6)]
    last_bias: bool
    layer_norm_eps: NonNegative
    initialisation: Literal["normal", "uniform", "construction"]
    gain: Positive
    mlp_width: Size | None = None
    patch: Size | None = None
    classifier: Classifier | None = None

    @property
    def two_matrix_attention(self) -> bool:
        """W_O W_V and W_K^T W_Q in place of W_VO and W_QK."""
        return self.architecture in ("L-T21", "L-T22")

    def incompatibility(self, kind: Kind, source: str) -> str:
        if kind == "next_tokens" and self.starts_built:
            return f"model.initialisation: the construction is for one label a sequence, not for {source}"
        text = kind in ("tokens", "next_tokens")
        if text and self.patch is not None:
            return "model.patch does not apply to token sequences; remove it"
        if not text and self.patch is None:
            return f"model.patch is needed: {self.architecture} reads {source} as a sequence of patches"
        return ""

    def side_incompatibility(self, side: int | None) -> str:
        if self.patch is None or side is None or side % self.patch == 0:
            return ""
        return f"model.patch: {self.patch} does not divide the input's side {side}"

    def depth_incompatibility(self, depth: int) -> str:
        return ""
