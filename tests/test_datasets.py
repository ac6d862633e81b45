"""Preparing data, on small files in the official formats whose checksums take the official ones' place."""

import gzip
import hashlib
import http.client
import importlib
import io
import os
import pickle
import random
import tarfile
import urllib.error
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import flip_byte

from ncpipe.config.sources.generated import GaussianMixtureData
from ncpipe.config.sources.images import ImageData
from ncpipe.config.sources.reviews import TextData
from ncpipe.config.transfer_specs import OtherImages
from ncpipe.datasets import sources
from ncpipe.datasets.facts import count_duplicates, count_shared
from ncpipe.datasets.prepare import prepare, prepare_data
from ncpipe.datasets.prepared import Split, draw_balanced, read_prepared, write_prepared
from ncpipe.system.errors import InputError
from ncpipe.system.randomness import seeded_generator

DIGITS = ImageData("digits", 20, 15, 0, "standardise")
MNIST = ImageData("mnist", 4, 2, 0, "standardise")
CIFAR = ImageData("cifar10", 4, 1, 0, "standardise")
IMDB = TextData("imdb", 4, 3, 0, "corpus", 300, 12, "start")
CLOUDS = GaussianMixtureData("gaussian_mixture", 3, 5, 2.0, 0.5, 40, 30, 0)


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def make_tar(path: Path, files: dict[str, bytes]) -> None:
    """A tar archive compressed as its name says (.gz, .xz)."""
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, f"w:{path.suffix[1:]}") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def cut_short(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


@pytest.fixture
def offline(monkeypatch):
    def refuse(request, **_):
        raise urllib.error.URLError(f"no route to {request.full_url}")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


@pytest.fixture
def raw(tmp_path) -> Path:
    return tmp_path / "raw"


@pytest.fixture
def mnist(tmp_path, monkeypatch, offline) -> Path:
    """A mirror with MNIST."""
    write_mnist(tmp_path / "mirror", monkeypatch)
    return tmp_path / "mirror"


# --- the stored form ----------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_prepared(Path("data/one"), prepare(DIGITS, Path("raw"), None, progress=False))
    return Path("data/one")


def test_prepared_twice_has_equal_bytes_and_is_read_back(stored):
    data = prepare(DIGITS, Path("raw"), None, progress=False)
    write_prepared(Path("data/two"), data)
    for name in ("tensors.safetensors", "facts.json"):
        assert (stored / name).read_bytes() == Path("data/two", name).read_bytes()
    back = read_prepared(stored)
    for split in ("train", "test"):
        assert torch.equal(getattr(back, split).inputs, getattr(data, split).inputs)
        assert torch.equal(getattr(back, split).labels, getattr(data, split).labels)
        assert getattr(back, split).lengths is None
    assert (back.kind, back.classes, back.vocabulary, back.facts) == ("image", 10, None, data.facts)


@pytest.mark.parametrize("damage", [lambda path: flip_byte(path, -1), Path.unlink])
def test_damaged_tensors_are_refused(stored, damage):
    damage(stored / "tensors.safetensors")
    with pytest.raises(InputError, match=r"data/one/tensors\.safetensors"):
        read_prepared(stored)


# --- the draw -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("split", "key"), [("train", "data.per_class"), ("test", "data.test_per_class")])
def test_draw_names_the_class_that_is_too_small(split, key):
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    message = f"class 1 of the {split} split has 2 samples, fewer than 3; lower {key}$"
    with pytest.raises(InputError, match=message):
        draw_balanced(labels, 3, 3, seeded_generator(0, split), split)


@pytest.mark.parametrize("source", ["images", "generated", "imdb"])
def test_every_draw_of_a_data_set_has_its_own_stream(source, tmp_path, raw, monkeypatch, request):
    """Red: a test split drawn from the training split's stream."""
    module = importlib.import_module(f"ncpipe.datasets.{source}")
    streams = []
    monkeypatch.setattr(
        module, "seeded_generator", lambda seed, name: streams.append(name) or seeded_generator(seed, name)
    )
    if source == "imdb":
        write_imdb(tmp_path / "m", request.getfixturevalue("reviews"), "aclImdb")
        prepare(IMDB, raw, tmp_path / "m", progress=False)
    elif source == "images":
        prepare(MNIST, raw, request.getfixturevalue("mnist"), progress=False)
    else:
        prepare(CLOUDS, raw, None, progress=False)
    centres = ["data centres"] if source == "generated" else []
    assert sorted(streams) == [*centres, "data test", "data train"]


@pytest.mark.parametrize("spec", [DIGITS, CLOUDS])
def test_seed_decides_the_draw(spec, raw):
    first, again = (prepare(spec, raw, None, progress=False) for _ in range(2))
    other = prepare(replace(spec, seed=1), raw, None, progress=False)
    for split in ("train", "test"):
        inputs = getattr(first, split).inputs
        assert torch.equal(inputs, getattr(again, split).inputs)
        assert not torch.equal(inputs, getattr(other, split).inputs)


def test_duplicates_are_counted():
    inputs = torch.tensor([[1, 0], [1, 0], [2, 3], [2, 3], [2, 3], [4, 4]])
    labels = torch.tensor([0, 0, 1, 0, 1, 1])
    assert count_duplicates(Split(inputs, labels)) == {"repeated": 3, "conflicting": 1}
    # A token that equals the padding still tells [1, 0] of length 2 from [1] padded.
    lengths = torch.tensor([1, 2, 2, 2, 2, 2])
    assert count_duplicates(Split(inputs, labels, lengths)) == {"repeated": 2, "conflicting": 1}


def test_what_test_samples_share_with_training_ones_is_counted():
    """[2, 3] has either label in training, [4, 4] only the other; of length 1, [1] is not [1, 0]."""
    train = Split(torch.tensor([[1, 0], [2, 3], [2, 3], [4, 4]]), torch.tensor([0, 0, 1, 1]))
    test = Split(torch.tensor([[2, 3], [4, 4], [4, 4], [1, 0], [5, 5]]), torch.tensor([1, 0, 1, 0, 0]))
    assert count_shared(train, test) == {"samples": 4, "conflicting": 1}
    long, short = replace(train, lengths=torch.full((4,), 2)), torch.tensor([2, 2, 2, 1, 2])
    assert count_shared(long, replace(test, lengths=short)) == {"samples": 3, "conflicting": 1}


# --- digits -------------------------------------------------------------------------------------------


def test_digits_splits_partition_the_images(raw):
    from sklearn.datasets import load_digits

    data = prepare(replace(DIGITS, normalisation="unit", test_per_class=None), raw, None, progress=False)
    assert data.facts["counts"]["train"] == [20] * 10
    assert data.train.labels.tolist() == sorted(data.train.labels.tolist())
    assert data.train.inputs.shape == (200, 1, 8, 8)
    assert data.test.inputs.shape == (1597, 1, 8, 8)
    drawn = torch.cat(
        [torch.cat([s.inputs.flatten(1), s.labels[:, None]], 1) for s in (data.train, data.test)]
    )
    bunch = load_digits()
    expected = np.concatenate([bunch.data / 16, bunch.target[:, None]], 1).astype(np.float32)
    assert sorted(drawn.tolist()) == sorted(expected.tolist())
    assert not raw.exists()


# --- images of torchvision ----------------------------------------------------------------------------
# In row 0 and column 1 of every channel stands the label, plus 20 for each channel before it.


def with_labels(labels: np.ndarray, channels: int, side: int, start: int = 0) -> np.ndarray:
    """Images (N, channels, side, side) of noise with the marks above, which begin at `start`."""
    pixels = np.random.default_rng(len(labels)).integers(0, 256, (len(labels), channels, side, side))
    pixels[:, :, 0, 1] = start + labels[:, None] + 20 * np.arange(channels)
    return pixels.astype(np.uint8)


def idx(array: np.ndarray) -> bytes:
    """The idx format: type 8 (unsigned byte), rank, big-endian sizes, bytes."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def write_mnist(mirror: Path, monkeypatch, images: np.ndarray | None = None, name: str = "MNIST") -> None:
    """60 training and 30 test samples. name: torchvision's, of the set; its marks begin at its length."""
    from torchvision import datasets

    labels = np.tile(np.arange(10), 9)
    images = with_labels(labels, 1, 28, len(name))[:, 0] if images is None else images
    contents = {
        "train-images-idx3-ubyte.gz": images[:60],
        "train-labels-idx1-ubyte.gz": labels[:60],
        "t10k-images-idx3-ubyte.gz": images[60:],
        "t10k-labels-idx1-ubyte.gz": labels[60:],
    }
    files = {file: gzip.compress(idx(array), mtime=0) for file, array in contents.items()}
    write_files(mirror / name / "raw", files)
    resources = [(file, md5(content)) for file, content in files.items()]
    monkeypatch.setattr(getattr(datasets, name), "resources", resources)


BATCHES = "cifar-10-batches-py"
CIFAR_FORMS = [BATCHES, "cifar-10-python.tar.gz", f"{BATCHES}.tar.xz"]


def cifar_files(monkeypatch) -> dict[str, bytes]:
    """The files of CIFAR-10, ten images each."""
    from torchvision.datasets import CIFAR10

    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    files = {}
    for seed, name in enumerate(names):
        labels = np.random.default_rng(seed).permutation(10)
        pixels = with_labels(labels, 3, 32).reshape(10, -1)
        files[name] = pickle.dumps({"data": pixels, "labels": labels.tolist()})
    sums = [[name, md5(content)] for name, content in files.items()]
    monkeypatch.setattr(CIFAR10, "train_list", sums[:5])
    monkeypatch.setattr(CIFAR10, "test_list", sums[5:])
    files["batches.meta"] = pickle.dumps({"label_names": list("abcdefghij")})
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": md5(files["batches.meta"])})
    return files


def write_cifar(mirror: Path, files: dict[str, bytes], form: str) -> None:
    """`files` in the mirror as the folder, the official archive or the repacked one."""
    if form == BATCHES:
        write_files(mirror / form, files)
    else:
        make_tar(mirror / form, {f"{BATCHES}/{name}": content for name, content in files.items()})


def write_cifar100(mirror: Path, monkeypatch) -> None:
    """300 and 100 images, whose marks are of the fine labels."""
    from torchvision.datasets import CIFAR100

    files = {}
    for name, count in (("train", 3), ("test", 1)):
        fine = np.random.default_rng(count).permutation(np.repeat(np.arange(100), count))
        content = {"data": with_labels(fine, 3, 32).reshape(len(fine), -1), "fine_labels": fine.tolist()}
        files[name] = pickle.dumps(content | {"coarse_labels": (fine // 5).tolist()})
        monkeypatch.setattr(CIFAR100, f"{name}_list", [[name, md5(files[name])]])
    files["meta"] = pickle.dumps({"fine_label_names": [str(k) for k in range(100)]})
    monkeypatch.setattr(CIFAR100, "meta", CIFAR100.meta | {"md5": md5(files["meta"])})
    archive = mirror / "cifar-100-python.tar.gz"
    make_tar(archive, {f"cifar-100-python/{name}": content for name, content in files.items()})


def write_svhn(mirror: Path, monkeypatch) -> None:
    """Files in which images are (32, 32, 3, N), and the digit 0 has the label 10."""
    from scipy.io import savemat
    from torchvision.datasets import SVHN

    listed = {}
    mirror.mkdir()
    for split, count in (("train", 5), ("test", 2)):
        labels = np.random.default_rng(count).permutation(np.repeat(np.arange(10), count))
        path = mirror / f"{split}_32x32.mat"
        stored = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        savemat(path, {"X": with_labels(labels, 3, 32).transpose(2, 3, 1, 0), "y": stored})
        listed[split] = ["http://example.org/", path.name, md5(path.read_bytes())]
    monkeypatch.setattr(SVHN, "split_list", listed)


def write_images(source: str, mirror: Path, monkeypatch) -> None:
    """Write a set as its files; cifar10 may say in which form, `cifar10 FORM`."""
    name, _, form = source.partition(" ")
    if name == "cifar10":
        write_cifar(mirror, cifar_files(monkeypatch), form)
    elif name == "cifar100":
        write_cifar100(mirror, monkeypatch)
    elif name == "svhn":
        write_svhn(mirror, monkeypatch)
    else:
        write_mnist(mirror, monkeypatch, name={"fashion_mnist": "FashionMNIST"}.get(name, name.upper()))


@pytest.mark.parametrize(
    ("source", "official", "start", "copy"),
    [
        ("mnist", (60, 30), 5, "MNIST/raw/t10k-images-idx3-ubyte.gz"),
        ("fashion_mnist", (60, 30), 12, "FashionMNIST/raw/t10k-images-idx3-ubyte.gz"),
        ("kmnist", (60, 30), 6, "KMNIST/raw/train-images-idx3-ubyte.gz"),
        *((f"cifar10 {form}", (50, 10), 0, f"{BATCHES}/test_batch") for form in CIFAR_FORMS),
        ("cifar100", (300, 100), 0, "cifar-100-python/train"),
        ("svhn", (50, 20), 0, "SVHN/test_32x32.mat"),
    ],
)
def test_images_keep_their_labels_from_a_mirror_and_from_the_copy(
    source, official, start, copy, tmp_path, raw, monkeypatch, offline
):
    """Of every set and every form of a mirror; a copy that is damaged is named."""
    write_images(source, tmp_path / "mirror", monkeypatch)
    per_class = 2 if source == "cifar100" else 4
    spec = ImageData(source.split()[0], per_class, 1, 0, "unit")
    data = prepare(spec, raw, tmp_path / "mirror", progress=False)
    assert data.facts["official"] == dict(zip(("train", "test"), official, strict=True))
    assert data.facts["counts"] == {"train": [per_class] * data.classes, "test": [1] * data.classes}
    assert data.classes == (100 if source == "cifar100" else 10)
    assert data.train.inputs.shape[2:] == (spec.side, spec.side)
    for split in (data.train, data.test):
        marks = (split.inputs[:, :, 0, 1] * 255).round().long()
        assert torch.equal(marks, start + split.labels[:, None] + 20 * torch.arange(marks.shape[1]))
    again = prepare(spec, raw, None, progress=False)
    assert torch.equal(again.train.inputs, data.train.inputs)
    assert torch.equal(again.test.inputs, data.test.inputs)
    assert again.facts == data.facts
    flip_byte(raw / copy, 200)
    with pytest.raises(InputError, match=f"raw/{copy}: damaged or cut short"):
        prepare(spec, raw, None, progress=False)


def test_sets_in_mnists_format_are_their_own_files(tmp_path, raw, monkeypatch, offline):
    """MNIST's directly in the mirror. Red: another set's files of the same names taken for this one's."""
    mirror = tmp_path / "mirror"
    write_mnist(mirror, monkeypatch)
    for path in (mirror / "MNIST" / "raw").iterdir():
        path.rename(mirror / path.name)
    assert len(prepare(MNIST, raw, mirror, progress=False).train) == 40
    with pytest.raises(InputError, match="mirror holds none of FashionMNIST/raw/train-images-"):
        prepare(replace(MNIST, source="fashion_mnist"), raw, mirror, progress=False)


def test_half_unpacked_mnist_is_unpacked_again(mnist, raw):
    first = prepare(MNIST, raw, mnist, progress=False)
    flip_byte(raw / "MNIST" / "raw" / "train-images-idx3-ubyte", -1)
    cut_short(raw / "MNIST" / "raw" / "t10k-images-idx3-ubyte")
    again = prepare(MNIST, raw, None, progress=False)
    assert torch.equal(again.train.inputs, first.train.inputs)
    assert torch.equal(again.test.inputs, first.test.inputs)


def test_channels_are_standardised_one_by_one(tmp_path, raw, monkeypatch, offline):
    """By the training images. A channel that is constant cannot be, and has as many repeated images."""
    write_cifar(tmp_path / "cifar", cifar_files(monkeypatch), BATCHES)
    plain, data = (
        prepare(replace(CIFAR, normalisation=rule), raw, tmp_path / "cifar", progress=False)
        for rule in ("unit", "standardise")
    )
    pixels = (255 * plain.train.inputs.double()).round().numpy() / 255
    mean, std = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3))
    assert data.facts["normalisation"]["mean"] == pytest.approx(mean, abs=1e-12)
    assert data.facts["normalisation"]["std"] == pytest.approx(std, abs=1e-12)
    for split in ("train", "test"):
        expected = (getattr(plain, split).inputs.numpy() - mean[:, None, None]) / std[:, None, None]
        np.testing.assert_allclose(getattr(data, split).inputs, expected, rtol=1e-5, atol=1e-6)
    assert "mean" not in plain.facts["normalisation"]
    write_mnist(tmp_path / "mnist", monkeypatch, np.full((90, 28, 28), 7))
    with pytest.raises(InputError, match=r"data\.normalisation: channel 0 is constant"):
        prepare(MNIST, raw, tmp_path / "mnist", progress=False)
    flat = prepare(replace(MNIST, normalisation="unit"), raw, tmp_path / "mnist", progress=False)
    assert flat.facts["duplicates"] == {"repeated": 39, "conflicting": 1}


def test_other_images_have_the_size_and_the_constants_of_the_data(raw, mnist):
    """Red: constants of their own, pixels that are standardised twice; images of the data themselves."""
    asked = OtherImages("digits", 3, 0)
    plain, data = (
        prepare(replace(MNIST, normalisation=rule, ood=asked), raw, mnist, progress=False)
        for rule in ("unit", "standardise")
    )
    assert plain.ood.inputs.shape == (30, 1, 28, 28)
    low, high = plain.ood.inputs.aminmax()
    assert low >= 0
    assert 0.5 < high <= 1
    assert plain.ood.labels.tolist() == sorted(list(range(10)) * 3)
    constants = data.facts["normalisation"]
    expected = (plain.ood.inputs.double() - constants["mean"][0]) / constants["std"][0]
    torch.testing.assert_close(data.ood.inputs, expected.float())
    assert data.facts["ood"]["samples"] == 30


@pytest.mark.parametrize("form", CIFAR_FORMS)
@pytest.mark.parametrize(
    ("change", "words"),
    [({"data_batch_3": b"another"}, "data_batch_3.*MD5.*delete"), ({"test_batch": None}, "test_batch")],
    ids=["altered", "missing"],
)
def test_a_wrong_member_of_cifar10_is_refused_by_name(
    tmp_path, raw, monkeypatch, offline, form, change, words
):
    files = cifar_files(monkeypatch) | change
    write_cifar(tmp_path / "mirror", {name: data for name, data in files.items() if data is not None}, form)
    with pytest.raises(InputError, match=rf"{form}.*{words}"):
        prepare(CIFAR, raw, tmp_path / "mirror", progress=False)
    assert "test_batch" in change or not (raw / BATCHES / "data_batch_3").exists()


@pytest.mark.parametrize(
    ("source", "file"),
    [
        ("mnist", "MNIST/raw/t10k-images-idx3-ubyte.gz"),
        *((f"cifar10 {form}", form) for form in CIFAR_FORMS[1:]),
    ],
)
@pytest.mark.parametrize("damage", [cut_short, lambda path: path.write_bytes(b"<html>moved</html>")])
def test_a_damaged_file_of_a_mirror_is_refused_by_name(
    source, file, damage, tmp_path, raw, monkeypatch, offline
):
    write_images(source, tmp_path / "mirror", monkeypatch)
    damage(tmp_path / "mirror" / file)
    spec = ImageData(source.split()[0], 4, 1, 0, "unit")
    with pytest.raises(
        InputError, match=f"mirror/{file}: damaged or cut short.*delete it and fetch it again"
    ):
        prepare(spec, raw, tmp_path / "mirror", progress=False)


# --- imdb ---------------------------------------------------------------------------------------------

WORDS = "a bad good film the plot was acting great awful story and never again <br /><br /> Loved HATED"
IMDB_FORMS = ["aclImdb", "aclImdb_v1.tar.gz", "aclImdb_v1_labelled.tar.xz"]
EMPTY = "test/pos/3_8.txt"


@pytest.fixture
def reviews(monkeypatch, offline) -> dict[str, bytes]:
    """Six reviews of 5 to 30 words in each folder; one of white space only."""
    from ncpipe.datasets import imdb

    choose = random.Random(3)
    files = {
        f"{split}/{label}/{number}_8.txt": " ".join(choose.choices(WORDS.split(), k=5 + 5 * number)).encode()
        for split in ("test", "train")
        for label in ("pos", "neg")
        for number in range(6)
    }
    files[EMPTY] = b" <br />\n"
    monkeypatch.setattr(imdb, "PER_FOLDER", 6)
    monkeypatch.setattr(imdb, "DIGESTS", {split: imdb.digest_of(files, split) for split in ("train", "test")})
    return files


def write_imdb(mirror: Path, reviews: dict[str, bytes], form: str) -> Path:
    """`reviews` and an unlabelled one in the mirror: the folder, the official archive or a repacked one."""
    files = {f"aclImdb/{name}": content for name, content in reviews.items()}
    files |= {"aclImdb/train/unsup/0_0.txt": b"unlabelled", "aclImdb/README": b"read me"}
    if form == "aclImdb":
        write_files(mirror, files)
    else:
        make_tar(mirror / form, files)
    return mirror / form


def decode(inputs: torch.Tensor, length: int, corpus: list[bytes]) -> str:
    from ncpipe.datasets.byte_pairs import train_byte_pairs

    texts = [text.decode().replace("<br />", " ") for text in corpus]
    return train_byte_pairs(texts, 300, False).decode(inputs[:length].tolist())


def official_train(reviews: dict[str, bytes]) -> list[bytes]:
    return [reviews[name] for name in sorted(reviews) if name.startswith("train/")]


def test_imdb_is_the_same_from_each_form_of_a_mirror(tmp_path, raw, reviews):
    prepared = []
    for form in IMDB_FORMS:
        write_imdb(tmp_path / form, reviews, form)
        prepared.append(prepare(IMDB, raw, tmp_path / form, progress=False))
    for data in prepared:
        assert data.facts == prepared[0].facts
        assert torch.equal(data.train.inputs, prepared[0].train.inputs)
        assert torch.equal(data.test.lengths, prepared[0].test.lengths)
    assert prepared[0].facts["counts"] == {"train": [4, 4], "test": [3, 3]}
    assert prepared[0].facts["official"] == {"train": 12, "test": 12}
    assert prepared[0].vocabulary == 300
    assert not raw.exists()


def test_reviews_keep_their_labels_and_are_cleaned(tmp_path, raw, reviews):
    write_imdb(tmp_path / "m", reviews, "aclImdb")
    spec = replace(IMDB, per_class=6, test_per_class=None, context=200)
    data = prepare(spec, raw, tmp_path / "m", progress=False)
    assert data.test.labels.tolist() == [0] * 6 + [1] * 6
    names = [f"test/{label}/{number}_8.txt" for label in ("neg", "pos") for number in range(6)]
    for row, length, name in zip(data.test.inputs, data.test.lengths.tolist(), names, strict=True):
        words = reviews[name].decode().lower().replace("<br />", " ").split()
        expected = " ".join(words) if words else "[UNK]"
        got = (
            "[UNK]" if row[:length].tolist() == [1] else decode(row, length, official_train(reviews)).strip()
        )
        assert got == expected


def test_the_start_or_the_end_is_kept_and_padded_on_the_right(tmp_path, raw, reviews):
    write_imdb(tmp_path / "m", reviews, "aclImdb")
    spec = replace(IMDB, test_per_class=None)
    start, end, whole = (
        prepare(replace(spec, keep=keep, context=context), raw, tmp_path / "m", progress=False).test
        for keep, context in (("start", 12), ("end", 12), ("start", 300))
    )
    for row in range(12):
        ids = whole.inputs[row, : whole.lengths[row]].tolist()
        padding = [0] * (12 - len(ids))
        assert start.inputs[row].tolist() == ids[:12] + padding
        assert end.inputs[row].tolist() == ids[-12:] + padding
    assert torch.equal(start.lengths, whole.lengths.clamp(max=12))
    assert int((whole.lengths > 12).sum()) > 4
    assert (start.inputs.dtype, start.lengths.dtype) == (torch.int64, torch.int64)


@pytest.mark.parametrize("form", IMDB_FORMS)
def test_reviews_that_are_not_the_official_ones_are_refused(tmp_path, raw, reviews, form):
    lost = {name: text for name, text in reviews.items() if name != "train/pos/4_8.txt"}
    altered = reviews | {"test/neg/2_8.txt": reviews["test/neg/2_8.txt"][:-1]}
    for folder, files, message in (
        ("lost", lost, f"aclImdb/train/pos has 5 reviews, the official one 6; delete {form} and fetch it"),
        ("altered", altered, "a review of aclImdb/test is not the official one"),
    ):
        write_imdb(tmp_path / folder, files, form)
        with pytest.raises(InputError, match=f"{form}: {message}"):
            prepare(IMDB, raw, tmp_path / folder, progress=False)


def test_imdb_archive_in_raw_is_used_if_it_is_the_official_one(tmp_path, raw, reviews, monkeypatch):
    archive = write_imdb(raw, reviews, "aclImdb_v1.tar.gz")
    with pytest.raises(InputError, match=r"raw/aclImdb_v1\.tar\.gz: damaged or cut short"):
        prepare(IMDB, raw, None, progress=False)
    monkeypatch.setattr("ncpipe.datasets.imdb.ARCHIVE_MD5", md5(archive.read_bytes()))
    assert len(prepare(IMDB, raw, None, progress=False).train) == 8


def test_vocabulary_that_the_reviews_cannot_fill(tmp_path, raw, reviews):
    write_imdb(tmp_path / "m", reviews, "aclImdb")
    with pytest.raises(InputError, match=r"data\.vocabulary: the training text gives only \d+ entries"):
        prepare(replace(IMDB, vocabulary=20000), raw, tmp_path / "m", progress=False)


def test_named_tokenizer(tmp_path, raw, reviews):
    from transformers import PreTrainedTokenizerFast

    from ncpipe.datasets.byte_pairs import train_byte_pairs

    write_imdb(tmp_path / "m", reviews, "aclImdb")
    encoder = train_byte_pairs([text.decode() for text in reviews.values()], 302, progress=False)
    PreTrainedTokenizerFast(tokenizer_object=encoder).save_pretrained(tmp_path / "named")
    spec = replace(IMDB, tokenizer=str(tmp_path / "named"), vocabulary=None, test_per_class=None, keep="end")
    data = prepare(spec, raw, tmp_path / "m", progress=False)
    assert data.vocabulary == 302
    for row, label in ((0, "neg"), (6, "pos")):
        text = reviews[f"test/{label}/0_8.txt"].decode().replace("<br />", " ")
        ids = encoder.encode(text).ids[-12:]
        assert data.test.inputs[row, : len(ids)].tolist() == ids
        assert data.test.lengths[row] == len(ids)
    # Without special tokens of its own, padding is 0 and so is the one token of an empty review, the fourth
    # positive one by its name.
    assert data.test.lengths[9] == 1


def test_ids_of_a_tokenizer_may_have_gaps():
    """Red: as many rows of the embedding as entries, and a traceback of the index in training."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    from ncpipe.datasets.review_tokens import id_count

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "good": 7, "bad": 99}, "[UNK]"))
    assert id_count(PreTrainedTokenizerFast(tokenizer_object=words)) == 100


def test_tokenizer_that_cannot_be_loaded(tmp_path, raw, reviews, monkeypatch):
    def fail(name):
        raise OSError("We couldn't connect\nto it")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", fail)
    write_imdb(tmp_path / "m", reviews, "aclImdb")
    with pytest.raises(InputError, match=r"^data\.tokenizer: cannot load some/name.*`corpus`$"):
        prepare(replace(IMDB, tokenizer="some/name", vocabulary=None), raw, tmp_path / "m", progress=False)


# --- gaussian mixture ---------------------------------------------------------------------------------


def test_noiseless_clouds_are_their_centres(raw):
    data = prepare(replace(CLOUDS, noise=0.0), raw, None, progress=False)
    centres = data.train.inputs[::40]
    torch.testing.assert_close(centres.norm(dim=1), torch.full((3,), 2.0))
    for split, size in ((data.train, 40), (data.test, 30)):
        assert torch.equal(split.labels, torch.arange(3).repeat_interleave(size))
        assert torch.equal(split.inputs, centres[split.labels])
    assert (data.kind, data.classes, data.train.inputs.dtype) == ("vector", 3, torch.float32)


def test_noise_is_standard_normal_and_fresh_in_each_split(raw):
    spec = replace(CLOUDS, per_class=2000, test_per_class=2000)
    data = prepare(spec, raw, None, progress=False)
    centres = torch.tensor(data.facts["centres"])[data.train.labels]
    noise, test_noise = ((split.inputs - centres) / 0.5 for split in (data.train, data.test))
    # Five standard errors of 30,000 draws.
    for sample in (noise, test_noise):
        assert sample.mean().abs() < 5 / 30000**0.5
        assert (sample.square().mean() - 1).abs() < 5 * (2 / 30000) ** 0.5
    assert (noise * test_noise).mean().abs() < 5 / 30000**0.5


def test_means_lie_in_a_subspace_where_they_are_asked_to(raw):
    """Of that dimension, not along coordinates, another for another seed; noise is of every coordinate.

    Red: the first coordinates; a factor that is not orthonormal, which changes the length of means."""
    spec = replace(CLOUDS, classes=7, dimension=12, mean_rank=3)
    draws = [
        torch.tensor(prepare(replace(spec, seed=seed), raw, None, progress=False).facts["centres"])
        for seed in (0, 1)
    ]
    for centres in draws:
        assert torch.linalg.matrix_rank(centres) == 3
        torch.testing.assert_close(centres.norm(dim=1), torch.full((7,), 2.0))
        assert bool((centres.abs().amax(0) > 0.01).all())
    assert torch.linalg.matrix_rank(torch.cat(draws)) == 6
    inputs = prepare(spec, raw, None, progress=False).train.inputs
    assert torch.linalg.matrix_rank(inputs) == 12


def test_a_mean_rank_above_the_dimension_is_refused():
    with pytest.raises(ValueError, match="mean_rank: 6 is more than the 5 of `dimension`; lower it"):
        replace(CLOUDS, mean_rank=6)


# --- network, mirror and progress ---------------------------------------------------------------------


class Answer(io.BytesIO):
    """What urlopen returns."""

    headers = {"Content-Length": "5"}  # noqa: RUF012


@pytest.mark.parametrize(
    ("spec", "url"),
    [
        (MNIST, "https://ossci-datasets.*train-images-idx3-ubyte.gz"),
        (CIFAR, "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"),
        (IMDB, "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"),
    ],
)
def test_no_network_names_the_address_and_the_mirror(offline, raw, spec, url):
    with pytest.raises(InputError, match=f"cannot download {url} .*--mirror DIR or NCPIPE_MIRROR$"):
        prepare(spec, raw, None, progress=False)
    assert not [path for path in raw.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "error", [TimeoutError("timed out"), http.client.IncompleteRead(b"x"), OSError(28, "")]
)
def test_connection_lost_on_the_way(tmp_path, monkeypatch, error):
    class Broken(Answer):
        def read(self, size=-1):
            raise error

    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: Broken())
    kind = OSError if type(error) is OSError else InputError
    with pytest.raises(kind) as caught:
        sources.download(["https://a.example/x"], tmp_path / "x", md5(b"12345"), progress=False)
    # A full disk is not the network's fault and is reported as what it is.
    assert (caught.value is error) == (kind is OSError)
    assert list(tmp_path.iterdir()) == []


def test_download_is_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: Answer(b"1234"))
    with pytest.raises(InputError, match=r"https://a\.example/x: what arrived is not the official file"):
        sources.download(["https://a.example/x"], tmp_path / "x", md5(b"12345"), progress=False)
    assert list(tmp_path.iterdir()) == []


def test_download_takes_the_next_address(tmp_path, monkeypatch, capsys):
    def open_second(request, timeout):
        assert timeout > 0
        if "//a." in request.full_url:
            raise urllib.error.URLError("gone")
        return Answer(b"12345")

    monkeypatch.setattr("urllib.request.urlopen", open_second)
    urls = ["https://a.example/x", "https://b.example/x"]
    sources.download(urls, tmp_path / "x", md5(b"12345"), progress=True)
    assert (tmp_path / "x").read_bytes() == b"12345"
    # Standard error is no terminal here.
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("spec", [MNIST, CIFAR, IMDB])
def test_mirror_without_the_files_is_named(tmp_path, raw, offline, spec):
    with pytest.raises(InputError, match=f"{tmp_path}: the mirror holds none of .*gz"):
        prepare(spec, raw, tmp_path, progress=False)


def test_mirror_that_is_no_folder(tmp_path, raw):
    with pytest.raises(InputError, match="nowhere: the mirror is not a folder"):
        prepare(DIGITS, raw, tmp_path / "nowhere", progress=False)


def test_data_of_keys_are_those_of_params() -> None:
    """Red: other data than `fetch` prepares; a mistake without its key."""
    keys = {"source": "digits", "per_class": 20, "test_per_class": 15, "seed": 0}
    data = prepare_data(keys | {"normalisation": "standardise"})
    assert torch.equal(data.test.inputs, prepare(DIGITS, Path(), None, progress=False).test.inputs)
    with pytest.raises(InputError, match=r"^data\.normalisation: missing; add it$"):
        prepare_data(keys)


# --- the official files, from the folder that NCPIPE_MIRROR names ---------------------------------------


def official(test):
    """Mark a test that reads them."""
    missing = pytest.mark.skipif("NCPIPE_MIRROR" not in os.environ, reason="NCPIPE_MIRROR names no mirror")
    return pytest.mark.real_data(missing(test))


@pytest.fixture
def mirror() -> Path:
    return Path(os.environ["NCPIPE_MIRROR"])


@official
def test_the_official_mnist(tmp_path, mirror):
    data = prepare(ImageData("mnist", 5421, None, 0, "unit"), tmp_path, mirror, progress=False)
    assert data.facts["official"] == {"train": 60000, "test": 10000}
    # The published sizes of the test classes; 5421 is the smallest training class, that of the fives.
    assert data.facts["counts"]["test"] == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert len(data.train) == 54210
    assert data.train.inputs.aminmax() == (0, 1)
    assert data.facts["duplicates"]["conflicting"] == 0


@official
def test_the_official_cifar10(tmp_path, mirror):
    data = prepare(ImageData("cifar10", 5000, None, 0, "standardise"), tmp_path, mirror, progress=False)
    assert data.train.inputs.shape == (50000, 3, 32, 32)
    assert data.facts["counts"] == {"train": [5000] * 10, "test": [1000] * 10}
    normalisation = data.facts["normalisation"]
    # The constants everyone uses for the whole training set.
    torch.testing.assert_close(normalisation["mean"], [0.4914, 0.4822, 0.4465], rtol=0, atol=1e-4)
    torch.testing.assert_close(normalisation["std"], [0.2470, 0.2435, 0.2616], rtol=0, atol=1e-4)
    assert data.train.inputs.double().mean((0, 2, 3)).abs().max() < 1e-6


@official
def test_the_official_imdb(tmp_path, mirror):
    spec = TextData("imdb", 50, 30, 0, "corpus", 4000, 64, "start")
    data = prepare(spec, tmp_path, mirror, progress=False)
    assert data.facts["official"] == {"train": 25000, "test": 25000}
    assert data.facts["counts"] == {"train": [50, 50], "test": [30, 30]}
    other = prepare(replace(spec, seed=1, per_class=40, keep="end"), tmp_path, mirror, progress=False)
    # The tokenizer is trained on all 25,000 reviews, whatever is drawn.
    assert other.facts["tokenizer"] == data.facts["tokenizer"]
    assert not torch.equal(other.train.inputs, data.train.inputs[:80])
