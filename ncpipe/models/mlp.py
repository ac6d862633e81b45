"""Define plain multi-layer perceptrons, with or without batch norm."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncpipe.config.architectures.mlp import MLPModel
from ncpipe.models.inputs import InputShape
from ncpipe.models.layers import Affine, BatchNorm
from ncpipe.models.network import Layer, ModuleOrParameter, Network, Role, init_weights

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "relu": torch.relu,
        "tanh": torch.tanh,
        "gelu": F.gelu,
        "identity": lambda z: z,
    }
)


class MLP(Network):
    """L - 1 layers h <- activation(norm(W h + b)) and the last layer."""

    batched = True

    def __init__(self, spec: MLPModel, shape: InputShape, classes: int, depth: int) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[spec.activation]
        self.gain, self.uniform = spec.gain, spec.initialisation == "uniform"
        width, eps = spec.width, spec.batch_norm_eps
        sizes = [shape.size] + [width] * (depth - 1)
        self.maps = nn.ModuleList(Affine(size, width, spec.bias) for size in sizes[:-1])
        self.norms = nn.ModuleList(
            nn.Identity() if eps is None else BatchNorm(width, eps) for _ in range(depth - 1)
        )
        self.last = Affine(width, classes, spec.last_bias)
        self.positions = [Fraction(index, depth - 1) for index in range(1, depth)]

    @property
    def length(self) -> Fraction:
        """L - 1: the features are the output of the last hidden layer."""
        return Fraction(len(self.positions))

    def parameter_groups(self) -> Mapping[Role, Iterable[ModuleOrParameter]]:
        return {"inner": [self.maps, self.norms], "last": [self.last]}

    def initialise(self, generator: torch.Generator) -> None:
        init_weights(self, self.gain, self.uniform, generator)
        for norm in self.norms:
            if isinstance(norm, BatchNorm):
                norm.reset()

    def layers(self, x: Tensor, lengths: Tensor | None = None) -> Iterator[Layer]:
        """Yield Z1, which enters the first activation, H1 after it, Z2, ...; `last` is h."""
        for index, (map_, norm) in enumerate(zip(self.maps, self.norms, strict=True), start=1):
            z = norm(map_(x))
            yield Layer(f"Z{index}", None, z)
            x = self.activation(z)
            last = index == len(self.maps)
            reader = None if last else self.maps[index].get_parameter("weight")
            yield Layer("last" if last else f"H{index}", self.positions[index - 1], x, reader)
