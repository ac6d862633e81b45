"""L-RN1 and L-RN2, post-LN [S25 Def. 3.1] and pre-LN [S25 Def. B.1]."""

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

import torch
from torch import Tensor, nn

from ncpipe.config.architectures.resnet import ResNetModel
from ncpipe.models.inputs import InputShape, flattened
from ncpipe.models.layers import Affine, LayerNorm, OneLayerMLP, TwoLayerMLP, mlp
from ncpipe.models.network import Layer, Network, Owner, Role, draw_matrices


class ResNet(Network):
    """lin_0, LN, L-1 residual blocks, last layer.

    inputs: size D of a sample. mlp_width: hidden width of two-layer blocks, None for one-layer blocks. gain,
    uniform: of `draw_matrices`.
    """

    batched = True
    bounded = True

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
        gain: float,
        uniform: bool,
    ) -> None:
        super().__init__()
        self.pre_norm, self.gain, self.uniform = pre_norm, gain, uniform
        self.norm = LayerNorm(width, eps)
        self.lin0 = Affine(inputs, width)
        self.blocks = nn.ModuleList(mlp(width, mlp_width) for _ in range(depth - 1))
        self.last = Affine(width, classes, last_bias)
        self.positions = [Fraction(index, depth) for index in range(1, depth + 1)]

    @property
    def length(self) -> Fraction:
        """L: the features are X_L."""
        return Fraction(len(self.positions))

    def owners(self) -> Mapping[Role, Iterable[Owner]]:
        return {"embedding": [self.lin0], "inner": [self.blocks], "last": [self.last]}

    def initialise(self, generator: torch.Generator) -> None:
        draw_matrices(self, self.gain, self.uniform, generator)

    def layers(self, x: Tensor, lengths: Tensor | None = None) -> Iterator[Layer]:
        """X1, ... at l/L, and before the next one Z1, ..., what enters the block's ReLU; `last` is h."""
        x = self.norm(self.lin0(x))
        for index, block in enumerate(self.blocks, start=1):
            assert isinstance(block, OneLayerMLP | TwoLayerMLP)
            yield Layer(f"X{index}", self.positions[index - 1], x)
            z = block.enter(self.norm(x) if self.pre_norm else x)
            yield Layer(f"Z{index}", None, z)
            x = x + block.leave(z)
            x = x if self.pre_norm else self.norm(x)
        yield Layer("last", self.positions[-1], self.norm(x) if self.pre_norm else x)


def arrange(inputs: Tensor, spec: ResNetModel) -> Tensor:
    return flattened(inputs)


def build(spec: ResNetModel, shape: InputShape, classes: int, depth: int) -> ResNet:
    return ResNet(
        shape.size,
        classes,
        depth,
        spec.width,
        spec.mlp_width,
        spec.norm == "pre",
        spec.last_bias,
        spec.layer_norm_eps,
        spec.gain,
        spec.uniform,
    )
