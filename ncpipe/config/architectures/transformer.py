"""Define the spec of L-T11, L-T12, L-T21 and L-T22; `ncpipe.models.transformer` has the network."""

from dataclasses import dataclass
from typing import Literal

from ncpipe.config.architectures.architecture import Kind
from ncpipe.config.architectures.paper import PaperArchitecture
from ncpipe.config.bounds import Size


@dataclass(frozen=True)
class TransformerModel(PaperArchitecture):
    """A transformer of S25 Def. 3.2 (norm: post) or B.2 (norm: pre).

    architecture: L-Tax, with a matrices each for values and scores, and x-layer MLPs.
    patch: side of the square patches of an image, or coordinates per token of a vector; no key on token
    sequences.
    """

    architecture: Literal["L-T11", "L-T12", "L-T21", "L-T22"]
    patch: Size | None = None

    @property
    def two_matrix_attention(self) -> bool:
        """W_O W_V and W_K^T W_Q in place of W_VO and W_QK."""
        return self.architecture in ("L-T21", "L-T22")

    def incompatibility(self, kind: Kind, source: str) -> str:
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
