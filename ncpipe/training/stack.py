"""Stack networks of one shape along a run axis, so that one call computes all of them.

`ncpipe.models.network` says what a network is; `ncpipe.training.session` trains a stack.

S  runs    N  samples    B  samples of a batch    K  classes    P  numbers per run, padding included
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ncpipe.datasets.prepared import Split
from ncpipe.models.network import ForwardOutput, Network

Found = TypeVar("Found")
Tensors = Mapping[str, Tensor]

# Every tensor starts on a 64-byte boundary, wherever its run lies in the stack: CPU kernels choose their
# order of summation by alignment, and a run's bytes must not depend on its neighbours.
ALIGNMENT = 64


class Stack:
    """S networks of one shape as one, whose parameters and buffers carry a leading run axis.

    All parameters live in one buffer `values` (S, P): an optimizer step is a handful of operations on one
    tensor, and anything per run is a column (S, 1). What the network computes with are views of it.

    A `batched` network computes with the stacked parameters itself; any other is an ordinary module, run by
    vmap. On the CPU vmap takes one run at a time: kernels of several convolutions at once sum in another
    order, and a run's bytes must not depend on its neighbours.
    """

    def __init__(self, networks: Sequence[Network], device: torch.device, dtype: torch.dtype) -> None:
        first = networks[0]
        self.roles = first.roles()
        self.names = list(self.roles)
        shapes = [parameter.shape for parameter in first.parameters()]
        step = ALIGNMENT // torch.finfo(dtype).bits * 8
        sizes = [-(-shape.numel() // step) * step for shape in shapes]
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        self._layout = {
            name: (start, shape) for name, start, shape in zip(self.names, starts, shapes, strict=True)
        }
        self.values = torch.zeros(len(networks), sum(sizes), dtype=dtype, device=device)
        for index, network in enumerate(networks):
            for name, parameter in network.named_parameters():
                self.view(self.values, name)[index].copy_(parameter.detach())
        self.parameters = {name: nn.Parameter(self.view(self.values, name)) for name in self.names}
        buffers = [dict(network.named_buffers()) for network in networks]
        self.buffers = {name: torch.stack([own[name].to(device) for own in buffers]) for name in buffers[0]}
        for name, buffer in self.buffers.items():
            if buffer.is_floating_point():
                self.buffers[name] = buffer.to(dtype)
        self.network = copy.deepcopy(first)
        self._with_features = _WithFeatures(self.network)
        if first.batched:
            self._share_parameters()
        self._chunk = 1 if device.type == "cpu" else None

    def __len__(self) -> int:
        return len(self.values)

    def logits(self, samples: Split) -> Tensor:
        """Return logits (S, N, K) of samples that all runs share, or of each run's own (S, B, ...)."""
        if self.network.batched:
            logits: Tensor = self.network(samples.inputs, samples.lengths)
            return logits
        return self._by_run(self._apply, samples)

    def forward_with_features(self, samples: Split) -> ForwardOutput:
        """Return the same logits, to the bit, with the features (S, N, d) and the head's input."""
        if self.network.batched:
            return self.network.forward_with_features(samples.inputs, samples.lengths)
        return ForwardOutput(*self._by_run(self._apply_with_features, samples))

    @property
    def last_weight(self) -> Tensor:
        """Weights (S, K, d) of the last layer."""
        return self.parameters["last.weight"]

    @torch.no_grad()
    def set_last(self, weight: Tensor, bias: Tensor) -> None:
        """Set weight (S, K, d) and bias (S, K) of the last layers."""
        self.parameters["last.weight"].copy_(weight)
        self.parameters["last.bias"].copy_(bias)

    def _by_run(self, function: Callable[..., Found], samples: Split) -> Found:
        """Return function(parameters, buffers, inputs, lengths) of each run, stacked."""
        own = 0 if samples.side_by_side else None
        given = (samples.inputs,) if samples.lengths is None else (samples.inputs, samples.lengths)
        apply = torch.vmap(function, (0, 0, *[own] * len(given)), chunk_size=self._chunk)
        found: Found = apply(self.parameters, self.buffers, *given)
        return found

    def train(self, mode: bool) -> None:
        """Set training mode, or evaluation mode."""
        self.network.train(mode)

    def view(self, buffer: Tensor, name: str) -> Tensor:
        """Return the view (S, *shape) of one parameter in a buffer (S, P)."""
        start, shape = self._layout[name]
        return buffer[:, start : start + shape.numel()].unflatten(1, shape)

    @property
    def dimensions(self) -> dict[str, int]:
        """Number of dimensions of one run's parameters, by name."""
        return {name: len(shape) for name, (_, shape) in self._layout.items()}

    def per_parameter(self, numbers: Sequence[Mapping[str, float]]) -> Tensor:
        """Return a buffer (S, P) filled with each run's number for each parameter; 0 on padding."""
        buffer = torch.zeros_like(self.values)
        for name, (_, shape) in self._layout.items():
            column = torch.tensor([own[name] for own in numbers], dtype=buffer.dtype, device=buffer.device)
            self.view(buffer, name).copy_(column.view(-1, *[1] * len(shape)).expand(-1, *shape))
        return buffer

    def add_gradient(self, loss: Tensor, gradient: Tensor) -> None:
        """Add the gradient of a scalar loss to `gradient` (S, P); frozen parameters get none."""
        learned = [name for name in self.names if self.roles[name] != "frozen"]
        parts = torch.autograd.grad(loss, [self.parameters[name] for name in learned])
        for name, part in zip(learned, parts, strict=True):
            self.view(gradient, name).add_(part)

    def state_of(self, index: int) -> dict[str, Tensor]:
        """Return one run's parameters and buffers by name, copied to the CPU."""
        state = {name: self.view(self.values, name)[index] for name in self.names}
        state |= {name: buffer[index] for name, buffer in self.buffers.items()}
        return {name: tensor.cpu().clone() for name, tensor in state.items()}

    def _apply(
        self, parameters: Tensors, buffers: Tensors, x: Tensor, lengths: Tensor | None = None
    ) -> Tensor:
        logits: Tensor = functional_call(self.network, {**parameters, **buffers}, (x, lengths))
        return logits

    def _apply_with_features(
        self, parameters: Tensors, buffers: Tensors, x: Tensor, lengths: Tensor | None = None
    ) -> ForwardOutput:
        state = {f"network.{name}": tensor for name, tensor in {**parameters, **buffers}.items()}
        output: ForwardOutput = functional_call(self._with_features, state, (x, lengths))
        return output

    def _share_parameters(self) -> None:
        """Replace the network's parameters and buffers by the stacked ones."""
        for name, tensor in [*self.parameters.items(), *self.buffers.items()]:
            *path, leaf = name.split(".")
            setattr(self.network.get_submodule(".".join(path)), leaf, tensor)


class _WithFeatures(nn.Module):
    """A network whose call returns its features too, for `functional_call`."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> ForwardOutput:
        return self.network.forward_with_features(x, lengths)
