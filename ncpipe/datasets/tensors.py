"""Take arrays of any library as tensors of real numbers, or refuse them by name."""

import numbers
import warnings
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.masked import MaskedTensor

from ncpipe.system.errors import InputError, shown

Array: TypeAlias = Tensor | np.ndarray | Sequence[Any]
LARGEST = 2**63 - 1
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # PyTorch finds no largest one of these
TAKEN_AS_THEY_ARE = tuple(np.dtype(name) for name in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "?"))
PLAIN = (Tensor, nn.Parameter)
WHOLE = (numbers.Integral, np.bool_)
REAL = (numbers.Real, Decimal, np.bool_)


def as_tensor(array: Array, name: str) -> Tensor:
    """Return an array of real numbers, or nested lists, as a tensor, which shares its memory where possible.

    Arrays of objects, as pandas has them, are taken where each entry is a number. Types that PyTorch does not
    have (long double, larger unsigned integers, the other order of bytes) become float64 or int64. A tensor
    leaves its graph. Raises InputError, which begins with the argument's name, on what would be dropped or
    garbled: masks, missing values, sparse and nested tensors, lists of batches, text, dates, complex numbers.
    """
    if isinstance(array, Tensor):
        tensor = _plain(array, name)
        return tensor.cpu() if tensor.device.type == "mps" else tensor  # which has no float64
    if isinstance(array, np.ma.MaskedArray):
        if np.ma.is_masked(array):
            raise InputError(f"{name}: a masked array; give the samples that are kept, without a mask")
        array = array.data
    if isinstance(array, list | tuple) and any(map(_is_array, array)):
        return _stacked(array, name)
    if hasattr(array, "tocsr"):  # of SciPy
        raise InputError(f"{name}: a sparse {type(array).__name__}; give a dense array")
    try:
        values = np.asarray(array)
    except (ValueError, TypeError, RuntimeError) as error:
        problem = f"a {type(array).__name__} whose rows make no array"
        raise InputError(f"{name}: {problem}; give an array or a tensor") from error
    if values.dtype.kind == "O":
        values = _numbers(values, array, name)
    if values.dtype.kind not in "fiub":
        text = values.dtype.kind in "UST"
        raise _no_numbers(name, "text" if text else f"an array of type {values.dtype}", text)
    kind: np.dtype = values.dtype
    if kind not in TAKEN_AS_THEY_ARE:
        kind = np.dtype(np.float64 if kind.kind == "f" else np.int64)
    if values.dtype.kind == "u" and values.size and int(values.max()) > LARGEST:
        raise _too_large(name)
    with np.errstate(over="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nothing writes to it
        return torch.from_numpy(np.ascontiguousarray(values, kind)).view(values.shape)


def _plain(tensor: Tensor, name: str) -> Tensor:
    """Return a dense tensor of real numbers without its graph."""
    refused = {
        "a nested tensor; pad it": tensor.is_nested,
        "a masked tensor; give the samples that are kept, without a mask": isinstance(tensor, MaskedTensor),
        "a distributed tensor; give its full_tensor()": hasattr(tensor, "full_tensor"),
        "a quantised tensor; give its dequantize()": tensor.is_quantized,
        "a sparse tensor; give its to_dense()": not tensor.is_nested and tensor.layout != torch.strided,
        "a tensor on the device meta, which holds no numbers": tensor.is_meta and type(tensor) in PLAIN,
    }
    for problem, applies in refused.items():
        if applies:
            raise InputError(f"{name}: {problem}")
    if tensor.is_complex():
        raise _no_numbers(name, f"a tensor of type {str(tensor.dtype).removeprefix('torch.')}")
    if tensor.dtype not in UNSIGNED:
        return tensor.detach()
    whole = tensor.detach().long()
    if tensor.dtype == torch.uint64 and bool((whole < 0).any()):
        raise _too_large(name)
    return whole


def _is_array(value: object) -> bool:
    return isinstance(value, Tensor | np.ndarray) or (
        hasattr(value, "__array__") and not isinstance(value, np.generic)
    )


def _stacked(rows: Sequence[Any], name: str) -> Tensor:
    """Return a list of rows as one tensor; batches are no rows."""
    tensors = [as_tensor(row, name) for row in rows]
    shapes = list(dict.fromkeys(tuple(row.shape) for row in tensors))
    if len(shapes) == 1 and len(shapes[0]) < 2:
        try:
            return torch.stack(tensors)
        except RuntimeError as error:  # on several devices
            raise InputError(f"{name}: {str(error).splitlines()[0]}") from error
    listed = " and ".join(map(str, shapes[:2]))
    raise InputError(
        f"{name}: a {type(rows).__name__} whose rows make no array, their shapes are {listed}; concatenate "
        "batches, torch.cat or numpy.concatenate"
    )


def _numbers(values: np.ndarray, array: Any, name: str) -> np.ndarray:
    """Return an array of Python objects that are all real numbers as float64, or int64 of whole ones."""
    if values.ndim == 0:
        raise InputError(f"{name}: {type(array).__name__} is no array; give an array, a tensor or lists")
    kinds = {type(value): value for value in values.ravel()[::-1]}  # with the first value of each
    for kind, value in kinds.items():
        if not issubclass(kind, REAL):
            missing = value is None or type(value).__name__ in ("NAType", "NaTType")
            content = f"{shown(value)}, a missing value," if missing else shown(value)
            raise _no_numbers(name, f"an array with {content}", isinstance(value, str | bytes))
    try:
        return values.astype(np.int64 if all(issubclass(kind, WHOLE) for kind in kinds) else np.float64)
    except OverflowError:
        raise _too_large(name) from None


def _no_numbers(name: str, content: str, text: bool = False) -> InputError:
    of_classes = text and name.endswith("labels")
    hint = "; number the classes, as numpy.unique(labels, return_inverse=True)[1] does" if of_classes else ""
    return InputError(f"{name}: {content} holds no real numbers{hint}")


def _too_large(name: str) -> InputError:
    return InputError(f"{name} has a number above {LARGEST}, the largest of int64")
