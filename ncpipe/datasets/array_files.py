"""Named arrays from a file of the user's: .npz or .safetensors."""

import math
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ncpipe.datasets.tensors import Array, as_tensor
from ncpipe.system.errors import InputError, cut
from ncpipe.system.machine import free_memory

# What readers raise on files that are cut short, overwritten, encrypted or of another kind.
DAMAGED = (ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, SafetensorError)


@dataclass(frozen=True)
class Names:
    """What arrays a file has to have and may have.

    aliases: other names, and which of these they stand for. passed_over: beginnings of names that are not
    missed where nothing reads them.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    aliases: Mapping[str, str]
    passed_over: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[str, ...]:
        return self.required + self.optional


def read_arrays(path: Path, names: Names) -> tuple[dict[str, Tensor], list[str]]:
    """Return tensors by name from an .npz or .safetensors file, and the names that nothing reads.

    Raises InputError: no such file, another extension, a damaged file, Python objects in place of numbers, a
    missing array.
    """
    readers = {".npz": _read_npz, ".safetensors": _read_safetensors}
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise InputError(f"{path}: unknown extension {path.suffix!r}; give an .npz or a .safetensors file")
    if not path.is_file():
        raise InputError(f"{path}: {'not a file' if path.exists() else 'not found'}")
    try:
        stored, ignored = readers[suffix](path, names)
    except InputError as error:
        raise InputError(cut(str(error))) from None
    except DAMAGED as error:
        raise _damaged(path, error) from None
    _require(path, stored, ignored, names)
    return stored, ignored


def named_tensors(
    where: object, stored: Mapping[str, Any], names: Names
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the same of arrays that are in no file. where: what messages call them."""
    keys, ignored = _sort_names(stored, names)
    tensors = {name: _as_wide(where, name, stored[key]) for name, key in keys.items()}
    _require(where, tensors, ignored, names)
    return tensors, ignored


def _require(where: object, stored: Mapping[str, Tensor], ignored: list[str], names: Names) -> None:
    """Raise InputError unless there is every array that has to be there."""
    for name in names.required:
        if name not in stored:
            raise InputError(
                f"{where}: has no {name!r}; it has {', '.join([*stored, *ignored]) or 'nothing'}"
            )


def _read_npz(path: Path, names: Names) -> tuple[dict[str, Tensor], list[str]]:
    with path.open("rb") as stream:  # NumPy leaves a damaged file open
        archive = np.load(stream, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise InputError(f"{path}: is one array, not an .npz of named arrays (numpy.savez)")
        with archive:
            keys, ignored = _sort_names(archive.files, names)
            sizes = {info.filename.removesuffix(".npy"): info.file_size for info in archive.zip.infolist()}
            _check_size(path, sum(sizes[key] for key in keys.values()))
            return {name: _as_wide(path, name, archive[key]) for name, key in keys.items()}, ignored


def _read_safetensors(path: Path, names: Names) -> tuple[dict[str, Tensor], list[str]]:
    with safe_open(path, framework="pt") as file:
        keys, ignored = _sort_names(file.keys(), names)
        _check_size(path, sum(8 * math.prod(file.get_slice(key).get_shape()) for key in keys.values()))
        return {name: _as_wide(path, name, file.get_tensor(key)) for name, key in keys.items()}, ignored


def _check_size(path: Path, needed: int) -> None:
    """Raise InputError if arrays of so many bytes do not fit into memory."""
    if needed > (free := free_memory()):
        raise InputError(
            f"{path}: its arrays take {needed / 1e9:.3g} GB of memory, and {free / 1e9:.3g} GB are free"
        )


def _damaged(path: Path, error: Exception) -> InputError:
    if "Object arrays" in str(error):  # NumPy's words, which pickles end in
        return InputError(f"{path}: holds Python objects; save plain arrays of numbers")
    kind = path.suffix.lower()
    hint = "; numpy.savez writes one" if kind == ".npz" else ""
    reason = " ".join(str(error).split()) or type(error).__name__
    if "allow_pickle" in reason:  # NumPy takes any file that it does not know for a pickle
        reason = "File is not a zip file"
    return InputError(cut(f"{path}: damaged, or no {kind} file ({reason}){hint}"))


def _sort_names(keys: Iterable[str], names: Names) -> tuple[dict[str, str], list[str]]:
    """Return the keys of the arrays to read, by name and in our order, and the names of the others."""
    by_name = {names.aliases.get(key, key): key for key in keys}
    read = {name: by_name.pop(name) for name in names.known if name in by_name}
    return read, sorted(name for name in by_name if not name.startswith(names.passed_over))


def _as_wide(path: object, name: str, array: Array) -> Tensor:
    """Return float8 as float32, whole numbers and bool as int64, exactly: types with few operations."""
    tensor = as_tensor(array, f"{path}: {name}").cpu()
    if tensor.is_floating_point():
        return tensor.float() if tensor.element_size() == 1 else tensor
    return tensor.long()
