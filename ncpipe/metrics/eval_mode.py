"""Run a model in eval mode, and leave it, random generators and loaders as they were, to the bit."""

import contextlib
import gc
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ncpipe.system.errors import InputError

GENERATORS = (
    torch.Generator,
    random.Random,
    np.random.Generator,
    np.random.BitGenerator,
    np.random.RandomState,
)
# What holds no generator, or none with a state.
LEAVES = (
    *(str, bytes, int, float, complex, Tensor, np.ndarray, type, ModuleType),
    *(random.SystemRandom, _BaseDataLoaderIter),
)
MOST = 1000  # entries of a container; longer ones hold data
CALLED = ("__getitem__", "__iter__", "__call__")  # of data sets, samplers, transforms and collators


@contextlib.contextmanager
def eval_mode(model: nn.Module, device: torch.device | str | None = None, *loaders: object) -> Iterator[None]:
    """Put the model into eval mode for the block, uncompiled; then restore its modes and tensors.

    Modules get their mode back by `train(mode)`, because some do work there: LoRA layers merge their weights
    in `eval()` and subtract them again in `train()`. Rounding then changes the weights, so the parameters of
    modules with a `train` or `eval` of their own are copied and restored, as are those of embeddings with a
    `max_norm`, which shorten the rows that they look up, and all buffers. So are the generators that model
    and loaders may draw from (`same_generators`).
    device: where the model is moved for good, if not None. Raises InputError for a layer that gets its
    parameters on its first pass.
    """
    if device is not None:
        model.to(device)
    for name, module in model.named_modules():
        if any(map(is_lazy, (*module._parameters.values(), *module._buffers.values()))):
            raise InputError(
                f"layer {name!r} has no parameters yet: {type(module).__name__} makes them on its first "
                "pass; run the model on one batch first"
            )
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(module, named) for module in model.modules() if (named := _persistent(module))]
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
            for module, named in buffers:  # a forward pass may have put other tensors in their place
                module._buffers.update(named)
            for tensor, copy in copies:
                if not torch.equal(tensor, copy):  # a write would forbid the backward pass of a running step
                    tensor.copy_(copy)


def _persistent(module: nn.Module) -> dict[str, Tensor | None]:
    """Return a module's buffers by name, but for those of TorchScript, and for caches.

    Beside a cache a module may keep its length, which nobody would restore.
    """
    named = module._buffers if isinstance(module._buffers, dict) else {}
    return {name: tensor for name, tensor in named.items() if name not in module._non_persistent_buffers_set}


def _changeable(model: nn.Module) -> list[Tensor]:
    """Return the tensors that eval mode and forward passes in it may change."""
    tensors = list(model.buffers())
    for module in model.modules():
        methods = (getattr(method, "__func__", None) for method in (module.train, module.eval))
        shortening = isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None
        if shortening or tuple(methods) != (nn.Module.train, nn.Module.eval):
            tensors += module.parameters()
    return list({id(tensor): tensor for tensor in tensors if not tensor.is_meta}.values())


def _uncompiled() -> contextlib.AbstractContextManager[object]:
    """Return a context in which `torch.compile` does nothing: compiled code ignores hooks added later."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and its import takes seconds
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


@contextlib.contextmanager
def same_generators(*holders: object) -> Iterator[None]:
    """Restore after the block every generator that it may draw from.

    These are the global ones of PyTorch, of its devices, of Python and of NumPy, and those that the holders,
    loaders and models, reach: as attributes of samplers, data sets, transforms and collators, or in their
    functions. In the block a DataLoader with persistent workers starts others, as its own draw too, and may
    be in the middle of an epoch.
    """
    generators, loaders = _generators_and_loaders(holders)
    restore = [*_global_states(), *map(_state, generators)]
    workers = [(loader, loader._iterator) for loader in loaders]
    for loader, _ in workers:
        loader._iterator = None
    try:
        yield
    finally:
        for loader, iterator in workers:
            loader._iterator = iterator
        for restore_state in restore:
            restore_state()


def _global_states() -> Iterator[Callable[[], object]]:
    """Yield functions that restore the global generators."""
    yield partial(torch.set_rng_state, torch.get_rng_state())
    yield partial(random.setstate, random.getstate())
    yield partial(np.random.set_state, np.random.get_state())  # noqa: NPY002
    if (kind := torch.accelerator.current_accelerator()) is None:
        return
    device: Any = torch.get_device_module(kind)
    if getattr(device, "is_initialized", lambda: True)():  # Apple's always is
        for place in range(device.device_count()):
            yield partial(device.set_rng_state, device.get_rng_state(place), place)


def _state(generator: Any) -> Callable[[], object]:
    """Return a function that restores a generator's present state."""
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    generator = getattr(generator, "bit_generator", generator)
    if isinstance(generator, np.random.BitGenerator):
        return partial(setattr, generator, "state", generator.state)
    return partial(generator.set_state, generator.get_state())


def _generators_and_loaders(holders: tuple[object, ...]) -> tuple[list[Any], list[DataLoader]]:
    """Return the generators, and the DataLoaders with persistent workers, that objects hold.

    No attribute is computed: `gc.get_referents` has what an object refers to.
    """
    generators: list[Any] = []
    loaders: list[DataLoader] = []
    queue: list[Any] = list(holders)
    visited: set[int] = set()
    while queue:
        value = queue.pop()
        if id(value) in visited or isinstance(value, LEAVES):
            continue
        visited.add(id(value))
        if isinstance(value, GENERATORS):
            generators.append(value)
        elif isinstance(value, nn.Module):  # not what else it knows, such as its trainer
            queue += [*value.children(), *(v for v in vars(value).values() if isinstance(v, GENERATORS))]
        elif isinstance(value, FunctionType):
            queue += [value.__closure__, value.__defaults__, value.__kwdefaults__]
            globals_ = (value.__globals__.get(name) for name in value.__code__.co_names)
            queue += [v for v in globals_ if isinstance(v, GENERATORS)]
        elif not isinstance(value, list | tuple | dict | set) or len(value) <= MOST:
            queue += gc.get_referents(value)
            queue += [getattr(type(value), name, None) for name in CALLED]
            if isinstance(value, DataLoader) and value.persistent_workers:
                loaders.append(value)
    return generators, loaders
