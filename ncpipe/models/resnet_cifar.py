"""Define ResNet8, ResNet20, ... with batch norm [He et al. 2016, sec. 4.2] and S24's ReLU head [sec. 6.3].

These are ordinary PyTorch modules without a run axis.

c  channels    h, w  height and width
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ncpipe.config.architectures.resnet_cifar import CifarResNetModel
from ncpipe.models.inputs import InputShape, check_square
from ncpipe.models.network import Layer, ModuleOrParameter, Network, Role, init_convolutional

STAGES = (1, 2, 4)  # widths of the stages, as multiples


class Block(nn.Module):
    """x -> ReLU(BN(conv(ReLU(BN(conv(x))))) + shortcut(x)), 3 x 3 convolutions of (N, c, h, w).

    The shortcut has no parameters: every second pixel, missing channels 0 (option A).
    """

    def __init__(self, inputs: int, channels: int, stride: int, eps: float) -> None:
        super().__init__()
        self.missing, self.stride = channels - inputs, stride
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels, eps)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels, eps)

    def forward(self, x: Tensor) -> Tensor:
        branch = torch.relu(self.norm1(self.conv1(x)))
        strided = x[:, :, :: self.stride, :: self.stride]
        shortcut = F.pad(strided, (0, 0, 0, 0, 0, self.missing)) if self.missing else strided
        return torch.relu(self.norm2(self.conv2(branch)) + shortcut)


class CifarResNet(Network):
    """A 3 x 3 convolution, three stages of n blocks, the mean over pixels, ReLU layers, last layer."""

    def __init__(self, spec: CifarResNetModel, shape: InputShape, classes: int, depth: int) -> None:
        super().__init__()
        self.gain = spec.gain
        width, eps = spec.width, spec.batch_norm_eps
        self.conv = nn.Conv2d(shape.size, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width, eps)
        self.blocks = nn.ModuleList()
        before = width
        for stage, factor in enumerate(STAGES):
            for index in range((depth - 2) // 6):
                stride = 2 if stage > 0 and index == 0 else 1
                self.blocks.append(Block(before, factor * width, stride, eps))
                before = factor * width
        sizes = [before] + [spec.head_width or 0] * spec.head_layers
        self.head = nn.ModuleList(nn.Linear(*pair, bias=False) for pair in itertools.pairwise(sizes))
        self.last = nn.Linear(sizes[-1], classes, bias=False)
        self.head_input_layer = f"R{len(self.blocks)}" if spec.head_layers else ""

    @property
    def length(self) -> Fraction:
        """Number of blocks and of layers of the head."""
        return Fraction(len(self.blocks) + len(self.head))

    def parameter_groups(self) -> Mapping[Role, Iterable[ModuleOrParameter]]:
        return {"inner": [self.conv, self.norm, self.blocks], "head": [self.head], "last": [self.last]}

    def initialise(self, generator: torch.Generator) -> None:
        """Draw convolutions with variance 2/fan_in, the head's matrices and W_L with gain^2/fan_in."""
        init_convolutional(self, lambda layer: self.gain, generator)

    def layers(self, x: Tensor, lengths: Tensor | None = None) -> Iterator[Layer]:
        """Yield `stem`, R1, R2, ... after each block, as means over pixels, and Z1, H1, ... of the head.

        Z is the input of a ReLU, H its output. The last layer is called `last`.
        """
        steps = len(self.blocks) + len(self.head)
        x = torch.relu(self.norm(self.conv(x)))
        yield Layer("stem", Fraction(0), x.mean((-2, -1)))
        for index, block in enumerate(self.blocks, start=1):
            x = block(x)
            yield Layer("last" if index == steps else f"R{index}", Fraction(index, steps), x.mean((-2, -1)))
        x = x.mean((-2, -1))
        for index, layer in enumerate(self.head, start=1):
            z = layer(x)
            yield Layer(f"Z{index}", None, z)
            x = torch.relu(z)
            step = len(self.blocks) + index
            yield Layer("last" if step == steps else f"H{index}", Fraction(step, steps), x)


def reshape_inputs(inputs: Tensor, spec: CifarResNetModel) -> Tensor:
    """Return square images (N, c, h, w) as they are."""
    check_square(inputs, spec.architecture)
    return inputs
