"""Plain multi-layer perceptrons, with batch norm or without."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncpipe.config.architectures.mlp import MLPModel
from ncpipe.models.inputs import InputShape, flattened
from ncpipe.models.layers import Affine, BatchNorm
from ncpipe.models.network import Layer, Network, Owner, Role, draw_matrices

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "relu": torch.relu,
        "tanh": torch.tanh,
        "gelu": F.gelu,
        "identity": lambda z: z,
    }
)


class MLP(Network):
    """L - 1 times h <- activation(norm(W h + b)), and the last layer.

    eps: of batch norm, None without. gain, uniform: of `draw_matrices`.
    """

    batched = True

    def __init__(
        self,
        inputs: int,
        classes: int,
        depth: int,
        width: int,
        activation: Callable[[Tensor], Tensor],
        eps: float | None,
        bias: bool,
        last_bias: bool,
        gain: float,
        uniform: bool,
    ) -> None:
        super().__init__()
        self.activation, self.gain, self.uniform = activation, gain, uniform
        sizes = [inputs] + [width] * (depth - 1)
        self.maps = nn.ModuleList(Affine(size, width, bias) for size in sizes[:-1])
        self.norms = nn.ModuleList(
            nn.Identity() if eps is None else BatchNorm(width, eps) for _ in range(depth - 1)
        )
        self.last = Affine(width, classes, last_bias)
        self.positions = [Fraction(index, depth - 1) for index in range(1, depth)]

    @property
    def length(self) -> Fraction:
        """L - 1: the features are what the hidden layer before the last one gives."""
        return Fraction(len(self.positions))

    def owners(self) -> Mapping[Role, Iterable[Owner]]:
        return {"inner": [self.maps, self.norms], "last": [self.last]}

    def initialise(self, generator: torch.Generator) -> None:
        draw_matrices(self, self.gain, self.uniform, generator)
        for norm in self.norms:
            if isinstance(norm, BatchNorm):
                norm.reset()

    def layers(self, x: Tensor, lengths: Tensor | None = None) -> Iterator[Layer]:
        """Z1, what enters the first activation, H1 behind it, Z2, ...; `last` is h."""
        for index, (map_, norm) in enumerate(zip(self.maps, self.norms, strict=True), start=1):
            z = norm(map_(x))
            yield Layer(f"Z{index}", None, z)
            x = self.activation(z)
            name = "last" if index == len(self.maps) else f"H{index}"
            yield Layer(name, self.positions[index - 1], x)


def arrange(inputs: Tensor, spec: MLPModel) -> Tensor:
    return flattened(inputs)


def build(spec: MLPModel, shape: InputShape, classes: int, depth: int) -> MLP:
    return MLP(
        shape.size,
        classes,
        depth,
        spec.width,
        ACTIVATIONS[spec.activation],
        spec.batch_norm_eps,
        spec.bias,
        spec.last_bias,
        spec.gain,
        spec.initialisation == "uniform",
    )
