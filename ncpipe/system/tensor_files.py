"""Writing of safetensors files, and reading of those whose tensors are computed with."""

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
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


def save_tensors(tensors: dict[str, Tensor], path: Path, notes: Mapping[str, str] | None = None) -> None:
    """Write tensors by name, and notes, to a file with the mode that the umask gives.

    safetensors alone makes files that no other user of a shared store may read.
    """
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, None if notes is None else dict(notes))
    path.chmod(mode)
