"""L-RN1 and L-RN2, post-LN [S25 Def. 3.1] and pre-LN [S25 Def. B.1]."""

from collections.abc import Iterator

from torch import Tensor, nn

from ncpipe.models.layers import Affine, LayerNorm, OneLayerMLP, TwoLayerMLP


class ResNet(nn.Module):
    """lin_0, LN, L-1 residual blocks, last layer.

    inputs: size D of a sample. mlp_width: hidden width of two-layer blocks, None for one-layer blocks.
    """

    def __init__(
        self,
        inputs: int,
        classes: int,
        depth: int,
        width: int,
        mlp_width: int | None,
        pre_norm: bool,
        last_bias: bool,
        eps: float,
    ) -> None:
        super().__init__()
        self.pre_norm = pre_norm
        self.norm = LayerNorm(width, eps)
        self.lin0 = Affine(inputs, width)
        self.blocks = nn.ModuleList(
            OneLayerMLP(width) if mlp_width is None else TwoLayerMLP(width, mlp_width)
            for _ in range(depth - 1)
        )
        self.last = Affine(width, classes, last_bias)

    def layers(self, x: Tensor, lengths: Tensor | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, representation (N, d)) from X_1 on; the last one, `last`, is the feature h."""
        x = self.norm(self.lin0(x))
        for index, block in enumerate(self.blocks, start=1):
            yield f"X{index}", x
            x = x + block(self.norm(x)) if self.pre_norm else self.norm(x + block(x))
        yield "last", self.norm(x) if self.pre_norm else x

    def features(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Samples (N, D) -> features h (N, d), what enters the last layer."""
        *_, (_, h) = self.layers(x, lengths)
        return h

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Samples (N, D) -> logits (N, K)."""
        return self.last(self.features(x, lengths))
