"""First-order optimizers on a stack's (S, P) buffer; every run has its own state and learning rate.

The penalty's gradient is part of the gradient they are given (coupled L2); AdamW's decay is not. What
changes from step to step (rates, Adam's corrections) comes from a table that is made before training:
an update reads nothing from the host.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ncpipe.config.arguments import call_by_name
from ncpipe.config.optimizer_specs import Adam, AdamW, Lion, Sgd, SignSgd
from ncpipe.config.study import mistake
from ncpipe.system.randomness import global_generators
from ncpipe.training.checkpoints import State
from ncpipe.training.stack import Stack


class OptimizerState(ABC):
    """The steps of an optimizer, and what it keeps between them.

    buffers: tensors (S, P), by name, that move with training.
    """

    buffers: dict[str, Tensor]

    def table(self, rates: Tensor) -> Tensor:
        """Return the n numbers that `update` needs at each step, by default its learning rates alone.

        (T, S) -> (T, n, S), float64 on the CPU.
        """
        return rates.unsqueeze(1)

    @abstractmethod
    def update(self, values: Tensor, gradients: Tensor, now: Tensor) -> Tensor:
        """Return the next values (S, P), from gradients (S, P) and this step's numbers (n, S, 1)."""

    def state_dict(self) -> State:
        """Return what a checkpoint needs besides the buffers."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        assert not state


class SgdState(OptimizerState):
    """theta <- theta - rate m, with m <- momentum m + g."""

    def __init__(self, optimizers: Sequence[Sgd], stack: Stack, decayed: Tensor) -> None:
        values = stack.values
        self.momentum = column([o.momentum for o in optimizers], values)
        self.velocity = torch.zeros_like(values)
        self.buffers = {"velocity": self.velocity}

    def update(self, values: Tensor, gradients: Tensor, now: Tensor) -> Tensor:
        self.velocity.mul_(self.momentum).add_(gradients)
        return values - now[0] * self.velocity


class AdamState(OptimizerState):
    """Adam (Kingma and Ba 2015, Algorithm 1), or AdamW (Loshchilov and Hutter 2019), which decays too."""

    def __init__(self, optimizers: Sequence[Adam | AdamW], stack: Stack, decayed: Tensor) -> None:
        values = stack.values
        self.betas = [(o.beta1, o.beta2) for o in optimizers]
        self.mean_rate = column([1 - beta1 for beta1, _ in self.betas], values)
        self.square_rate = column([1 - beta2 for _, beta2 in self.betas], values)
        self.eps = column([o.eps for o in optimizers], values)
        self.decay = _decay(optimizers, values, decayed)
        self.mean = torch.zeros_like(values)
        self.square = torch.zeros_like(values)
        self.buffers = {"mean": self.mean, "square": self.square}

    def table(self, rates: Tensor) -> Tensor:
        return adam_table(rates, self.betas)

    def update(self, values: Tensor, gradients: Tensor, now: Tensor) -> Tensor:
        rates, unbias1, unbias2 = now
        self.mean.lerp_(gradients, self.mean_rate)
        self.square.lerp_(gradients.square(), self.square_rate)
        root = (self.square / unbias2).sqrt_().add_(self.eps)
        moved = values - (rates / unbias1) * (self.mean / root)
        return moved if self.decay is None else moved - rates * self.decay * values


class LionState(OptimizerState):
    """Lion (Chen et al. 2023, Algorithm 2), whose decay takes the penalised numbers alone.

    theta <- theta - rate (sign(beta1 m + (1 - beta1) g) + weight_decay theta); m <- beta2 m + (1 - beta2) g.
    With both betas equal it is Signum (Bernstein et al. 2018, Algorithm 2), and with 0 SignSGD (Algorithm 1).
    """

    def __init__(self, optimizers: Sequence[Lion | SignSgd], stack: Stack, decayed: Tensor) -> None:
        values = stack.values
        betas = [(o.beta1, o.beta2) if isinstance(o, Lion) else (o.momentum, o.momentum) for o in optimizers]
        self.step_rate, self.mean_rate = (
            column([1 - beta for beta in of_runs], values) for of_runs in zip(*betas, strict=True)
        )
        self.decay = _decay(optimizers, values, decayed)
        self.mean = torch.zeros_like(values)
        self.buffers = {"mean": self.mean}

    def update(self, values: Tensor, gradients: Tensor, now: Tensor) -> Tensor:
        direction = self.mean.lerp(gradients, self.step_rate).sign_()
        self.mean.lerp_(gradients, self.mean_rate)
        if self.decay is not None:
            direction = direction + self.decay * values
        return values - now[0] * direction


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
            raise mistake(spec, f"the optimizer {type(spec).__name__}: {argument} {message}")
        for name, place in places.items():
            value = result[name]
            if not isinstance(value, Tensor) or value.shape != place.shape:
                shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                problem = f"{argument} of {name} is {shape}; expected {tuple(place.shape)}"
                raise mistake(spec, f"the optimizer {type(spec).__name__}: {problem}")
            place.copy_(value)


def _decay(optimizers: Sequence[Any], values: Tensor, decayed: Tensor) -> Tensor | None:
    """Return the weight decay of each number (S, P); None where no run decays."""
    decays = [getattr(o, "weight_decay", 0.0) for o in optimizers]
    return column(decays, values) * decayed if any(decays) else None


def adam_table(rates: Tensor, betas: Sequence[tuple[float, float]]) -> Tensor:
    """Return rates and bias corrections 1 - beta^t of each step: (T, S) -> (T, 3, S), float64 on the CPU.

    betas: beta1 and beta2 of each of S runs.
    """
    exponents = torch.arange(1, len(rates) + 1, dtype=torch.float64).view(-1, 1, 1)
    both = torch.tensor(betas, dtype=torch.float64).T  # (2, S)
    return torch.cat([rates.unsqueeze(1), 1 - both**exponents], 1)


def column(numbers: Sequence[float], like: Tensor) -> Tensor:
    """Return one number per run, (S, 1)."""
    return torch.tensor(numbers, dtype=like.dtype, device=like.device).unsqueeze(1)
