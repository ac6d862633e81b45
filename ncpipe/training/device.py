"""Where and how runs are computed."""

import torch

from ncpipe.errors import InputError
from ncpipe.specs import Compute

DTYPES = {"float32": torch.float32, "float64": torch.float64}


def prepare_device(compute: Compute) -> torch.device:
    """Set up the process for `compute`; the device that `auto` stands for here.

    Subnormal numbers count as 0 on the CPU: a transformer's decaying weights and saturated attention are
    full of them, and each costs some hundred cycles (a 13-block L-T11 step is up to fifty times slower).
    Raises InputError for a device that this machine lacks.
    """
    torch.set_flush_denormal(True)  # before the first parallel call: worker threads inherit it
    torch.set_num_threads(compute.threads)
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available() and compute.precision == "float32",
        "cpu": True,
    }
    if compute.device == "auto":
        return torch.device(next(name for name, here in available.items() if here))
    if not available[compute.device]:
        raise InputError(
            f"compute.device: no {compute.device} for {compute.precision} on this machine; use auto or cpu"
        )
    return torch.device(compute.device)
