"""L-T11, L-T12, L-T21 and L-T22, post-LN [S25 Def. 3.2] and pre-LN [S25 Def. B.2]."""

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

import torch
from torch import Tensor, nn

from ncpipe.config.architectures.transformer import TransformerModel
from ncpipe.models.inputs import InputShape, patches
from ncpipe.models.layers import (
    MLP,
    Affine,
    Attention,
    LayerNorm,
    OneMatrixAttention,
    PatchEmbedding,
    TokenEmbedding,
    TwoMatrixAttention,
    last_token,
    mlp,
)
from ncpipe.models.network import Layer, Network, Owner, Role, draw_matrices


class Block(nn.Module):
    """Attention and MLP, each with its residual connection and its LN."""

    def __init__(self, attention: Attention, mlp: MLP, norm: LayerNorm, pre_norm: bool) -> None:
        super().__init__()
        self.attention, self.mlp, self.norm, self.pre_norm = attention, mlp, norm, pre_norm

    def attend(self, z: Tensor, tokens: int) -> Tensor:
        """First half: Z + ATTN(LN(Z)), or Z' + ATTN(Z') of Z' = LN(Z) post-LN."""
        normed = self.norm(z)
        attended: Tensor = self.attention(normed, tokens)
        return (z if self.pre_norm else normed) + attended

    def attend_from_last(self, z: Tensor, tokens: int, lengths: Tensor | None) -> Tensor:
        """Return the rows (N, d) of `attend` that samples predict from."""
        normed = self.norm(z)
        stream = last_token(z if self.pre_norm else normed, tokens, lengths)
        return stream + self.attention.of_last(normed, tokens, lengths)

    def enter(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """What the MLP is added to, and what enters its ReLU."""
        normed = self.norm(z)
        return (z if self.pre_norm else normed), self.mlp.enter(normed)

    def leave(self, stream: Tensor, entering: Tensor) -> Tensor:
        """Second half, from the two: the same with the MLP."""
        return stream + self.mlp.leave(entering)


class Transformer(Network):
    """Embedding (and LN if pre-LN), L blocks, LN, last layer; predicts from each sample's last token.

    two_matrix_attention: W_O W_V and W_K^T W_Q instead of W_VO and W_QK. gain, uniform: of `draw_matrices`.
    every_position: predicts from every token instead, so that N samples have N*C features.
    """

    batched = True
    bounded = True

    def __init__(
        self,
        embedding: PatchEmbedding | TokenEmbedding,
        classes: int,
        depth: int,
        width: int,
        two_matrix_attention: bool,
        mlp_width: int | None,
        pre_norm: bool,
        last_bias: bool,
        eps: float,
        gain: float,
        uniform: bool,
        every_position: bool = False,
    ) -> None:
        super().__init__()
        self.every_position = every_position
        self.pre_norm, self.gain, self.uniform = pre_norm, gain, uniform
        self.norm = LayerNorm(width, eps)
        self.embedding = embedding
        self.blocks = nn.ModuleList(
            Block(
                TwoMatrixAttention(width) if two_matrix_attention else OneMatrixAttention(width),
                mlp(width, mlp_width),
                self.norm,
                pre_norm,
            )
            for _ in range(depth)
        )
        self.last = Affine(width, classes, last_bias)
        self.positions = [Fraction(half, 2 * depth + 1) for half in range(2 * depth + 2)]

    @property
    def length(self) -> Fraction:
        """L + 1/2: every half block is a step, and so is the last LN."""
        return Fraction(len(self.positions) - 1, 2)

    def owners(self) -> Mapping[Role, Iterable[Owner]]:
        return {"embedding": [self.embedding], "inner": [self.blocks], "last": [self.last]}

    def initialise(self, generator: torch.Generator) -> None:
        draw_matrices(self, self.gain, self.uniform, generator)

    def layers(self, x: Tensor, lengths: Tensor | None = None) -> Iterator[Layer]:
        """The predicting token: `embedding`, then A1, B1, ... after attention and MLP of each block, and Z1,
        ..., what enters the MLP's ReLU; `last` is h.
        """
        tokens = x.shape[-1] if isinstance(self.embedding, TokenEmbedding) else x.shape[-2]
        z = self.embedding(x)
        if self.pre_norm:
            z = self.norm(z)
        yield Layer("embedding", self.positions[0], self._predicting(z, tokens, lengths))
        for index, block in enumerate(self.blocks, start=1):
            assert isinstance(block, Block)
            if self.every_position or index < len(self.blocks):
                z = block.attend(z, tokens)
            else:  # nothing reads the other tokens any more
                z, tokens, lengths = block.attend_from_last(z, tokens, lengths), 1, None
            yield Layer(f"A{index}", self.positions[2 * index - 1], self._predicting(z, tokens, lengths))
            stream, entering = block.enter(z)
            yield Layer(f"Z{index}", None, self._predicting(entering, tokens, lengths))
            z = block.leave(stream, entering)
            yield Layer(f"B{index}", self.positions[2 * index], self._predicting(z, tokens, lengths))
        yield Layer("last", self.positions[-1], self.norm(self._predicting(z, tokens, lengths)))

    def _predicting(self, z: Tensor, tokens: int, lengths: Tensor | None) -> Tensor:
        """The rows (N, d), or all (N*C, d), that predict."""
        return z if self.every_position else last_token(z, tokens, lengths)


def arrange(inputs: Tensor, spec: TransformerModel) -> Tensor:
    assert spec.patch is not None  # checked with the data
    return patches(inputs, spec.patch)


def build(spec: TransformerModel, shape: InputShape, classes: int, depth: int) -> Transformer:
    assert shape.tokens is not None
    embedding = (
        PatchEmbedding(shape.size, shape.tokens, spec.width)
        if shape.vocabulary is None
        else TokenEmbedding(shape.vocabulary, shape.tokens, spec.width)
    )
    return Transformer(
        embedding,
        classes,
        depth,
        spec.width,
        spec.two_matrix_attention,
        spec.mlp_width,
        spec.norm == "pre",
        spec.last_bias,
        spec.layer_norm_eps,
        spec.gain,
        spec.uniform,
        shape.every_position,
    )
