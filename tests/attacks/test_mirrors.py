"""Mirrors with anything in the place of the official files: each is refused in one line that names a file.

Each test's docstring ends with the fault that would turn it red.
"""

import gzip
import io
import lzma
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from one_line import refusal

from ncpipe.config.records import read
from ncpipe.config.sources.images import ImageData
from ncpipe.config.sources.reviews import TextData
from ncpipe.datasets.prepare import prepare
from ncpipe.datasets.sources import LARGEST_MEMBER, read_members
from ncpipe.datasets.torchvision_images import CIFAR  # loaded here, as that takes seconds

assert "cifar10" in CIFAR
PLACES = {
    "mnist": ["MNIST/raw/train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"],
    "cifar10": ["cifar-10-batches-py", "cifar-10-python.tar.gz", "cifar-10-batches-py.tar.xz"],
    "imdb": ["aclImdb", "aclImdb_v1.tar.gz", "aclImdb_v1.tar.xz"],
}
OURS = "cifar-10-batches-py/data_batch_1"


def tar(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=form) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return content.getvalue()


def member(name: str, data: bytes = b"text", **more: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in more.items():
        setattr(info, key, value)
    return info, data


def said_to_take(size: int) -> bytes:
    """A tar file whose only member's head says that it takes so many bytes."""
    info = tarfile.TarInfo(OURS)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(10 * 512)


def sparse(size: int) -> bytes:
    """A member without data, all of it a hole of so many bytes (GNU's sparse files, version 1.0 in pax)."""
    data = b"0\n".ljust(512, b"\0")
    headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": OURS,
               "GNU.sparse.realsize": str(size)}  # fmt: skip
    return tar(member("GNUSparseFile.0/x", data, pax_headers=headers))


def flipped(content: bytes, seed: int) -> bytes:
    generator = random.Random(seed)
    damaged = bytearray(content)
    for _ in range(3):
        damaged[generator.randrange(600)] ^= 1 << generator.randrange(8)
    return bytes(damaged)


ARCHIVES: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "text": lambda: b"not an archive\n" * 1000,
    "no members": lambda: tar(),
    "others' members": lambda: tar(member("other"), member("../../outside"), member("/etc/passwd")),
    "not ours": lambda: tar(member(OURS)),
    "a link": lambda: tar(member(OURS, b"", type=tarfile.SYMTYPE, linkname="/etc/passwd")),
    "a hard link": lambda: tar(member(OURS, b"", type=tarfile.LNKTYPE, linkname="nothing")),
    "a folder": lambda: tar(member(OURS, b"", type=tarfile.DIRTYPE)),
    "a pipe": lambda: tar(member(OURS, b"", type=tarfile.FIFOTYPE)),
    "20 GB": lambda: said_to_take(20 * 10**9),
    "8 EB": lambda: said_to_take(2**62),
    "a hole of 20 GB": lambda: sparse(20 * 10**9),
    "a hole of less than nothing": lambda: sparse(-1),
    "a size that is none": lambda: tar(member(OURS, pax_headers={"size": "many"})),
    "a negative size": lambda: tar(member(OURS, pax_headers={"size": "-5"})),
    "gzip, cut short": lambda: gzip.compress(tar(member(OURS, os.urandom(9999))))[:2000],
    "gzip of nothing": lambda: gzip.compress(b""),
    "gzip of zeros": lambda: gzip.compress(bytes(10**7)),
    "xz, cut short": lambda: lzma.compress(tar(member(OURS, os.urandom(9999))))[:2000],
    "xz, damaged": lambda: lzma.compress(tar(member(OURS)))[:40] + bytes(200),
} | {f"flipped {seed}": lambda seed=seed: flipped(tar(member(OURS)), seed) for seed in range(40)}  # type: ignore


def spec_of(source: str) -> ImageData | TextData:
    keys = {"source": source, "per_class": 2, "test_per_class": 2, "seed": 0}
    if source == "imdb":
        tokens = {"tokenizer": "corpus", "vocabulary": 300, "context": 8, "keep": "start"}
        text: TextData = read(TextData, keys | tokens)
        return text
    images: ImageData = read(ImageData, keys | {"normalisation": "unit"})
    return images


def refused(source: str, mirror: Path) -> None:
    """That it is, in one line that names the mirror, and that nothing of it was taken."""
    raw = mirror.parent / "raw"
    message = refusal(lambda: prepare(spec_of(source), raw, mirror, progress=False), str(mirror))
    assert message is not None
    assert "\n" not in message
    assert not [path for path in raw.rglob("*") if path.is_file()]


@pytest.mark.parametrize("source", ["mnist", "cifar10", pytest.param("imdb", marks=pytest.mark.attack)])
def test_what_is_no_file_in_the_place_of_an_official_one(source: str, tmp_path: Path) -> None:
    """Red: a pipe that is read from for ever, a folder that is opened, a link that leads nowhere."""
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    refused(source, mirror)
    for name in PLACES[source]:
        path = mirror / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for make, remove in (
            (path.touch, path.unlink),
            (path.mkdir, path.rmdir),
            (lambda: os.mkfifo(path), path.unlink),  # noqa: B023
            (lambda: path.symlink_to("nowhere"), path.unlink),  # noqa: B023
            (lambda: path.symlink_to(path), path.unlink),  # noqa: B023
        ):
            if os.name == "nt" and make.__name__ == "<lambda>":
                continue
            make()
            refused(source, mirror)
            remove()
    for wrong in (mirror / "none", mirror / "file"):
        (mirror / "file").touch()
        refused(source, wrong)


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_that_are_none(name: str, tmp_path: Path) -> None:
    """Red: 20 GB of zeros in memory; a member's name that is written to; a number that is none."""
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    content = ARCHIVES[name]()
    for place in PLACES["cifar10"][1:]:
        (mirror / place).write_bytes(content)
        refused("cifar10", mirror)
        (mirror / place).unlink()


def test_a_large_member_is_refused_unread(tmp_path: Path) -> None:
    """Also one that is not asked for. Red: a limit that is compared after reading."""
    path = tmp_path / "a.tar"
    path.write_bytes(said_to_take(LARGEST_MEMBER + 1))
    for wanted in (True, False):
        message = refusal(lambda: list(read_members(path, lambda name: wanted)), str(path))  # noqa: B023
        assert message is not None
        assert "not the official archive" in message


@pytest.mark.attack
@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_of_reviews_that_are_none(name: str, tmp_path: Path) -> None:
    """Red: as above."""
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    for place in PLACES["imdb"][1:]:
        (mirror / place).write_bytes(ARCHIVES[name]())
        refused("imdb", mirror)
        (mirror / place).unlink()
