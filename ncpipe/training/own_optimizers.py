"""Optimizers that see the parameters of one run by their names and shapes, as those of a study.py do.

S  runs    P  numbers per run    T  steps of the training
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ncpipe.config.arguments import call_by_name
from ncpipe.config.study import mistake
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import global_generators
from ncpipe.training.optimizers import OptimizerState
from ncpipe.training.stack import Stack


class ByRun(OptimizerState):
    """Steps of a stack's runs, one run after the other.

    function: takes those of these that it names, and gives the next weights of a run by name.

    weights, gradients  dicts of the learned parameters' tensors, by name
    state               a dict for each name of the spec's `state`, of tensors like the weights; 0 at first.
                        What the function puts there is there at the next step
    step, rate          1, 2, ... and this step's learning rate, tensors without dimensions
    roles, decayed      of each parameter its role, and whether the penalty, and so a weight decay, takes it
    spec                the optimizer's record

    seeds: of the runs, for a function of study.py, which may draw from the global generators on the CPU: they
    are seeded for each run and step, so that a run's bytes depend neither on its neighbours nor on a resume.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        optimizers: Sequence[Any],
        stack: Stack,
        decayed: Tensor,
        seeds: Sequence[int] = (),
    ) -> None:
        self.function, self.optimizers, self.view = function, optimizers, stack.view
        self.seeds = seeds
        self.roles = {name: role for name, role in stack.roles.items() if role != "frozen"}
        self.decayed = [
            {name: bool(stack.view(decayed, name)[index].any()) for name in self.roles}
            for index in range(len(optimizers))
        ]
        self.buffers = {name: torch.zeros_like(stack.values) for name in optimizers[0].state}

    def table(self, rates: Tensor) -> Tensor:
        """Return learning rates and numbers of steps, from 1: (T, S) -> (T, 2, S)."""
        steps = torch.arange(1, len(rates) + 1, dtype=rates.dtype).view(-1, 1).expand_as(rates)
        return torch.stack([rates, steps], 1)

    def update(self, values: Tensor, gradients: Tensor, now: Tensor) -> Tensor:
        moved = values.clone()
        for index, spec in enumerate(self.optimizers):

            def by_name(buffer: Tensor, index: int = index) -> dict[str, Tensor]:
                return {name: self.view(buffer, name)[index] for name in self.roles}

            state = {name: by_name(buffer) for name, buffer in self.buffers.items()}
            arguments = {
                "weights": by_name(values),
                "gradients": by_name(gradients),
                "state": {name: dict(tensors) for name, tensors in state.items()},
                "step": now[1, index, 0],
                "rate": now[0, index, 0],
                "roles": self.roles,
                "decayed": self.decayed[index],
                "spec": spec,
            }
            with self._drawing(index, now):
                weights = call_by_name(self.function, arguments)
            self._put(by_name(moved), weights, spec, "weights")
            for name, tensors in state.items():
                self._put(tensors, arguments["state"][name], spec, f"state[{name!r}]")
        return moved

    def _drawing(self, index: int, now: Tensor) -> AbstractContextManager[None]:
        """Return the block in which a run's function may draw; elsewhere than on the CPU nothing is read."""
        if not self.seeds or now.device.type != "cpu":
            return nullcontext()
        return global_generators(self.seeds[index], f"optimizer {int(now[1, index, 0])}")

    def _put(self, places: dict[str, Tensor], result: Any, spec: Any, argument: str) -> None:
        """Write what the function gave where it belongs; InputError if that does not fit."""
        if not isinstance(result, dict) or result.keys() != places.keys():
            keys = f"one of {', '.join(map(str, result))}" if isinstance(result, dict) else ""
            message = f"has to be a dict of {', '.join(places)}, not {keys or type(result).__name__}"
            raise _mistake(spec, f"{argument} {message}")
        for name, place in places.items():
            value = result[name]
            if not isinstance(value, Tensor) or value.shape != place.shape:
                shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise _mistake(spec, f"{argument} of {name} is {shape}; expected {tuple(place.shape)}")
            place.copy_(value)


def _mistake(spec: Any, problem: str) -> InputError:
    return mistake(spec, f"the optimizer {type(spec).__name__}: {problem}")
