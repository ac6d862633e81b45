"""Leave random generators, and loaders that keep their workers, as they were before a measurement."""

import contextlib
import gc
import random
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

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
def same_generators(*holders: object) -> Iterator[None]:
    """Restore after the block every generator that it may draw from.

    These are the global ones of PyTorch, of its devices, of Python and of NumPy, and those that the holders,
    loaders and models, reach: as attributes of samplers, data sets, transforms and collators, or in their
    functions. In the block a DataLoader with persistent workers starts others, as its own draw too, and may
    be in the middle of an epoch.
    """
    generators, loaders = _reached(holders)
    restore = [*_global_states(), *map(_state, generators)]
    workers = [(loader, loader._iterator) for loader in loaders]
    for loader, _ in workers:
        loader._iterator = None
    try:
        yield
    finally:
        for loader, iterator in workers:
            loader._iterator = iterator
        for back in restore:
            back()


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
    if isinstance(generator, torch.Generator):
        return partial(generator.set_state, generator.get_state())
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return partial(generator.set_state, generator.get_state())
    bits = generator.bit_generator if isinstance(generator, np.random.Generator) else generator
    return partial(setattr, bits, "state", bits.state)


def _reached(holders: tuple[object, ...]) -> tuple[list[Any], list[DataLoader]]:
    """Return the generators, and the DataLoaders with persistent workers, that objects hold.

    No attribute is computed: `gc.get_referents` has what an object refers to.
    """
    generators: list[Any] = []
    loaders: list[DataLoader] = []
    queue: list[Any] = list(holders)
    seen: set[int] = set()
    while queue:
        held = queue.pop()
        if id(held) in seen or isinstance(held, LEAVES):
            continue
        seen.add(id(held))
        if isinstance(held, GENERATORS):
            generators.append(held)
        elif isinstance(held, nn.Module):  # not what else it knows, such as its trainer
            queue += [*held.children(), *(v for v in vars(held).values() if isinstance(v, GENERATORS))]
        elif isinstance(held, FunctionType):
            queue += [held.__closure__, held.__defaults__, held.__kwdefaults__]
            named = (held.__globals__.get(name) for name in held.__code__.co_names)
            queue += [value for value in named if isinstance(value, GENERATORS)]
        elif not isinstance(held, list | tuple | dict | set) or len(held) <= MOST:
            queue += gc.get_referents(held)
            queue += [getattr(type(held), name, None) for name in CALLED]
            if isinstance(held, DataLoader) and held.persistent_workers:
                loaders.append(held)
    return generators, loaders
