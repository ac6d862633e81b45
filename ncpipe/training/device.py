"""Set up the device, the threads and the arithmetic that runs are computed with, and read its free memory."""

import ctypes
import os
import sys

import torch

from ncpipe.config.specs import Compute
from ncpipe.system.errors import InputError
from ncpipe.system.machine import free_memory

NO_MEMORY = ("can't allocate memory", "not enough memory", "bad_alloc", "Storage size calculation overflowed")
DTYPES = {"float32": torch.float32, "tf32": torch.float32, "float64": torch.float64}


def prepare_device(compute: Compute) -> torch.device:
    """Set up the process for `compute` and return the device; `auto` takes the first that is available.

    Subnormal numbers count as 0 on the CPU: a transformer's decaying weights and saturated attention are
    full of them, and each costs some hundred cycles (a 13-block L-T11 step is up to fifty times slower).
    Freed memory stays with the process: returning it and allocating it again at every step costs a fifth of
    the time. Raises InputError for a device that this machine lacks.
    """
    fix_order_of_sums()
    torch.set_flush_denormal(True)  # before the first parallel call: worker threads inherit it
    torch.set_num_threads(compute.threads)
    _keep_freed_memory()
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available() and compute.precision == "float32",
        "cpu": compute.precision != "tf32",
    }
    wanted = list(available) if compute.device == "auto" else [compute.device]
    for name in wanted:
        if available[name]:
            torch.backends.cuda.matmul.allow_tf32 = compute.precision == "tf32"
            return torch.device(name)
    if compute.precision == "tf32":
        raise InputError("compute.precision: tf32 needs a CUDA device; use float32")
    raise InputError(
        f"compute.device: no {compute.device} for {compute.precision} on this machine; use auto or cpu"
    )


def fix_order_of_sums() -> None:
    """Make MKL sum products in an order that does not depend on the memory addresses of their factors.

    Without it, on some CPUs, a run's last digits depend on the other runs of its stack. MKL reads the setting
    before its first product in a process; it costs no measurable time.
    """
    if (capability := torch.backends.cpu.get_cpu_capability()) in ("AVX2", "AVX512"):
        os.environ.setdefault("MKL_CBWR", f"{capability},STRICT")


def fix_sums(threads: int) -> None:
    """Fix what decides the order of sums in this process, so that another process gives the same bytes."""
    fix_order_of_sums()
    torch.set_num_threads(threads)


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a device, in bytes."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error reports too little memory; PyTorch has a class for it on GPUs only."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)


def _keep_freed_memory() -> None:
    """Tell glibc not to use mmap for tensors below 32 MB and not to trim the heap (mallopt(3))."""
    if not sys.platform.startswith("linux"):
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(mmap_threshold, 32 << 20)
        mallopt(trim_threshold, 2**31 - 1)
