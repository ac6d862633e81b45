"""Command metrics: every collapse metric of features in one file. No stage; it reads no params.yaml."""

import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ncpipe.console import say
from ncpipe.errors import InputError
from ncpipe.metrics.checks import check_arrays, count_classes
from ncpipe.metrics.report import print_measurements, write_csv, write_json
from ncpipe.metrics.table import TEST, TRAIN, Measurement, measure_arrays

REQUIRED = ("features", "labels")
OPTIONAL = ("weight", "bias", "test_features", "test_labels")
# How the pipeline's own files below data/features call them.
PIPELINE = {f"{s}.{kind}": f"{p}{kind}" for s, p in (("train", ""), ("test", "test_")) for kind in REQUIRED}
PIPELINE_ONLY = ("penalty.", "layers/")  # beginnings of names


def print_metrics(path: Path, form: Literal["table", "json", "csv"]) -> None:
    """Measure the arrays of an .npz or .safetensors file; print to standard output, warnings to error."""
    arrays, ignored = read_arrays(path)
    try:
        rows = _measure(arrays)
        warnings = _warnings(arrays)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if ignored:
        known = ", ".join(REQUIRED + OPTIONAL)
        warnings.insert(0, f"not read: {', '.join(ignored)} (known: {known})")
    for warning in warnings:
        say(f"ncpipe: {path}: {warning}")
    if form == "csv":
        write_csv(rows)
    elif form == "json":
        write_json(rows, _facts(arrays) | {"warnings": warnings})
    else:
        print_measurements(rows)


def _measure(arrays: dict[str, Tensor]) -> list[Measurement]:
    weight, bias, features, labels = (arrays.get(name) for name in OPTIONAL)
    widths = [tuple(tensor.shape[1:]) for tensor in (arrays["features"], features) if tensor is not None]
    if len(set(widths)) > 1:
        raise InputError(f"features and test_features differ in width: {widths[0]} and {widths[1]}")
    return measure_arrays(arrays["features"], arrays["labels"], weight, bias, features, labels)


def _warnings(arrays: dict[str, Tensor]) -> list[str]:
    classifier = arrays.get("weight"), arrays.get("bias")
    classes = _count_classes(arrays)
    found = check_arrays(arrays["features"], arrays["labels"], *classifier, classes, TRAIN)
    if "test_features" in arrays:
        found += check_arrays(arrays["test_features"], arrays["test_labels"], *classifier, classes, TEST)
    return found


def _count_classes(arrays: dict[str, Tensor]) -> int:
    return len(arrays["weight"]) if "weight" in arrays else count_classes(arrays["labels"])


def _facts(arrays: dict[str, Tensor]) -> dict[str, object]:
    samples, width = arrays["features"].shape
    return {"samples": samples, "width": width, "classes": _count_classes(arrays)}


def read_arrays(path: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors by name from an .npz or .safetensors file, and the names that nothing reads.

    Raises InputError: no such file, another extension, a damaged file, Python objects in place of numbers, a
    missing array.
    """
    readers = {".npz": _read_npz, ".safetensors": _read_safetensors}
    if path.suffix not in readers:
        raise InputError(f"{path}: unknown extension {path.suffix!r}; give an .npz or a .safetensors file")
    if not path.is_file():
        raise InputError(f"{path}: {'not a file' if path.exists() else 'not found'}")
    stored, ignored = readers[path.suffix](path)
    for name in REQUIRED:
        if name not in stored:
            raise InputError(f"{path}: has no {name!r}; it has {', '.join([*stored, *ignored]) or 'nothing'}")
    return stored, ignored


def _read_npz(path: Path) -> tuple[dict[str, Tensor], list[str]]:
    try:
        with path.open("rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise InputError(f"{path}: is one array, not an .npz of named arrays (numpy.savez)")
            wanted, ignored = _sort_names(file.files)
            return {name: _tensor(path, name, file[key]) for name, key in wanted.items()}, ignored
    except InputError:
        raise
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        if "allow_pickle" in str(error):  # numpy's guess of what is no array file, and its advice
            if zipfile.is_zipfile(path):
                raise InputError(f"{path}: holds Python objects; save plain arrays of numbers") from None
            raise InputError(f"{path}: damaged, or no .npz file; numpy.savez writes one") from None
        raise InputError(f"{path}: damaged, or no .npz file ({_line(error)})") from None


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], list[str]]:
    try:
        with safe_open(path, framework="pt") as file:
            wanted, ignored = _sort_names(file.keys())
            return {name: file.get_tensor(key) for name, key in wanted.items()}, ignored
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: damaged, or no .safetensors file ({_line(error)})") from None


def _sort_names(keys: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Name -> key of the arrays to read, in our order; and the other keys."""
    found = {PIPELINE.get(key, key): key for key in keys}
    known = {name: found.pop(name) for name in REQUIRED + OPTIONAL if name in found}
    return known, sorted(name for name in found if not name.startswith(PIPELINE_ONLY))


def _tensor(path: Path, name: str, array: np.ndarray) -> Tensor:
    if array.dtype.kind not in "fiub":
        raise InputError(f"{path}: {name} is of type {array.dtype}; expected numbers")
    exact = array.dtype.kind == "f" and array.dtype.itemsize <= 8  # torch has no long double
    native = array.dtype.newbyteorder("=") if exact else np.float64 if array.dtype.kind == "f" else np.int64
    return torch.from_numpy(np.ascontiguousarray(array, dtype=native))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
