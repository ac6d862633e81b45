"""Define L-RN1 and L-RN2, post-LN [S25 Def. 3.1] and pre-LN [S25 Def. B.1]."""

from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

import torch
from torch import Tensor, nn

from ncpipe.config.architectures.paper import ResNetModel
from ncpipe.models.inputs import InputShape
from ncpipe.models.layers import Affine, OneLayerMLP, TwoLayerMLP, layer_norm, mlp
from ncpipe.models.network import Layer, ModuleOrParameter, Network, Role, init_weights
from ncpipe.models.residual_block import add_mlp, mlp_is_compiled


class ResNet(Network):
    """lin_0, LN, L-1 residual blocks, last layer."""

    batched = True
    bounded = True

    def __init__(self, spec: ResNetModel, shape: InputShape, classes: int, depth: int) -> None:
        super().__init__()
        self.pre_norm, self.gain, self.uniform = spec.norm == "pre", spec.gain, spec.uniform
        width, self.eps = spec.width, spec.layer_norm_eps
        self.lin0 = Affine(shape.size, width)
        self.blocks = nn.ModuleList(mlp(width, spec.mlp_width) for _ in range(depth - 1))
        self.last = Affine(width, classes, spec.last_bias)
        self.positions = [Fraction(index, depth) for index in range(1, depth + 1)]

    @property
    def length(self) -> Fraction:
        """L: the features are X_L."""
        return Fraction(len(self.positions))

    def parameter_groups(self) -> Mapping[Role, Iterable[ModuleOrParameter]]:
        return {"embedding": [self.lin0], "inner": [self.blocks], "last": [self.last]}

    def initialise(self, generator: torch.Generator) -> None:
        init_weights(self, self.gain, self.uniform, generator)

    def layers(self, x: Tensor, lengths: Tensor | None = None) -> Iterator[Layer]:
        """Yield X1, ... at l/L, each followed by Z1, ..., the input of the block's ReLU; `last` is h.

        A compiled pass of the training yields no Z, which only measurements read.
        """
        x = layer_norm(self.lin0(x), self.eps)
        x, stream = (layer_norm(x, self.eps), x) if self.pre_norm else (x, None)
        for index, block in enumerate(self.blocks, start=1):
            assert isinstance(block, OneLayerMLP | TwoLayerMLP)
            yield Layer(f"X{index}", self.positions[index - 1], x if stream is None else stream)
            if mlp_is_compiled(block, x):
                x, stream = add_mlp(x, stream, block, self.eps)
                continue
            z = block.pre_activation(x)
            yield Layer(f"Z{index}", None, z)
            total = (x if stream is None else stream) + block.post_activation(z)
            x, stream = layer_norm(total, self.eps), total if self.pre_norm else None
        yield Layer("last", self.positions[-1], x)
