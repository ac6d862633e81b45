"""Stack networks of one shape along a run axis, so that one call computes all of them.

`ncpipe.models.network` says what a network is; `ncpipe.training.session` trains a stack.

S  runs    N  samples    B  samples of a batch    K  classes    P  numbers per run, padding included
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ncpipe.datasets.prepared import Split
from ncpipe.models.network import ForwardOutput, Network
from ncpipe.system.console import say
from ncpipe.system.errors import cut
from ncpipe.system.randomness import generator_states, global_generators
from ncpipe.training.device import is_out_of_memory

Tensors = Mapping[str, Tensor]

# Every tensor starts on a 64-byte boundary, wherever its run lies in the stack: CPU kernels choose their
# order of summation by alignment, and a run's bytes must not depend on its neighbours.
ALIGNMENT = 64


class Stack:
    """S networks of one shape as one, whose parameters and buffers carry a leading run axis.

    All parameters live in one buffer `values` (S, P): an optimizer step is a handful of operations on one
    tensor, and anything per run is a column (S, 1). What the network computes with are views of it.

    A `batched` network computes with the stacked parameters itself; any other is an ordinary module. On the
    CPU it takes one run after another: kernels of several convolutions at once sum in another order, and a
    run's bytes must not depend on its neighbours. Elsewhere vmap runs it, unless it cannot.

    seeds: of the runs, for networks of a study.py, which may draw at random in training mode, as dropout
    does: global generators are then those of the run's seed and of `step`, which the caller names.
    """

    def __init__(
        self,
        networks: Sequence[Network],
        device: torch.device,
        dtype: torch.dtype,
        seeds: Sequence[int] | None = None,
    ) -> None:
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
        self.buffers = {
            name: torch.stack([of_network[name].to(device) for of_network in buffers]) for name in buffers[0]
        }
        for name, buffer in self.buffers.items():
            if buffer.is_floating_point():
                self.buffers[name] = buffer.to(dtype)
        self.network = copy.deepcopy(first)
        self._callable = _Callable(self.network)
        if first.batched:
            self._share_parameters()
        self.seeds, self.step = seeds, ""
        self._draws: bool | None = None  # whether the network does; None before its first pass
        # Whether vmap takes the network; None if it has to be tried.
        self._together = False if device.type == "cpu" else None

    def __len__(self) -> int:
        return len(self.values)

    def forward_with_features(self, samples: Split) -> ForwardOutput:
        """Return logits (S, N, K), features (S, N, d) and the head's input.

        samples: those that all runs share, or each run's own (S, B, ...).
        """
        if self.network.batched:
            return self.network.forward_with_features(samples.inputs, samples.lengths)
        return self._by_run(samples)

    @property
    def last_weight(self) -> Tensor:
        """Weights (S, K, d) of the last layer."""
        return self.parameters["last.weight"]

    @torch.no_grad()
    def set_last(self, weight: Tensor, bias: Tensor) -> None:
        """Set weight (S, K, d) and bias (S, K) of the last layers."""
        self.parameters["last.weight"].copy_(weight)
        self.parameters["last.bias"].copy_(bias)

    def _by_run(self, samples: Split) -> ForwardOutput:
        """Return the outputs of each run's network, stacked: by vmap, or one run after the other."""
        inputs = (samples.inputs,) if samples.lengths is None else (samples.inputs, samples.lengths)
        axis = 0 if samples.side_by_side else None
        apply = torch.vmap(self._apply, (0, 0, *[axis] * len(inputs)))
        if self._together is False:
            return self._one_by_one(inputs, axis)
        before = {} if self._together else {name: buffer.clone() for name, buffer in self.buffers.items()}
        try:
            output = ForwardOutput(*apply(self.parameters, self.buffers, *inputs))
        except RuntimeError as error:  # if it is a mistake of the network, one run alone raises it too
            if self._together or is_out_of_memory(error):
                raise
            for name, buffer in self.buffers.items():
                buffer.copy_(before[name])
            output = self._one_by_one(inputs, axis)
            self._together, reason = False, " ".join(str(error).split())
            say(cut(f"train: runs of this network train one at a time; vmap cannot run it: {reason}"))
        else:
            self._together = self._together or self.network.training or None
        return output

    def _one_by_one(self, inputs: Sequence[Tensor], axis: int | None) -> ForwardOutput:
        parameters = {name: parameter.unbind() for name, parameter in self.parameters.items()}
        outputs = [
            self._of_run(
                index,
                {name: of_runs[index] for name, of_runs in parameters.items()},
                {name: buffer[index] for name, buffer in self.buffers.items()},
                *(tensor if axis is None else tensor[index].clone() for tensor in inputs),
            )
            for index in range(len(self))
        ]
        return ForwardOutput(*(torch.stack(part) for part in zip(*outputs, strict=True)))

    def _of_run(self, index: int, *arguments: Any) -> ForwardOutput:
        """Return a run's outputs; if its network draws, it draws from generators of its seed and step."""
        if self.seeds is None or self._draws is False or not self.network.training:
            return self._apply(*arguments)
        if self.values.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("the network may draw at random in each step")
        with global_generators(self.seeds[index], f"network {self.step}"):
            if self.values.is_cuda:
                torch.cuda.manual_seed(torch.initial_seed())
            if self._draws:
                return self._apply(*arguments)
            before = _positions()
            output = self._apply(*arguments)
            self._draws = _positions() != before
        return output

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
            column = buffer.new_tensor([of_run[name] for of_run in numbers])
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
    ) -> ForwardOutput:
        state = {f"network.{name}": tensor for name, tensor in {**parameters, **buffers}.items()}
        return functional_call(self._callable, state, (x, lengths))

    def _share_parameters(self) -> None:
        """Replace the network's parameters and buffers by the stacked ones."""
        for name, tensor in [*self.parameters.items(), *self.buffers.items()]:
            *path, leaf = name.split(".")
            setattr(self.network.get_submodule(".".join(path)), leaf, tensor)


def _positions() -> list[Any]:
    """Return where the global generators are; a pickle of a tensor differs each time."""
    return [state.tolist() if isinstance(state, Tensor) else state for state in generator_states().values()]


class _Callable(nn.Module):
    """A network whose call is `forward_with_features`, for `functional_call`."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> ForwardOutput:
        return self.network.forward_with_features(x, lengths)
