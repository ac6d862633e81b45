"""L-T11, L-T12, L-T21 and L-T22, post-LN [S25 Def. 3.2] and pre-LN [S25 Def. B.2]."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ncpipe.models.layers import (
    Affine,
    LayerNorm,
    OneLayerMLP,
    OneMatrixAttention,
    PatchEmbedding,
    TokenEmbedding,
    TwoLayerMLP,
    TwoMatrixAttention,
)


class Block(nn.Module):
    """Attention and MLP, each with its residual connection and its LN."""

    def __init__(self, attention: nn.Module, mlp: nn.Module, norm: LayerNorm, pre_norm: bool) -> None:
        super().__init__()
        self.attention, self.mlp, self.norm, self.pre_norm = attention, mlp, norm, pre_norm

    def attend(self, z: Tensor, tokens: int) -> Tensor:
        """First half: Z + ATTN(LN(Z)), or Z' + ATTN(Z') of Z' = LN(Z) post-LN."""
        normed = self.norm(z)
        return (z if self.pre_norm else normed) + self.attention(normed, tokens)

    def transform(self, z: Tensor) -> Tensor:
        """Second half: the same with the MLP."""
        normed = self.norm(z)
        return (z if self.pre_norm else normed) + self.mlp(normed)


class Transformer(nn.Module):
    """Embedding (and LN if pre-LN), L blocks, LN, last layer; predicts from each sample's last token.

    two_matrix_attention: W_O W_V and W_K^T W_Q instead of W_VO and W_QK.
    """

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
    ) -> None:
        super().__init__()
        self.pre_norm = pre_norm
        self.norm = LayerNorm(width, eps)
        self.embedding = embedding
        self.blocks = nn.ModuleList(
            Block(
                TwoMatrixAttention(width) if two_matrix_attention else OneMatrixAttention(width),
                OneLayerMLP(width) if mlp_width is None else TwoLayerMLP(width, mlp_width),
                self.norm,
                pre_norm,
            )
            for _ in range(depth)
        )
        self.last = Affine(width, classes, last_bias)

    def layers(self, x: Tensor, lengths: Tensor | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, representation (N, d) of the predicting token).

        `embedding`, then A1, B1, A2, ... after attention and MLP of each block; `last` is the feature h.
        """
        tokens = x.shape[-1] if isinstance(self.embedding, TokenEmbedding) else x.shape[-2]
        z = self.embedding(x)
        if self.pre_norm:
            z = self.norm(z)
        yield "embedding", last_token(z, tokens, lengths)
        for index, block in enumerate(self.blocks, start=1):
            assert isinstance(block, Block)
            z = block.attend(z, tokens)
            yield f"A{index}", last_token(z, tokens, lengths)
            z = block.transform(z)
            yield f"B{index}", last_token(z, tokens, lengths)
        yield "last", self.norm(last_token(z, tokens, lengths))

    def features(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Patches (N, C, p) or token ids (N, C) -> features h (N, d) of the predicting token."""
        *_, (_, h) = self.layers(x, lengths)
        return h

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Patches (N, C, p) or token ids (N, C), with the number of real tokens (N,) -> logits (N, K)."""
        return self.last(self.features(x, lengths))


def last_token(z: Tensor, tokens: int, lengths: Tensor | None) -> Tensor:
    """z (N*C, d) -> (N, d): the last of each sample's C rows, or row `lengths` - 1 where given (N,).

    Padding follows the real tokens, so under the causal mask no earlier row has read any of it.
    """
    z = z.unflatten(-2, (-1, tokens))
    if lengths is None:
        return z[..., -1, :]
    index = (lengths - 1).unsqueeze(-1).unsqueeze(-1)
    return torch.take_along_dim(z, index.expand(*z.shape[:-2], 1, 1), dim=-2).squeeze(-2)
