"""Any optimizer of torch.optim, for a stack of one run."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ncpipe.config.optimizer_specs import TorchOptimizer
from ncpipe.system.errors import InputError, cut, suggest
from ncpipe.training.checkpoints import State, copy_to
from ncpipe.training.device import is_out_of_memory
from ncpipe.training.optimizers import OptimizerState
from ncpipe.training.stack import Stack


class TorchState(OptimizerState):
    """Steps of torch.optim on the learned parameters of one run, each a parameter of its own shape.

    It has no buffers, because their shapes are not known before the first step; see `state_dict`.
    """

    def __init__(self, optimizers: Sequence[TorchOptimizer], stack: Stack, decayed: Tensor) -> None:
        (spec,) = optimizers
        self.buffers = {}
        self.view, self.kind = stack.view, f"torch.optim.{spec.class_}"
        self.names = [name for name, role in stack.roles.items() if role != "frozen"]
        self.weights = [nn.Parameter(stack.view(stack.values, name)[0].clone()) for name in self.names]
        self.optimizer = make_optimizer(spec, self.weights)

    def update(self, values: Tensor, gradients: Tensor, now: Tensor) -> Tensor:
        moved = values.clone()
        with torch.no_grad():
            for name, weight in zip(self.names, self.weights, strict=True):
                weight.copy_(self.view(values, name)[0])
                weight.grad = self.view(gradients, name)[0].clone()
        for group in self.optimizer.param_groups:
            group["lr"] = now.item()
        try:
            self.optimizer.step()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            raise _mistake(self.kind, error) from None
        for name, weight in zip(self.names, self.weights, strict=True):
            self.view(moved, name)[0].copy_(weight.detach())
        return moved

    def state_dict(self) -> State:
        state = [dict(self.optimizer.state[weight]) for weight in self.weights]
        return {"parameters": copy_to(state, torch.device("cpu"))}

    def load_state_dict(self, state: State) -> None:
        for weight, of_weight in zip(self.weights, state["parameters"], strict=True):
            self.optimizer.state[weight] = {  # counters, tensors without dimensions, stay on the CPU
                key: copy_to(value, weight.device) if isinstance(value, Tensor) and value.dim() else value
                for key, value in of_weight.items()
            }


def make_optimizer(spec: TorchOptimizer, weights: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer of torch.optim that a spec names; InputError for a wrong class or argument."""
    kind, arguments = optimizer_class(spec.class_), {"lr": spec.learning_rate, **(spec.arguments or {})}
    try:
        return kind(weights, **arguments)
    except Exception as error:  # PyTorch checks few of its arguments: any error may be theirs
        raise _mistake(f"torch.optim.{spec.class_}", error) from None


def _mistake(kind: str, error: Exception) -> InputError:
    return InputError(cut(f"optimizer: {kind}: {' '.join(str(error).split())}"))


def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """Return a class of torch.optim; InputError if there is none of this name that suits these steps."""
    if name == "LBFGS":
        raise InputError("optimizer.class: LBFGS searches along lines; write `name: lbfgs`")
    classes: dict[str, type[torch.optim.Optimizer]] = {
        key: kind
        for key, kind in vars(torch.optim).items()
        if isinstance(kind, type)
        and issubclass(kind, torch.optim.Optimizer)
        and key not in ("Optimizer", "LBFGS", "SparseAdam")
    }
    if name not in classes:
        raise InputError(cut(f"optimizer.class: torch.optim has no {name!r} here; {suggest(name, classes)}"))
    return classes[name]
