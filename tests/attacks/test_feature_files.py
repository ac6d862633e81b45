"""Feature files from a grammar of damages: any bytes are measured, or refused in a line that names the file.

Each test's docstring ends with the fault that would turn it red.
"""

import io
import itertools
import json
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from one_line import refusal
from safetensors.torch import save

from ncpipe.commands.metrics import print_metrics

FLIPS = 100  # in the short form, of each kind of file
MANY_FLIPS = 7000


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


TYPES = [
    "<f2",
    ">f4",
    "longdouble",
    "<i1",
    "<u2",
    ">u4",
    "<u8",
    "?",
    "<c8",
    "U3",
    "M8[s]",
    "V4",
    "i4,f4",
    "O",
]
SHAPES = [(), (0,), (12,), (11,), (0, 5), (12, 0), (12, 5), (12, 5, 1), (13, 5), (5, 12), (3, 5)]
NUMBERS = [np.nan, np.inf, -1, 0.5, 3, 2e9, 2.0**62, 1e308, 1e-320]


@pytest.mark.parametrize("name", list(arrays()))
def test_arrays_of_any_type_shape_and_number(name: str, tmp_path: Path) -> None:
    """Red: labels of 2e9, a matrix without columns, long doubles beyond float64, a scalar for a list."""
    for kind, shape in itertools.product(TYPES, SHAPES):
        measured(tmp_path, npz(**{name: np.zeros(shape, kind)}))
    for number, kind in itertools.product(NUMBERS, ("f2", "f8", "longdouble", "i8", "u8")):
        with np.errstate(all="ignore"):
            spoiled = arrays()[name].astype(kind)
            spoiled.flat[-1] = np.array(number).astype(kind)
        measured(tmp_path, npz(**{name: spoiled}))
    measured(tmp_path, npz(**{name: None}))


FLOATS = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float64"]
KINDS = [*FLOATS, "uint8", "uint16", "uint64", "int16", "int64", "bool", "complex64"]


@pytest.mark.parametrize("name", ["features", "labels", "weight", "test_labels"])
def test_tensors_of_any_type(name: str, tmp_path: Path) -> None:
    """Measured where the type can hold what they are. Red: `max` of uint64, sums of float8."""
    for kind in KINDS:
        own = torch.from_numpy(arrays()[name]).to(getattr(torch, kind))
        message = measured(tmp_path, tensors(**{name: own}), ".safetensors")
        whole = kind.startswith(("int", "uint", "bool"))
        if kind == "complex64":
            assert message is not None
        elif whole == name.endswith("labels") and kind != "bool":
            assert message is None, kind


def with_header(header: str, version: tuple[int, int]) -> bytes:
    """A member of an .npz with a header of one's own."""
    length = struct.pack("<H" if version == (1, 0) else "<I", len(header) + 1)
    return np.lib.format.MAGIC_PREFIX + bytes(version) + length + header.encode("latin1") + b"\n" + bytes(96)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 1000000000000000000, 9), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 5), }",
        "{'descr': '<q8', 'fortran_order': False, 'shape': (12,), }",
        "{'descr': [('a', '<f8'), ('a', '<f8')], 'fortran_order': False, 'shape': (6,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (12,), }",
        "[1, 2",
        "(" * 5000,
        "\x00\xff",
    ],
)
def test_headers_that_lie(header: str, tmp_path: Path) -> None:
    """Red: memory of the shape that is claimed is filled; NumPy's exception of the day passes through."""
    for version, name in itertools.product(((1, 0), (2, 0)), ("features", "labels")):
        assert measured(tmp_path, npz(**{name: with_header(header, version)})) is not None


CHANGES: list[dict[str, Any]] = [
    {"shape": [10**12]},
    {"shape": [2**62, 4]},
    {"shape": "x"},
    {"dtype": "F128"},
    {"dtype": "F8_E8M0"},
    {"data_offsets": [0, 10**15]},
    {"data_offsets": [8, 0]},
]


def test_safetensors_whose_header_lies(tmp_path: Path) -> None:
    """Red: a type that this PyTorch has not, offsets beyond the end."""
    content = tensors()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    own = [json.dumps(header | {"features": header["features"] | change}).encode() for change in CHANGES]
    for text in (*own, b"", b"[]", b"{", b"[" * 100_000, b"\xff" * 20):
        damaged = struct.pack("<Q", len(text)) + text + data
        assert measured(tmp_path, damaged, ".safetensors") is not None
    for size in (0, 2**31, 2**64 - 1):
        assert measured(tmp_path, struct.pack("<Q", size) + data, ".safetensors") is not None


def with_words(content: bytes, offset: int, value: int) -> bytes:
    """Every entry of a zip file's directory, and every member's head, with another 16-bit word."""
    damaged = bytearray(content)
    for magic, place in ((b"PK\x01\x02", offset + 2), (b"PK\x03\x04", offset)):
        start = damaged.find(magic)
        while start >= 0:
            damaged[start + place : start + place + 2] = struct.pack("<H", value)
            start = damaged.find(magic, start + 4)
    return bytes(damaged)


ARCHIVES: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "no zip": lambda: b"not a zip file" * 100,
    "an empty zip": lambda: b"PK\x05\x06" + bytes(18),
    "one array": lambda: npy(arrays()["features"]),
    "a pickle": lambda: b"\x80\x04\x95" + bytes(100),
    "text in members": lambda: npz(**dict.fromkeys(arrays(), b"1 2 3")),
    "encrypted": lambda: with_words(npz(), 6, 1),
    "unknown compression": lambda: with_words(npz(), 8, 99),
    "said to be LZMA": lambda: with_words(npz(), 8, 14),
    "in a folder": lambda: npz(**{"../features": arrays()["features"], "features": None}),
    "version 9": lambda: npz(features=np.lib.format.MAGIC_PREFIX + b"\x09\x09" + bytes(100)),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_that_are_none(name: str, tmp_path: Path) -> None:
    """Red: an exception of zipfile, of a decompressor, or bytes taken for an array."""
    assert measured(tmp_path, ARCHIVES[name]()) is not None


def test_names_of_members(tmp_path: Path) -> None:
    """They need no suffix. Red: bytes in place of an array; a control character in a message."""
    assert measured(tmp_path, npz(suffix="")) is None
    message = measured(tmp_path, npz(**{"labels": None, "labels\x1b[2J": np.zeros(3)}))
    assert message is not None
    assert "\\x1b" in message


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


def test_long_doubles_of_any_bits_are_one_line(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Red: NumPy warns of an invalid value before the line that names its row."""
    bits = np.random.default_rng(0).integers(0, 256, (12, 5 * np.dtype("longdouble").itemsize), dtype="u1")
    message = measured(tmp_path, npz(features=bits.view("longdouble")))
    assert message is not None
    assert "NaN or inf" in message
    assert not recwarn.list


def flipped(content: bytes, count: int, generator: random.Random) -> Iterator[bytes]:
    """The content with one or two bits turned over, in so many places; every second time among the first."""
    for turn in range(count):
        damaged = bytearray(content)
        for _ in range(1 + turn % 3 // 2):
            place = generator.randrange(len(damaged) if turn % 2 else len(damaged) // 4)
            damaged[place] ^= 1 << generator.randrange(8)
        yield bytes(damaged)


@pytest.mark.parametrize("count", [FLIPS, pytest.param(MANY_FLIPS, marks=pytest.mark.attack)])
@pytest.mark.parametrize("kind", ["stored", "deflated", "lzma", "safetensors"])
def test_flipped_bits_and_cut_ends(kind: str, count: int, tmp_path: Path) -> None:
    """Red: some bit of a zip file's directory, or of a header, ends in a traceback."""
    packed = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED, "lzma": zipfile.ZIP_LZMA}
    suffix = ".npz" if kind in packed else ".safetensors"
    content = npz(packed[kind]) if kind in packed else tensors()
    for damaged in flipped(content, count, random.Random(count)):
        measured(tmp_path, damaged, suffix)
    for length in range(0, len(content), len(content) // 25):
        assert measured(tmp_path, content[:length], suffix) is not None
