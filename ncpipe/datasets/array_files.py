"""Named arrays from a file of the user's: .npz or .safetensors."""

import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ncpipe.errors import InputError


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
    """Tensors by name from an .npz or .safetensors file, and the names that nothing reads.

    Raises InputError: no such file, another extension, a damaged file, Python objects in place of numbers, a
    missing array.
    """
    readers = {".npz": _read_npz, ".safetensors": _read_safetensors}
    if path.suffix not in readers:
        raise InputError(f"{path}: unknown extension {path.suffix!r}; give an .npz or a .safetensors file")
    if not path.is_file():
        raise InputError(f"{path}: {'not a file' if path.exists() else 'not found'}")
    stored, ignored = readers[path.suffix](path, names)
    for name in names.required:
        if name not in stored:
            raise InputError(f"{path}: has no {name!r}; it has {', '.join([*stored, *ignored]) or 'nothing'}")
    return stored, ignored


def _read_npz(path: Path, names: Names) -> tuple[dict[str, Tensor], list[str]]:
    try:
        with path.open("rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise InputError(f"{path}: is one array, not an .npz of named arrays (numpy.savez)")
            wanted, ignored = _sort_names(file.files, names)
            return {name: _tensor(path, name, file[key]) for name, key in wanted.items()}, ignored
    except InputError:
        raise
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        if "allow_pickle" in str(error):  # numpy's guess of what is no array file, and its advice
            if zipfile.is_zipfile(path):
                raise InputError(f"{path}: holds Python objects; save plain arrays of numbers") from None
            raise InputError(f"{path}: damaged, or no .npz file; numpy.savez writes one") from None
        raise InputError(f"{path}: damaged, or no .npz file ({_line(error)})") from None


def _read_safetensors(path: Path, names: Names) -> tuple[dict[str, Tensor], list[str]]:
    try:
        with safe_open(path, framework="pt") as file:
            wanted, ignored = _sort_names(file.keys(), names)
            return {name: file.get_tensor(key) for name, key in wanted.items()}, ignored
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: damaged, or no .safetensors file ({_line(error)})") from None


def _sort_names(keys: Iterable[str], names: Names) -> tuple[dict[str, str], list[str]]:
    """Name -> key of the arrays to read, in our order; and the other keys."""
    found = {names.aliases.get(key, key): key for key in keys}
    known = {name: found.pop(name) for name in names.known if name in found}
    return known, sorted(name for name in found if not name.startswith(names.passed_over))


def _tensor(path: Path, name: str, array: np.ndarray) -> Tensor:
    if array.dtype.kind not in "fiub":
        raise InputError(f"{path}: {name} is of type {array.dtype}; expected numbers")
    exact = array.dtype.kind == "f" and array.dtype.itemsize <= 8  # torch has no long double
    native = array.dtype.newbyteorder("=") if exact else np.float64 if array.dtype.kind == "f" else np.int64
    return torch.from_numpy(np.ascontiguousarray(array, dtype=native))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
