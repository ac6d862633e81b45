"""Named arrays from a file of the user's: .npz or .safetensors."""

import lzma
import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ncpipe.system.errors import InputError, cut, word
from ncpipe.system.machine import free_memory

MAGIC = np.lib.format.MAGIC_PREFIX
HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    (3, 0): np.lib.format.read_array_header_2_0,  # the same in UTF-8, of which no number's header has any
}
LARGEST = 2**63 - 1
REASON = 120  # characters of what a library says about a file
UNPACKED = 1e9  # bytes of an array from which on its compression is looked at
RATIO = 200  # of compression, which only an array of almost nothing but zeros has
# What readers raise on bytes that they did not expect; RuntimeError also for encrypted members, for unknown
# compression and for nesting.
DAMAGED = (
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, SyntaxError, OverflowError, RuntimeError),
    *(OSError, EOFError, MemoryError, struct.error, tokenize.TokenError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)


@dataclass(frozen=True)
class Names:
    """What arrays a file has to have and may have.

    aliases: other names, and which of these they stand for. passed_over: beginnings of names that are not
    missed where nothing reads them. labels: of each array of samples, the name of its labels, one a sample.
    check_labels: raises InputError if the array `labels` is wrong, before any samples are read.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    aliases: Mapping[str, str]
    passed_over: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    check_labels: Callable[[Tensor], object] | None = None

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
    _require(path, stored, ignored, names)
    return stored, ignored


def named_tensors(
    where: object, stored: Mapping[str, Any], names: Names
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the same of arrays that are in no file. where: what messages call them."""
    wanted, ignored = _sort_names(stored, names)
    tensors = {
        name: _taken(where, name, array)
        if isinstance(array := stored[key], Tensor)
        else _tensor(where, name, np.asarray(array))
        for name, key in wanted.items()
    }
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
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted, ignored = _sort_names(members, names)
            _check_size(path, sum(members[key].file_size for key in wanted.values()))
            headers = {name: _read_header(archive, members[key]) for name, key in wanted.items()}
            _check_headers(path, headers, names)
            _check_size(path, sum(header.converted for header in headers.values()))
            for name, key in wanted.items():
                _check_compression(path, name, members[key])
            read: dict[str, Tensor] = {}
            for name in sorted(wanted, key=lambda name: name not in names.labels.values()):  # labels first
                read[name] = _tensor(path, name, _read_npy(archive, members[wanted[name]]))
                if name == "labels" and names.check_labels is not None:
                    _check_labels(path, read[name], names.check_labels)
            return {name: read[name] for name in wanted}, ignored
    except InputError:
        raise
    except zipfile.BadZipFile as error:
        if _begins_with(path, MAGIC):
            raise InputError(f"{path}: is one array, not an .npz of named arrays (numpy.savez)") from None
        raise _damaged(path, error) from None
    except DAMAGED as error:
        raise _damaged(path, error) from None


def _begins_with(path: Path, prefix: bytes) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(prefix)) == prefix


@dataclass(frozen=True)
class Header:
    """What the head of an array in an .npz says."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def converted(self) -> int:
        """Bytes of the tensor that it becomes."""
        is_float = self.dtype.kind == "f" and self.dtype.itemsize <= 8
        return math.prod(self.shape) * (self.dtype.itemsize if is_float else 8)


def _read_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Header:
    """Read the header of an array, and check that it fits the bytes of the member."""
    with archive.open(member) as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a header of Python 2 is read all the same
        version = np.lib.format.read_magic(stream)
        if version not in HEADERS:
            raise ValueError(f"{member.filename}: version {version} of the format is unknown")
        shape, _, dtype = HEADERS[version](stream)
        if dtype.hasobject:
            raise InputError(f"{archive.filename}: holds Python objects; save plain arrays of numbers")
        if any(type(size) is not int or size < 0 for size in shape):
            raise ValueError(f"{member.filename}: the shape {shape} is none")
        left = member.file_size - stream.tell()
        if math.prod(shape) * dtype.itemsize != left:
            raise ValueError(f"{member.filename}: shape {shape} of {dtype} is not what {left} bytes hold")
        return Header(tuple(shape), dtype)


def _check_headers(path: Path, headers: Mapping[str, Header], names: Names) -> None:
    """Raise InputError if types and shapes tell that arrays cannot belong together."""
    for name, header in headers.items():
        _check_kind(path, name, header.dtype)
    for samples, labels in names.labels.items():
        if labels not in headers:
            continue
        shape, dtype = headers[labels].shape, headers[labels].dtype
        if len(shape) != 1 or 0 in shape:
            raise InputError(f"{path}: {labels} has shape {shape}; expected (N,) with N > 0")
        if dtype.kind == "f":
            raise InputError(
                f"{path}: {labels} is of type {dtype}; expected whole numbers, one for each sample"
            )
        first = headers[samples].shape[:1] if samples in headers else ()
        if first and first != shape:
            raise InputError(
                f"{path}: {samples} has {first[0]} samples and {labels} {shape[0]}; they belong together"
            )


def _check_compression(path: Path, name: str, member: zipfile.ZipInfo) -> None:
    """Raise InputError for an array that is a few bytes in its file and fills the memory when it is read."""
    if member.file_size > UNPACKED and member.file_size > RATIO * member.compress_size:
        raise InputError(
            f"{path}: {name} unpacks from {member.compress_size / 1e6:.3g} MB to "
            f"{member.file_size / 1e9:.3g} GB, so it holds little but zeros; if that is meant, write it "
            "uncompressed (numpy.savez)"
        )


def _check_labels(path: Path, labels: Tensor, check: Callable[[Tensor], object]) -> None:
    try:
        check(labels)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _read_npy(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Read one array, whose header is known to be right."""
    with archive.open(member) as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a header of Python 2 is read all the same
        array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
        return array


def _read_safetensors(path: Path, names: Names) -> tuple[dict[str, Tensor], list[str]]:
    try:
        with safe_open(path, framework="pt") as file:
            wanted, ignored = _sort_names(file.keys(), names)
            _check_size(path, sum(_stored_bytes(file.get_slice(key)) for key in wanted.values()))
            read = {name: file.get_tensor(key) for name, key in wanted.items()}
            return {name: _taken(path, name, tensor) for name, tensor in read.items()}, ignored
    except InputError:
        raise
    except (SafetensorError, *DAMAGED) as error:
        raise _damaged(path, error) from None


def _stored_bytes(part: Any) -> int:
    """Return the bytes of a tensor in a file, at most."""
    return 8 * math.prod(part.get_shape())


def _check_size(path: Path, needed: int) -> None:
    """Raise InputError if arrays of so many bytes do not fit into memory."""
    if needed > (free := free_memory()):
        raise InputError(
            f"{path}: its arrays take {needed / 1e9:.3g} GB of memory, and {free / 1e9:.3g} GB are free"
        )


def _damaged(path: Path, error: Exception) -> InputError:
    kind = path.suffix.lower()
    hint = "; numpy.savez writes one" if kind == ".npz" else ""
    reason = " ".join(str(error).split()) or type(error).__name__
    return InputError(cut(f"{path}: damaged, or no {kind} file ({cut(reason, REASON)}){hint}"))


def _sort_names(keys: Iterable[str], names: Names) -> tuple[dict[str, str], list[str]]:
    """Name -> key of the arrays to read, in our order; and the other keys."""
    found = {names.aliases.get(key, key): key for key in keys}
    known = {name: found.pop(name) for name in names.known if name in found}
    return known, sorted(word(name) for name in found if not name.startswith(names.passed_over))


def _check_kind(path: object, name: str, dtype: np.dtype) -> None:
    if dtype.kind not in "fiub":
        raise InputError(f"{path}: {name} is of type {dtype}; expected numbers")


def _tensor(path: object, name: str, array: np.ndarray) -> Tensor:
    _check_kind(path, name, array.dtype)
    if array.dtype.kind == "u" and array.size and int(array.max()) > LARGEST:
        raise InputError(f"{path}: {name} has a number above {LARGEST}, the largest of int64")
    exact = array.dtype.kind == "f" and array.dtype.itemsize <= 8  # torch has no long double
    native = array.dtype.newbyteorder("=") if exact else np.float64 if array.dtype.kind == "f" else np.int64
    with np.errstate(over="ignore", invalid="ignore"):  # inf or NaN, which is found with its row
        return torch.from_numpy(np.ascontiguousarray(array, dtype=native))


def _taken(path: object, name: str, tensor: Tensor) -> Tensor:
    """Return float8 as float32, whole numbers and bool as int64, exactly: types with few operations."""
    if tensor.is_complex():
        raise InputError(f"{path}: {name} is of type {_type(tensor)}; expected numbers")
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        return tensor.float() if tensor.element_size() == 1 else tensor
    if tensor.dtype == torch.uint64 and tensor.numel() and int(tensor.view(torch.int64).min()) < 0:
        raise InputError(f"{path}: {name} has a number above {LARGEST}, the largest of int64")
    return tensor.long()


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
