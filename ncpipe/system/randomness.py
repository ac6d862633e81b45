"""Random streams: every draw of ncpipe names its seed and what it is for."""

import contextlib
import hashlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

_global = threading.RLock()  # held while the global generators are those of one stream


def seeded_generator(seed: int, stream: str) -> torch.Generator:
    """Return the CPU generator of one stream of a seed, unrelated to all other streams and seeds."""
    return torch.Generator("cpu").manual_seed(_number(seed, stream))


@contextlib.contextmanager
def global_generators(seed: int, stream: str) -> Iterator[None]:
    """Seed the global generators of PyTorch (CPU), NumPy and Python in the block; restore them after it.

    For code of a study.py, which may draw from them: its result is then that of the seed, whatever ran
    before and runs beside it. One block runs at a time in a process.
    """
    number = _number(seed, stream)
    with _global:
        before = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
        torch.default_generator.manual_seed(number)
        np.random.seed(number)  # noqa: NPY002
        random.seed(number)
        try:
            yield
        finally:
            torch.set_rng_state(before[0])
            np.random.set_state(before[1])  # noqa: NPY002
            random.setstate(before[2])


def generator_states() -> dict[str, Any]:
    """Return the states of the global generators, as plain values."""
    name, keys, *rest = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
        "numpy": [name, np.asarray(keys).tolist(), *rest],
        "python": random.getstate(),
    }


def set_generator_states(state: dict[str, Any]) -> None:
    """Set the global generators to what `generator_states` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(state["cuda"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002
    random.setstate(state["python"])


def _number(seed: int, stream: str) -> int:
    """Return 32 bits of a hash.

    Torch's generator on the CPU keeps 32 bits of a seed, so that seed and seed + 2**32 would be the same
    stream.
    """
    return int.from_bytes(hashlib.sha256(f"{stream} {seed}".encode()).digest()[:4], "little")
