"""Run a model in eval mode and leave it as it was, to the bit."""

import contextlib
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ncpipe.metrics.generators import same_generators


@contextlib.contextmanager
def eval_mode(model: nn.Module, device: torch.device | str | None = None, *loaders: object) -> Iterator[None]:
    """Put the model into eval mode for the block, uncompiled; then restore its modes and tensors.

    Modules get their mode back by `train(mode)`, because some do work there: LoRA layers merge their weights
    in `eval()` and subtract them again in `train()`. Rounding then changes the weights, so the parameters of
    modules with a `train` or `eval` of their own are copied and restored, as are all buffers. So are the
    generators that model and loaders may draw from (`same_generators`).
    device: where the model is moved for good, if not None.
    """
    if device is not None:
        model.to(device)
    modes = [(module, module.training) for module in model.modules()]
    copies = [(tensor, tensor.detach().clone()) for tensor in _changeable(model)]
    try:
        with same_generators(model, *loaders), _uncompiled():
            model.eval()
            yield
    finally:
        for module, training in modes:  # a module comes before those inside it, whose modes it sets too
            if module.training != training:
                module.train(training)
        with torch.no_grad():
            for tensor, copy in copies:
                if not torch.equal(tensor, copy):  # a write would forbid the backward pass of a running step
                    tensor.copy_(copy)


def _changeable(model: nn.Module) -> list[Tensor]:
    """Return the tensors that eval mode and forward passes in it may change."""
    found = list(model.buffers())
    for module in model.modules():
        own = (getattr(method, "__func__", None) for method in (module.train, module.eval))
        if tuple(own) != (nn.Module.train, nn.Module.eval):
            found += module.parameters()
    return list({id(tensor): tensor for tensor in found if not tensor.is_meta}.values())


def _uncompiled() -> contextlib.AbstractContextManager[object]:
    """Return a context in which `torch.compile` does nothing: compiled code ignores hooks added later."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and its import takes seconds
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")
