"""Define L-T11, L-T12, L-T21 and L-T22, post-LN [S25 Def. 3.2] and pre-LN [S25 Def. B.2]."""

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
    OneMatrixAttention,
    PatchEmbedding,
    TokenEmbedding,
    TwoMatrixAttention,
    at_last_token,
    layer_norm,
    mlp,
)
from ncpipe.models.network import Layer, ModuleOrParameter, Network, Role, init_weights
from ncpipe.models.residual_block import (
    add_attention,
    add_mlp,
    attention_is_compiled,
    mlp_is_compiled,
)


class Block(nn.Module):
    """The attention and the MLP of a block; `Transformer.layers` adds them to the residual stream."""

    def __init__(self, attention: Attention, mlp: MLP) -> None:
        super().__init__()
        self.attention, self.mlp = attention, mlp


class Transformer(Network):
    """Embedding (and LN if pre-LN), L blocks, LN, last layer; predicts from each sample's last token.

    With `shape.every_position` it predicts from every token, so that N samples have N*C features.
    """

    batched = True
    bounded = True

    def __init__(self, spec: TransformerModel, shape: InputShape, classes: int, depth: int) -> None:
        super().__init__()
        assert shape.tokens is not None
        self.every_position = shape.every_position
        self.pre_norm, self.gain, self.uniform = spec.norm == "pre", spec.gain, spec.uniform
        width, self.eps = spec.width, spec.layer_norm_eps
        self.embedding = (
            PatchEmbedding(shape.size, shape.tokens, width)
            if shape.vocabulary is None
            else TokenEmbedding(shape.vocabulary, shape.tokens, width)
        )
        self.blocks = nn.ModuleList(
            Block(
                TwoMatrixAttention(width) if spec.two_matrix_attention else OneMatrixAttention(width),
                mlp(width, spec.mlp_width),
            )
            for _ in range(depth)
        )
        self.last = Affine(width, classes, spec.last_bias)
        self.positions = [Fraction(half, 2 * depth + 1) for half in range(2 * depth + 2)]

    @property
    def length(self) -> Fraction:
        """L + 1/2: every half block counts 1/2, and so does the last LN."""
        return Fraction(len(self.positions) - 1, 2)

    def parameter_groups(self) -> Mapping[Role, Iterable[ModuleOrParameter]]:
        return {"embedding": [self.embedding], "inner": [self.blocks], "last": [self.last]}

    def initialise(self, generator: torch.Generator) -> None:
        init_weights(self, self.gain, self.uniform, generator)

    def layers(self, x: Tensor, lengths: Tensor | None = None) -> Iterator[Layer]:
        """Yield the predicting token: `embedding`, then A1, Z1, B1, ... of each block; `last` is h.

        A is the stream after attention, Z the input of the MLP's ReLU, B the stream after the MLP. Compiled
        parts of the training's passes yield none of them: only measurements read them.
        """
        tokens = x.shape[-1] if isinstance(self.embedding, TokenEmbedding) else x.shape[-2]
        z = self.embedding(x)
        if self.pre_norm:
            z = layer_norm(z, self.eps)
        yield Layer("embedding", self.positions[0], self._predicting(z, tokens, lengths))
        x, stream = self._normalise(z)
        for index, block in enumerate(self.blocks, start=1):
            assert isinstance(block, Block)
            last = index == len(self.blocks) and not self.every_position
            if not last and attention_is_compiled(block.attention, x, tokens):
                x, stream = add_attention(x, stream, block.attention, tokens, self.eps)
            else:
                z = x if stream is None else stream
                if last:  # nothing reads the other tokens any more
                    z = at_last_token(z, tokens, lengths) + block.attention.of_last(x, tokens, lengths)
                    tokens, lengths = 1, None
                else:
                    z = z + block.attention(x, tokens)
                yield Layer(f"A{index}", self.positions[2 * index - 1], self._predicting(z, tokens, lengths))
                x, stream = self._normalise(z)
            if mlp_is_compiled(block.mlp, x):
                x, stream = add_mlp(x, stream, block.mlp, self.eps)
            else:
                z = block.mlp.pre_activation(x)
                yield Layer(f"Z{index}", None, self._predicting(z, tokens, lengths))
                z = (x if stream is None else stream) + block.mlp.post_activation(z)
                yield Layer(f"B{index}", self.positions[2 * index], self._predicting(z, tokens, lengths))
                x, stream = self._normalise(z)
        yield Layer("last", self.positions[-1], self._predicting(x, tokens, lengths))

    def token_layers(self, x: Tensor, lengths: Tensor | None = None) -> Iterator[Layer]:
        """Yield `layers` with all tokens (N, C, d); none where each token is a sample of its own."""
        if self.every_position:
            return
        self.every_position = True
        try:
            for layer in self.representations(x, lengths):
                yield layer._replace(values=layer.values.unflatten(-2, (len(x), -1)))
        finally:
            self.every_position = False

    def _normalise(self, z: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return LN(z) and the residual stream, which is z pre-LN; post-LN it is LN(z), given as None."""
        return layer_norm(z, self.eps), z if self.pre_norm else None

    def _predicting(self, z: Tensor, tokens: int, lengths: Tensor | None) -> Tensor:
        """Return the rows (N, d) that predict, or all rows (N*C, d)."""
        return z if self.every_position else at_last_token(z, tokens, lengths)


def reshape_inputs(inputs: Tensor, spec: TransformerModel) -> Tensor:
    """Return images or vectors as sequences of patches (N, C, p)."""
    assert spec.patch is not None  # checked with the data
    return patches(inputs, spec.patch)
