"""Reading of safetensors files whose tensors are computed with."""

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

ALIGNMENT = 64  # bytes; what PyTorch's own allocations have


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return a file's tensors by name, each starting on a 64-byte boundary.

    In the file they start wherever the lengths of its header and of the other tensors put them, and on some
    CPUs the order in which a product is summed depends on the address.
    """
    return {
        name: tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor
        for name, tensor in load_file(path).items()
    }
