"""Set up the device, the threads and the arithmetic that runs are computed with."""

import ctypes
import functools
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from ncpipe.config.run import Compute
from ncpipe.system.console import say
from ncpipe.system.errors import InputError

NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "bad_alloc",
    "Storage size calculation overflowed",
    "out of memory",  # of CUDA's runtime, of ROCm and of MPS
    "STATUS_ALLOC_FAILED",  # of cuBLAS, cuDNN and others
)
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
DTYPES = {"float32": torch.float32, "tf32": torch.float32, "float64": torch.float64}


def prepare_device(compute: Compute) -> torch.device:
    """Set up the process for `compute` and return the device; `auto` takes CUDA if it can, or the CPU.

    Subnormal numbers count as 0 on the CPU: a transformer's decaying weights and saturated attention are
    full of them, and each costs some hundred cycles (a 13-block L-T11 step is up to fifty times slower).
    Freed memory stays with the process: returning it and allocating it again at every step costs a fifth of
    the time. Raises InputError for a device that this machine lacks, or whose kernels this PyTorch lacks.
    """
    fix_order_of_sums()
    torch.set_flush_denormal(True)  # before the first parallel call: worker threads inherit it
    torch.set_num_threads(compute.threads)
    _keep_freed_memory()
    tf32 = compute.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32  # of convolutions; PyTorch's default is True
    torch.backends.cudnn.deterministic = True
    return torch.device(_name_of_device(compute))


def _name_of_device(compute: Compute) -> str:
    """Return cuda, mps or cpu; InputError if that is not to be had."""
    wanted, precision = compute.device, compute.precision
    if wanted == "cpu" and precision != "tf32":
        return "cpu"
    if wanted == "mps" and precision == "float32" and torch.backends.mps.is_available():
        return "mps"  # only where it is asked for: no test has run on it
    reason = ""
    if wanted in ("auto", "cuda"):
        reason = cuda_problem(precision)
        if not reason and torch.cuda.is_available():
            return "cuda"
        if wanted == "auto" and precision != "tf32":
            if reason:
                _say_once(f"compute.device: auto takes the CPU: {reason}")
            return "cpu"
    because = f" ({reason})" if reason else ""
    if precision == "tf32":
        raise InputError(f"compute.precision: tf32 needs a CUDA device{because}; use float32")
    raise InputError(f"compute.device: no {wanted} for {precision} on this machine{because}; use auto or cpu")


def cuda_problem(precision: str) -> str:
    """Return why this PyTorch cannot use this machine's GPU at a precision; '' if it can or there is none."""
    if not torch.cuda.is_available():
        driver = nvidia_driver()
        if not driver or torch.version.cuda is None or "CUDA_VISIBLE_DEVICES" in os.environ:
            return ""
        return (
            f"PyTorch's CUDA {torch.version.cuda} finds no GPU by the NVIDIA driver {driver}; update the "
            "driver or install an older CUDA build, as docs/install.md says"
        )
    if torch.version.hip is not None:  # names of architectures tell nothing, and no card has TF32
        return "TF32 is NVIDIA's" if precision == "tf32" else ""
    major, minor = torch.cuda.get_device_capability()
    card = f"{torch.cuda.get_device_name()} has compute capability {major}.{minor}"
    built_for = torch.cuda.get_arch_list()
    if not has_kernels((major, minor), built_for):
        return (
            f"{card}, and this PyTorch has kernels for {', '.join(built_for)}; install an older CUDA build, "
            "as docs/install.md says"
        )
    return f"{card}, and TF32 needs 8.0" if precision == "tf32" and major < 8 else ""


def has_kernels(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Return whether a card runs code that is built for these architectures, such as sm_86 and compute_90.

    Binaries (sm) run on cards of the same major version that are not older, and PTX (compute) on all newer.
    """
    for name in architectures:
        kind, _, digits = name.partition("_")
        digits = digits.rstrip("af")  # sm_90a and sm_100f have features of one card or family
        built = int(digits[:-1]), int(digits[-1])
        if built <= capability and (kind == "compute" or built[0] == capability[0]):
            return True
    return False


def nvidia_driver() -> str:
    """Return the version of the NVIDIA driver that this machine has loaded; '' without one."""
    try:
        text = NVIDIA_DRIVER.read_text(encoding="utf-8")
    except OSError:
        return ""
    match = re.search(r"Kernel Module\D*?(?:x86_64\D+|aarch64\D+)?(\d+\.[\d.]+)", text)
    return match[1] if match else "of an unknown version"


@functools.cache
def _say_once(line: str) -> None:
    say(line)


def gpu_count(device: torch.device) -> int:
    """Return on how many GPUs batches train that are meant for `device`: all of the machine's, or 1."""
    return torch.cuda.device_count() if device.type == "cuda" else 1


def name_of(device: torch.device) -> str:
    """Return the device as a run's record names it: cpu, or cuda with the card's name."""
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type


def take_gpu(worker: int, compute: Compute) -> None:
    """Make one of several GPUs that of this thread, in turn by the number of the worker."""
    if compute.device in ("auto", "cuda") and torch.cuda.is_available() and torch.cuda.device_count() > 1:
        torch.cuda.set_device(worker % torch.cuda.device_count())


def release_memory() -> None:
    """Return the GPU memory that PyTorch caches, for other processes."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


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


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error reports too little memory, or was raised while such an error was handled.

    PyTorch has a class for it only where its own allocator fails; libraries of CUDA, and Apple's MPS, have
    texts. A failed recording of a CUDA graph hides it behind an error of its own.
    """
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def _keep_freed_memory() -> None:
    """Tell glibc not to use mmap for tensors below 32 MB and not to trim the heap (mallopt(3))."""
    if not sys.platform.startswith("linux"):
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(mmap_threshold, 32 << 20)
        mallopt(trim_threshold, 2**31 - 1)
