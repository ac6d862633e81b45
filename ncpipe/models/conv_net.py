"""Define a small convolutional network with batch norm and S24's ReLU head [sec. 6.2].

These are ordinary PyTorch modules without a run axis. A run takes minutes on one core.

c  channels    h, w  height and width    d  width of the features and of the head
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncpipe.config.architectures.conv_net import ConvNetModel
from ncpipe.models.inputs import InputShape, check_square
from ncpipe.models.network import Layer, ModuleOrParameter, Network, Role, init_convolutional
from ncpipe.system.errors import InputError


class ConvNet(Network):
    """ReLU(BN(conv(x))) for each of `channels`, a linear map of all pixels to H_1, and W_L relu(... W_1 H_1).

    No pooling before the map: features that are means over pixels do not collapse at this size.
    """

    head_input_layer = "H1"

    def __init__(self, spec: ConvNetModel, shape: InputShape, classes: int, depth: int) -> None:
        super().__init__()
        assert shape.positions is not None
        self.feature_gain, self.gain = spec.feature_gain, spec.gain
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        side, width = math.isqrt(shape.positions), spec.width
        for index, (before, after) in enumerate(itertools.pairwise([shape.size, *spec.channels])):
            stride = 2 if index > 0 else 1
            self.convs.append(nn.Conv2d(before, after, 3, stride, padding=1, bias=False))
            self.norms.append(nn.BatchNorm2d(after, spec.batch_norm_eps))
            side = -(-side // stride)
        self.map = nn.Linear(spec.channels[-1] * side * side, width, bias=False)
        self.head = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth - 1))
        self.last = nn.Linear(width, classes, bias=False)

    @property
    def length(self) -> Fraction:
        """Convolutions, the map, and the head's layers before the last one."""
        return Fraction(len(self.convs) + 1 + len(self.head))

    def parameter_groups(self) -> Mapping[Role, Iterable[ModuleOrParameter]]:
        return {"inner": [self.convs, self.norms, self.map], "head": [self.head], "last": [self.last]}

    def initialise(self, generator: torch.Generator) -> None:
        """Draw convolutions with variance 2/fan_in; the map, the head and W_L with gain^2/fan_in."""
        init_convolutional(
            self, lambda layer: self.feature_gain if layer is self.map else self.gain, generator
        )

    def layers(self, x: Tensor, lengths: Tensor | None = None) -> Iterator[Layer]:
        """Yield C1, C2, ... after each convolution, as means over pixels; H1; Z2, H2, ... in the head."""
        for index, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True), start=1):
            x = torch.relu(norm(conv(x)))
            yield Layer(f"C{index}", index / self.length, x.mean((-2, -1)))
        x = self.map(x.flatten(-3))
        step = len(self.convs) + 1
        yield Layer("H1", step / self.length, x)
        for index, layer in enumerate(self.head, start=2):
            z = layer(x)
            yield Layer(f"Z{index}", None, z)
            x = torch.relu(z)
            name = "last" if index == len(self.head) + 1 else f"H{index}"
            yield Layer(name, (step + index - 1) / self.length, x)


def reshape_inputs(inputs: Tensor, spec: ConvNetModel) -> Tensor:
    """Return square images (N, c, h, w) with squares of `pooled` x `pooled` pixels averaged."""
    check_square(inputs, spec.architecture)
    height = inputs.shape[2]
    if height % spec.pooled:
        raise InputError(f"model.pooled: {spec.pooled} does not divide the input's side {height}")
    return inputs if spec.pooled == 1 else F.avg_pool2d(inputs, spec.pooled)
