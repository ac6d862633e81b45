"""Feature files from a grammar of damages: each is measured, or refused in one line that names the file.

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
from safetensors.numpy import save
from safetensors.torch import save as save_tensors

from ncpipe.commands.metrics import print_metrics
from ncpipe.datasets import array_files

FLIPS = 150  # in the short form, of each kind of file
MANY_FLIPS = 20_000


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


def npz(compression: int = zipfile.ZIP_STORED, **more: Any) -> bytes:
    """An .npz file of the arrays; of `more`, bytes are a member as they are."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        for name, value in (arrays() | more).items():
            if value is not None:
                archive.writestr(f"{name}.npy", value if isinstance(value, bytes) else npy(value))
    return content.getvalue()


def npy(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, array, allow_pickle=True)
    return content.getvalue()


def with_header(header: str, version: tuple[int, int] = (1, 0), data: bytes = bytes(96)) -> bytes:
    """A member of an .npz with a header of one's own."""
    length = struct.pack("<H" if version == (1, 0) else "<I", len(header) + 1)
    return np.lib.format.MAGIC_PREFIX + bytes(version) + length + header.encode("latin1") + b"\n" + data


def flipped(content: bytes, count: int, seed: int) -> Iterator[bytes]:
    """The content with a single bit turned over, in so many places."""
    generator = random.Random(seed)
    for _ in range(count):
        damaged = bytearray(content)
        damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        yield bytes(damaged)


def measured(tmp_path: Path, content: bytes, suffix: str = ".npz") -> str | None:
    """What `ncpipe metrics` says of a file that it does not measure."""
    path = tmp_path / f"h{suffix}"
    path.write_bytes(content)
    return refusal(lambda: print_metrics(path, "csv"), f"{path}: ")


TYPES = ["<f2", ">f4", "<f8", "longdouble", "<i1", "<u1", "<u2", ">u4", "<u8", "<i8", "?", "<c8", "U3", "S2",
         "M8[s]", "m8[ns]", "V4", "i4,f4", "O"]  # fmt: skip
SHAPES = [
    (),
    (0,),
    (1,),
    (12,),
    (11,),
    (0, 5),
    (12, 0),
    (12, 5),
    (12, 5, 1),
    (13, 5),
    (5, 12),
    (12, 1),
    (3, 5),
]
NUMBERS = [np.nan, np.inf, -np.inf, -1, 0.5, 3, 2e9, 2.0**62, 1e308, 1e-320]


@pytest.mark.parametrize("name", list(arrays()))
def test_arrays_of_any_type_shape_and_number(name: str, tmp_path: Path) -> None:
    """Red: labels of 2e9, a matrix without columns, long doubles beyond float64, a scalar for a list."""
    for kind, shape in itertools.product(TYPES, SHAPES):
        measured(tmp_path, npz(**{name: np.zeros(shape, kind)}))
    for number in NUMBERS:
        for kind in ("f2", "f8", "longdouble", "i8", "u8"):
            own = arrays()[name]
            with np.errstate(all="ignore"):
                spoiled = own.astype(kind)
                spoiled.flat[-1] = np.array(number).astype(kind)
            measured(tmp_path, npz(**{name: spoiled}))
    measured(tmp_path, npz(**{name: None}))


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 1000000000000000000, 9), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 5), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (True, 5), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 1000000000000), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': 12, }",
        "{'descr': '<f8', 'fortran_order': 3, 'shape': (12,), }",
        "{'descr': '<q8', 'fortran_order': False, 'shape': (12,), }",
        "{'descr': [('a', '<f8'), ('a', '<f8')], 'fortran_order': False, 'shape': (6,), }",
        "{'descr': 'V0', 'fortran_order': False, 'shape': (1000000000000,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (12,), }",
        "{'shape': (12,), }",
        "[1, 2",
        "(" * 5000,
        "{'descr': '<f8', 'fortran_order': False, 'shape': (12,), 'x': " + "9" * 5000 + "}",
        "\x00\xff",
        " " * 20_000,
    ],
)  # fmt: skip
def test_headers_that_lie(header: str, tmp_path: Path) -> None:
    """Red: memory of the shape that is claimed is asked for; numpy's exception of the day passes through."""
    for version, name in itertools.product(((1, 0), (2, 0), (3, 0)), ("features", "labels", "weight")):
        if len(header) < 2**16 - 1:
            assert measured(tmp_path, npz(**{name: with_header(header, version)})) is not None


def lzma_damaged() -> bytes:
    content = bytearray(npz(zipfile.ZIP_LZMA))
    for place in range(60, 200):
        content[place] ^= 0x55
    return bytes(content)


def with_words(content: bytes, offset: int, value: int) -> bytes:
    """Every entry of a zip file's directory, and every member's head, with another 16-bit word."""
    damaged = bytearray(content)
    for magic, place in ((b"PK\x01\x02", offset + 2), (b"PK\x03\x04", offset)):
        start = damaged.find(magic)
        while start >= 0:
            damaged[start + place : start + place + 2] = struct.pack("<H", value)
            start = damaged.find(magic, start + 4)
    return bytes(damaged)


def without_suffix() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, array in arrays().items():
            archive.writestr(name, npy(array))
    return content.getvalue()


def plain_text() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in arrays():
            archive.writestr(name, "1 2 3")
    return content.getvalue()


ARCHIVES: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "a byte": lambda: b"P",
    "no zip": lambda: b"not a zip file" * 100,
    "an empty zip": lambda: b"PK\x05\x06" + bytes(18),
    "one array": lambda: npy(arrays()["features"]),
    "a pickle": lambda: b"\x80\x04\x95" + bytes(100),
    "text in members": plain_text,
    "encrypted": lambda: with_words(npz(), 6, 1),
    "unknown compression": lambda: with_words(npz(), 8, 99),
    "said to be LZMA": lambda: with_words(npz(), 8, 14),
    "said to be bzip2": lambda: with_words(npz(), 8, 12),
    "LZMA, damaged": lzma_damaged,
    "in a folder": lambda: npz(**{"../features": arrays()["features"], "features": None}),
    "version 9": lambda: npz(features=np.lib.format.MAGIC_PREFIX + b"\x09\x09" + bytes(100)),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_that_are_none(name: str, tmp_path: Path) -> None:
    """Red: an exception of zipfile, of a decompressor, or bytes taken for an array."""
    assert measured(tmp_path, ARCHIVES[name]()) is not None


def test_names_that_no_terminal_shows_are_written_out(tmp_path: Path) -> None:
    """Red: a control character in a message."""
    message = measured(tmp_path, npz(**{"labels": None, "labels\x1b[2J": np.zeros(3)}))
    assert message is not None
    assert "\\x1b" in message


def test_members_need_no_suffix(tmp_path: Path) -> None:
    """Arrays all the same. Red: bytes in place of an array."""
    assert measured(tmp_path, without_suffix()) is None


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_bomb_is_refused_before_it_is_unpacked(compression: int, tmp_path: Path) -> None:
    """A member that says it takes more than the machine has. Red: it is unpacked to find out."""
    content = bytearray(npz(compression))
    start = content.find(b"PK\x01\x02")
    content[start + 24 : start + 28] = struct.pack("<I", 2**32 - 2)
    monkeypatch = pytest.MonkeyPatch()
    with monkeypatch.context() as patch:
        patch.setattr("ncpipe.datasets.array_files.free_memory", lambda: 2**32 - 3)
        message = measured(tmp_path, bytes(content))
    assert message is not None
    assert "of memory" in message


N = 1_200_000
ZEROS = npy(np.zeros((N, 5), "u1"))


@pytest.mark.parametrize(
    ("labels", "unpacked", "words"),
    [
        (np.zeros(11, "i8"), 1e9, f"features has {N} samples and labels 11; they belong together"),
        (np.zeros((N, 1), "u1"), 1e9, f"labels has shape ({N}, 1); expected (N,) with N > 0"),
        (np.zeros(N, "f4"), 1e9, "labels is of type float32; expected whole numbers"),
        (np.zeros(N, "u1"), 1e9, "labels: 1 class; collapse needs at least 2"),
        (np.arange(N, dtype="u4") % 3, 5e6, "so it holds little but zeros; if that is meant, write it"),
    ],
)
def test_an_archive_of_zeros_is_refused_before_its_samples_are_read(
    labels: np.ndarray, unpacked: float, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: features are unpacked, to eight times their size, before their labels are looked at."""
    read: list[str] = []
    before = array_files._read_npy
    monkeypatch.setattr(
        array_files, "_read_npy", lambda file, member: [read.append(member.filename), before(file, member)][1]
    )
    monkeypatch.setattr(array_files, "UNPACKED", unpacked)
    others = dict.fromkeys(("weight", "bias", "test_features", "test_labels"))
    message = measured(tmp_path, npz(zipfile.ZIP_DEFLATED, features=ZEROS, labels=labels, **others))
    assert message is not None
    assert words in message
    assert "features.npy" not in read


def test_whole_numbers_are_held_against_memory_as_they_become(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte becomes eight. Red: the size in the file is compared with the memory that is free."""
    monkeypatch.setattr(array_files, "free_memory", lambda: 500)
    others = dict.fromkeys(("weight", "bias", "test_features", "test_labels"))
    message = measured(tmp_path, npz(features=np.zeros((12, 5), "u1"), **others))
    assert message is not None
    assert "of memory" in message


def test_long_doubles_of_any_bits_are_one_line(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Red: NumPy warns of an invalid value before the line that names its row."""
    bits = np.random.default_rng(0).integers(0, 256, (12, 5 * np.dtype("longdouble").itemsize), dtype="u1")
    message = measured(tmp_path, npz(features=bits.view("longdouble")))
    assert message is not None
    assert "NaN or inf" in message
    assert not recwarn.list


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_flipped_bits_and_cut_ends_of_npz(compression: int, tmp_path: Path) -> None:
    """Red: some bit of a zip file's directory ends in a traceback."""
    content = npz(compression)
    for damaged in flipped(content, FLIPS, seed=compression):
        measured(tmp_path, damaged)
    for length in range(0, len(content), len(content) // 25):
        assert measured(tmp_path, content[:length]) is not None


@pytest.mark.parametrize(
    "kind",
    ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float32", "float64", "uint8", "uint16", "uint32",
     "uint64", "int8", "int16", "int64", "bool", "complex64"],
)  # fmt: skip
@pytest.mark.parametrize("name", list(arrays()))
def test_tensors_of_any_type(name: str, kind: str, tmp_path: Path) -> None:
    """Red: `bincount` of bool, `max` of uint64, sums of float8."""
    tensors = {key: torch.from_numpy(array) for key, array in arrays().items()}
    tensors[name] = tensors[name].to(getattr(torch, kind))
    message = measured(tmp_path, save_tensors(tensors), ".safetensors")
    whole = kind.startswith(("int", "uint", "bool"))
    if kind == "complex64" or whole == (name not in ("labels", "test_labels")):
        assert message is not None or name not in ("features", "labels", "test_features", "test_labels")
    elif kind != "bool":
        assert message is None


def header_of(content: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_json(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


CHANGES: list[dict[str, Any]] = [
    {"shape": [10**12]},
    {"shape": [2**62, 4]},
    {"shape": [-1]},
    {"shape": []},
    {"shape": "x"},
    {"dtype": "F128"},
    {"dtype": "F8_E4M3"},
    {"dtype": "F8_E8M0"},
    {"dtype": "F4"},
    {"dtype": "C64"},
    {"dtype": 3},
    {"data_offsets": [0, 10**15]},
    {"data_offsets": [8, 0]},
    {"data_offsets": [-8, 8]},
    {"data_offsets": []},
]


@pytest.mark.parametrize("name", ["features", "labels", "weight"])
def test_safetensors_whose_header_lies(name: str, tmp_path: Path) -> None:
    """Red: a type that this PyTorch has not, offsets beyond the end."""
    header, data = header_of(save(arrays()))
    for change in CHANGES:
        measured(tmp_path, with_json(header | {name: header[name] | change}, data), ".safetensors")
    for text in (b"", b"[]", b"{", b"[" * 100_000, b"\xff" * 20, b'{"a": ' + b"9" * 5000 + b"}"):
        assert measured(tmp_path, with_json(text, data), ".safetensors") is not None
    for length in (0, 2**31, 2**63, 2**64 - 1):
        content = struct.pack("<Q", length) + data
        assert measured(tmp_path, content, ".safetensors") is not None


def test_flipped_bits_and_cut_ends_of_safetensors(tmp_path: Path) -> None:
    """Red: some bit of the header ends in a traceback."""
    content = save(arrays())
    for damaged in flipped(content, FLIPS, seed=1):
        measured(tmp_path, damaged, ".safetensors")
    for damaged in flipped(content[: len(content) // 4], FLIPS, seed=2):
        measured(tmp_path, damaged + content[len(content) // 4 :], ".safetensors")
    for length in range(0, len(content), len(content) // 25):
        assert measured(tmp_path, content[:length], ".safetensors") is not None


@pytest.mark.attack
@pytest.mark.parametrize("seed", range(4))
def test_many_flipped_bits(seed: int, tmp_path: Path) -> None:
    """The same, two at a time too, until it takes minutes."""
    for content, suffix in (
        (npz(), ".npz"),
        (npz(zipfile.ZIP_LZMA), ".npz"),
        (save(arrays()), ".safetensors"),
    ):
        for index, damaged in enumerate(flipped(content, MANY_FLIPS // 12, seed=100 + seed)):
            again = next(flipped(damaged, 1, seed=index)) if index % 2 else damaged
            measured(tmp_path, again, suffix)
