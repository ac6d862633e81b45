"""Feature files of any arrays, of other kinds and cut short: measured, or refused in a line that names them.

Each test's docstring ends with the fault that would turn it red.
"""

import io
import itertools
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from one_line import refusal
from safetensors.torch import save

from ncpipe.commands.metrics import print_metrics


def arrays() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 4)
    return {
        "features": generator.normal(size=(12, 5)) + 3 * np.eye(3, 5)[labels],
        "labels": labels,
        "weight": generator.normal(size=(3, 5)),
        "bias": np.zeros(3),
        "test_features": generator.normal(size=(12, 5)),
        "test_labels": labels.copy(),
    }


def npz(compression: int = zipfile.ZIP_STORED, suffix: str = ".npy", **more: Any) -> bytes:
    """An .npz file of the arrays; of `more`, bytes are a member as they are."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        for name, value in (arrays() | more).items():
            if value is not None:
                archive.writestr(f"{name}{suffix}", value if isinstance(value, bytes) else npy(value))
    return content.getvalue()


def npy(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=True)
    return content.getvalue()


def tensors(**more: torch.Tensor) -> bytes:
    return save({name: torch.from_numpy(array) for name, array in arrays().items()} | more)


def measured(tmp_path: Path, content: bytes, suffix: str = ".npz") -> str | None:
    """What `ncpipe metrics` says of a file that it does not measure."""
    path = tmp_path / f"h{suffix}"
    path.write_bytes(content)
    return refusal(lambda: print_metrics(path, as_csv=True), f"{path}: ")


TYPES = ["<f2", ">f4", "longdouble", "<i1", ">u4", "<u8", "?", "<c8", "U3", "M8[s]", "i4,f4", "O"]
SHAPES = [(), (0,), (12,), (11,), (0, 5), (12, 0), (12, 5), (12, 5, 1), (13, 5), (5, 12), (3, 5)]
NUMBERS = [np.nan, np.inf, -1, 0.5, 3, 2e9, 2.0**62, 1e308, 1e-320]


@pytest.mark.parametrize("name", list(arrays()))
def test_arrays_of_any_type_shape_and_number(name: str, tmp_path: Path) -> None:
    """Red: labels of 2e9, a matrix without columns, a scalar for a list."""
    for kind, shape in itertools.product(TYPES, SHAPES):
        measured(tmp_path, npz(**{name: np.zeros(shape, kind)}))
    for number, kind in itertools.product(NUMBERS, ("f2", "f8", "i8")):
        with np.errstate(all="ignore"):
            spoiled = arrays()[name].astype(kind)
            spoiled.flat[-1] = np.array(number).astype(kind)
        measured(tmp_path, npz(**{name: spoiled}))
    measured(tmp_path, npz(**{name: None}))


FLOATS = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float64"]
KINDS = [*FLOATS, "uint8", "uint16", "uint64", "int16", "int64", "bool", "complex64"]


@pytest.mark.parametrize("name", ["features", "labels", "weight", "test_labels"])
def test_tensors_of_any_type(name: str, tmp_path: Path) -> None:
    """Measured where the type can hold what they are. Red: sums of float8."""
    for kind in KINDS:
        tensor = torch.from_numpy(arrays()[name]).to(getattr(torch, kind))
        message = measured(tmp_path, tensors(**{name: tensor}), ".safetensors")
        whole = kind.startswith(("int", "uint", "bool"))
        if kind == "complex64":
            assert message is not None
        elif whole == name.endswith("labels") and kind != "bool":
            assert message is None, kind


ARCHIVES: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "no zip": lambda: b"not a zip file" * 100,
    "an empty zip": lambda: b"PK\x05\x06" + bytes(18),
    "one array": lambda: npy(arrays()["features"]),
    "a pickle": lambda: b"\x80\x04\x95" + bytes(100),
    "text in members": lambda: npz(**dict.fromkeys(arrays(), b"1 2 3")),
}


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_numbers_beyond_int64_are_refused(suffix: str, tmp_path: Path) -> None:
    """Red: a number that wraps around, and is measured as a negative one."""
    large = np.full(arrays()["features"].shape, 2**63 + 1, dtype=np.uint64)
    content = npz(features=large) if suffix == ".npz" else tensors(features=torch.from_numpy(large))
    assert "above 9223372036854775807" in str(measured(tmp_path, content, suffix))


def encrypted(content: bytes) -> bytes:
    """The archive with the flag of encryption, in each member's head and in the directory's entry."""
    for head, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        parts = content.split(head)
        place = flags - len(head)
        rest = [part[:place] + bytes([part[place] | 1]) + part[place + 1 :] for part in parts[1:]]
        content = head.join([parts[0], *rest])
    return content


def test_an_encrypted_archive_is_refused_in_a_line(tmp_path: Path) -> None:
    """Red: Python's RuntimeError."""
    assert "encrypted" in str(measured(tmp_path, encrypted(npz())))


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_that_are_none(name: str, tmp_path: Path) -> None:
    """Red: an exception of zipfile, of a decompressor, bytes taken for an array, or advice to unpickle."""
    message = measured(tmp_path, ARCHIVES[name]())
    assert message is not None
    assert "pickle" not in message


def test_names_of_members(tmp_path: Path) -> None:
    """They need no suffix. Red: bytes in place of an array."""
    assert measured(tmp_path, npz(suffix="")) is None


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_what_does_not_fit_into_memory_is_not_read(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: it is unpacked to find out."""
    monkeypatch.setattr("ncpipe.datasets.array_files.free_memory", lambda: 500)
    content = npz(zipfile.ZIP_DEFLATED) if suffix == ".npz" else tensors()
    message = measured(tmp_path, content, suffix)
    assert message is not None
    assert "of memory" in message


@pytest.mark.parametrize("kind", ["stored", "deflated", "safetensors"])
def test_files_that_are_cut_short(kind: str, tmp_path: Path) -> None:
    """Red: an exception of zipfile's or of a decompressor."""
    packed = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED}
    content, suffix = (npz(packed[kind]), ".npz") if kind in packed else (tensors(), ".safetensors")
    for length in range(0, len(content), len(content) // 25):
        assert measured(tmp_path, content[:length], suffix) is not None
