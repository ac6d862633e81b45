"""Networks of one shape laid side by side, so that one call computes all of them.

S  runs    P  numbers per run, padding included
"""

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

# Every tensor starts on a 64-byte boundary, wherever its run lies in the stack: CPU kernels choose their
# order of summation by alignment, and a run's bytes must not depend on its neighbours.
ALIGNMENT = 64


class Stack:
    """S networks of one shape as one module whose parameters carry a leading run axis.

    All parameters live in one buffer `values` (S, P): an optimizer step is a handful of operations on one
    tensor, and anything per run is a column (S, 1). The parameters of `module` are views of it.
    """

    def __init__(self, networks: Sequence[nn.Module], device: torch.device, dtype: torch.dtype) -> None:
        self.names = [name for name, _ in networks[0].named_parameters()]
        shapes = [parameter.shape for parameter in networks[0].parameters()]
        step = ALIGNMENT // torch.finfo(dtype).bits * 8
        sizes = [-(-shape.numel() // step) * step for shape in shapes]
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        self._places = {
            name: (start, shape) for name, start, shape in zip(self.names, starts, shapes, strict=True)
        }
        self.values = torch.zeros(len(networks), sum(sizes), dtype=dtype, device=device)
        for index, network in enumerate(networks):
            for name, parameter in network.named_parameters():
                self.view(self.values, name)[index].copy_(parameter.detach())
        self.module = self._module(networks[0])

    def __len__(self) -> int:
        return len(self.values)

    def view(self, buffer: Tensor, name: str) -> Tensor:
        """The part (S, *shape) of a (S, P) buffer that belongs to one parameter."""
        start, shape = self._places[name]
        return buffer[:, start : start + shape.numel()].unflatten(1, shape)

    def per_parameter(self, rule: Mapping[str, Sequence[float]]) -> Tensor:
        """A (S, P) buffer that is `rule[name]`, a number per run, on each parameter and 0 in the padding."""
        buffer = torch.zeros_like(self.values)
        for name, numbers in rule.items():
            shape = self._places[name][1]
            column = torch.tensor(numbers, dtype=buffer.dtype, device=buffer.device)
            self.view(buffer, name).copy_(column.view(-1, *[1] * len(shape)).expand(-1, *shape))
        return buffer

    def gradient(self, loss: Tensor) -> Tensor:
        """Gradient (S, P) of a scalar that `module` computed, 0 in the padding."""
        gradient = torch.zeros_like(self.values)
        parts = torch.autograd.grad(loss, list(self.module.parameters()))
        for name, part in zip(self.names, parts, strict=True):
            self.view(gradient, name).copy_(part)
        return gradient

    def state_of(self, index: int) -> dict[str, Tensor]:
        """One run's parameters by name, on the CPU."""
        return {name: self.view(self.values, name)[index].cpu().clone() for name in self.names}

    def _module(self, template: nn.Module) -> nn.Module:
        module = copy.deepcopy(template)
        for name in self.names:
            *path, leaf = name.split(".")
            parameter = nn.Parameter(self.view(self.values, name))
            setattr(module.get_submodule(".".join(path)), leaf, parameter)
        return module
