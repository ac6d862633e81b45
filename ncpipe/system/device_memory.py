"""Read how much memory a device has free."""

import torch

from ncpipe.system.machine import free_memory


def free_bytes(device: torch.device) -> int:
    """Return the bytes that are free on a device; on a GPU with those that PyTorch keeps of freed tensors."""
    if device.type != "cuda":
        return free_memory()
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
