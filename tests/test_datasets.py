"""Preparing data, on small files in the official formats whose checksums take the official ones' place."""

import gzip
import hashlib
import http.client
import importlib
import io
import json
import pickle
import random
import shutil
import subprocess
import sys
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
from ncpipe.datasets import digits, sources
from ncpipe.datasets.facts import count_duplicates, count_shared
from ncpipe.datasets.prepare import prepare
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
    with tarfile.open(path, f"w:{path.suffix[1:]}") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


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


# --- the stored form ----------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_prepared(Path("data/one"), prepare(DIGITS, Path("raw"), None, progress=False))
    return Path("data/one")


def test_prepared_round_trip(stored):
    data = prepare(DIGITS, Path("raw"), None, progress=False)
    back = read_prepared(stored)
    for split in ("train", "test"):
        assert torch.equal(getattr(back, split).inputs, getattr(data, split).inputs)
        assert torch.equal(getattr(back, split).labels, getattr(data, split).labels)
        assert getattr(back, split).lengths is None
    assert (back.kind, back.classes, back.vocabulary, back.facts) == ("image", 10, None, data.facts)


def test_prepared_twice_has_equal_bytes(stored):
    write_prepared(Path("data/two"), prepare(DIGITS, Path("raw"), None, progress=False))
    for name in ("tensors.safetensors", "facts.json"):
        assert (stored / name).read_bytes() == Path("data/two", name).read_bytes()


@pytest.mark.parametrize("damage", [cut_short, lambda path: flip_byte(path, -1), Path.unlink])
def test_damaged_tensors_are_refused(stored, damage):
    damage(stored / "tensors.safetensors")
    with pytest.raises(InputError, match=r"data/one/tensors\.safetensors"):
        read_prepared(stored)


# --- the draw -----------------------------------------------------------------------------------------


def test_draw_is_balanced_and_ordered_by_class():
    labels = torch.tensor([2, 0, 1, 1, 0, 2, 2, 1, 0, 0])
    chosen = draw_balanced(labels, 3, 2, seeded_generator(0, "train"), "train")
    assert labels[chosen].tolist() == [0, 0, 1, 1, 2, 2]
    assert len(set(chosen.tolist())) == 6
    assert torch.equal(draw_balanced(labels, 3, None, seeded_generator(0, "test"), "test"), torch.arange(10))


@pytest.mark.parametrize(("split", "key"), [("train", "data.per_class"), ("test", "data.test_per_class")])
def test_draw_names_the_class_that_is_too_small(split, key):
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    message = f"class 1 of the {split} split has 2 samples, fewer than 3; lower {key}$"
    with pytest.raises(InputError, match=message):
        draw_balanced(labels, 3, 3, seeded_generator(0, split), split)


def test_streams_of_all_seeds_differ():
    streams = [("train", 0), ("test", 0), ("centres", 0), ("train", 1), ("train", 2**32 - 1)]
    draws = {
        tuple(torch.randperm(50, generator=seeded_generator(seed, name)).tolist()) for name, seed in streams
    }
    assert len(draws) == len(streams)


@pytest.mark.parametrize("source", ["images", "gaussian_mixture", "imdb"])
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
    centres = ["data centres"] if source == "gaussian_mixture" else []
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


# --- digits and normalisation -------------------------------------------------------------------------


@pytest.mark.parametrize("found", [True, False], ids=["file", "loader"])
def test_digits_splits_partition_the_images(raw, found, monkeypatch):
    from sklearn.datasets import load_digits

    if not found:
        monkeypatch.setattr(digits, "find_spec", lambda name: None)
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


def test_standardised_with_the_constants_of_the_training_set(raw):
    plain = prepare(replace(DIGITS, normalisation="unit"), raw, None, progress=False)
    data = prepare(DIGITS, raw, None, progress=False)
    train = plain.train.inputs.double()
    mean, std = train.mean(), train.std(correction=0)
    for split in ("train", "test"):
        expected = (getattr(plain, split).inputs.double() - mean) / std
        torch.testing.assert_close(getattr(data, split).inputs, expected.float())
    assert data.facts["normalisation"]["mean"] == pytest.approx([mean.item()], abs=1e-12)
    assert data.facts["normalisation"]["std"] == pytest.approx([std.item()], abs=1e-12)
    assert "mean" not in plain.facts["normalisation"]
    assert plain.train.inputs.aminmax() == (0, 1)


# --- mnist --------------------------------------------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    """The idx format: type 8 (unsigned byte), rank, big-endian sizes, bytes."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def write_mnist(
    mirror: Path, monkeypatch, images: np.ndarray, labels: np.ndarray, name: str = "MNIST"
) -> None:
    """The first 60 samples as training files, the rest as test files. name: torchvision's, of the set."""
    from torchvision import datasets

    contents = {
        "train-images-idx3-ubyte.gz": images[:60],
        "train-labels-idx1-ubyte.gz": labels[:60],
        "t10k-images-idx3-ubyte.gz": images[60:],
        "t10k-labels-idx1-ubyte.gz": labels[60:],
    }
    files = {file: gzip.compress(idx(array), mtime=0) for file, array in contents.items()}
    folder = mirror / name / "raw"
    folder.mkdir(parents=True)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    resources = [(file, md5(content)) for file, content in files.items()]
    monkeypatch.setattr(getattr(datasets, name), "resources", resources)


@pytest.fixture
def mnist(tmp_path, monkeypatch, offline) -> Path:
    images = np.random.default_rng(1).integers(0, 256, (90, 28, 28))
    # The label is written into the corner, to see that images keep their labels.
    labels = np.tile(np.arange(10), 9)
    images[:, 0, 0] = labels
    write_mnist(tmp_path / "mirror", monkeypatch, images, labels)
    return tmp_path / "mirror"


def test_mnist_from_a_mirror_then_from_the_copy(mnist, raw):
    data = prepare(replace(MNIST, normalisation="unit"), raw, mnist, progress=False)
    assert data.facts["official"] == {"train": 60, "test": 30}
    assert data.facts["counts"] == {"train": [4] * 10, "test": [2] * 10}
    assert data.train.inputs.shape == (40, 1, 28, 28)
    for split in (data.train, data.test):
        assert (split.inputs[:, 0, 0, 0] * 255).round().long().tolist() == split.labels.tolist()
    again = prepare(replace(MNIST, normalisation="unit"), raw, None, progress=False)
    assert torch.equal(again.test.inputs, data.test.inputs)
    assert again.facts == data.facts


def test_mnist_files_directly_in_the_mirror(mnist, raw):
    for path in (mnist / "MNIST" / "raw").iterdir():
        path.rename(mnist / path.name)
    assert len(prepare(MNIST, raw, mnist, progress=False).train) == 40


@pytest.mark.parametrize("damage", [cut_short, lambda path: flip_byte(path, 40)])
@pytest.mark.parametrize("copied", [False, True])
def test_damaged_mnist_is_refused_by_name(mnist, raw, damage, copied):
    if copied:
        prepare(MNIST, raw, mnist, progress=False)
    damage((raw if copied else mnist) / "MNIST" / "raw" / "t10k-images-idx3-ubyte.gz")
    expected = f"{'raw' if copied else 'mirror'}/MNIST/raw/t10k-images-idx3-ubyte.gz: damaged or cut short"
    with pytest.raises(InputError, match=f"{expected}.*delete it and fetch it again"):
        prepare(MNIST, raw, mnist, progress=False)


def test_half_unpacked_mnist_is_unpacked_again(mnist, raw):
    first = prepare(MNIST, raw, mnist, progress=False)
    flip_byte(raw / "MNIST" / "raw" / "train-images-idx3-ubyte", -1)
    cut_short(raw / "MNIST" / "raw" / "t10k-images-idx3-ubyte")
    again = prepare(MNIST, raw, None, progress=False)
    assert torch.equal(again.train.inputs, first.train.inputs)
    assert torch.equal(again.test.inputs, first.test.inputs)


def test_constant_channel_cannot_be_standardised(tmp_path, monkeypatch, raw):
    write_mnist(tmp_path / "mirror", monkeypatch, np.full((90, 28, 28), 7), np.tile(np.arange(10), 9))
    with pytest.raises(InputError, match=r"data\.normalisation: channel 0 is constant"):
        prepare(MNIST, raw, tmp_path / "mirror", progress=False)
    flat = prepare(replace(MNIST, normalisation="unit"), raw, tmp_path / "mirror", progress=False)
    assert flat.facts["duplicates"] == {"repeated": 39, "conflicting": 1}


# --- cifar10 ------------------------------------------------------------------------------------------

BATCHES = "cifar-10-batches-py"


@pytest.fixture
def cifar(monkeypatch, offline) -> dict[str, bytes]:
    """The batch files, ten images each; of every image the label is the first pixel of each channel."""
    from torchvision.datasets import CIFAR10

    generator = np.random.default_rng(2)

    def batch() -> bytes:
        pixels = generator.integers(0, 256, (10, 3, 1024), dtype=np.uint8)
        labels = generator.permutation(10)
        pixels[:, :, 0] = labels[:, None] + np.array([0, 20, 40])
        return pickle.dumps({"data": pixels.reshape(10, 3072), "labels": labels.tolist()})

    files = {f"data_batch_{number}": batch() for number in range(1, 6)}
    monkeypatch.setattr(CIFAR10, "train_list", [[name, md5(content)] for name, content in files.items()])
    files["test_batch"] = batch()
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", md5(files["test_batch"])]])
    files["batches.meta"] = pickle.dumps({"label_names": list("abcdefghij")})
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": md5(files["batches.meta"])})
    return files


def write_cifar(mirror: Path, files: dict[str, bytes], form: str) -> Path:
    """`files` in the mirror as the folder, the official archive or the repacked one."""
    mirror.mkdir(exist_ok=True)
    path = mirror / form
    if form == BATCHES:
        path.mkdir()
        for name, content in files.items():
            (path / name).write_bytes(content)
    else:
        make_tar(path, {f"{BATCHES}/{name}": content for name, content in files.items()})
    return path


CIFAR_FORMS = [BATCHES, "cifar-10-python.tar.gz", f"{BATCHES}.tar.xz"]


@pytest.mark.parametrize("form", CIFAR_FORMS)
def test_cifar10_from_each_form_of_a_mirror_then_from_the_copy(tmp_path, raw, cifar, form):
    write_cifar(tmp_path / "mirror", cifar, form)
    spec = replace(CIFAR, normalisation="unit")
    data = prepare(spec, raw, tmp_path / "mirror", progress=False)
    assert data.facts["official"] == {"train": 50, "test": 10}
    assert data.train.inputs.shape == (40, 3, 32, 32)
    for split in (data.train, data.test):
        corner = (split.inputs[:, :, 0, 0] * 255).round().long()
        assert torch.equal(corner, split.labels[:, None] + torch.tensor([0, 20, 40]))
    again = prepare(spec, raw, None, progress=False)
    assert torch.equal(again.train.inputs, data.train.inputs)


def test_cifar10_channels_are_standardised_one_by_one(tmp_path, raw, cifar):
    write_cifar(tmp_path / "mirror", cifar, BATCHES)
    data = prepare(CIFAR, raw, tmp_path / "mirror", progress=False)
    train = data.train.inputs.double()
    torch.testing.assert_close(train.mean((0, 2, 3)), torch.zeros(3).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(train.var((0, 2, 3), correction=0), torch.ones(3).double(), rtol=0, atol=1e-6)
    assert data.test.inputs.double().mean((0, 2, 3)).abs().min() > 1e-4


@pytest.mark.parametrize("form", CIFAR_FORMS)
def test_altered_cifar10_member_is_refused_by_name(tmp_path, raw, cifar, form):
    path = write_cifar(tmp_path / "mirror", cifar | {"data_batch_3": cifar["data_batch_2"]}, form)
    with pytest.raises(InputError, match=rf"{path.name}.*data_batch_3.*MD5.*delete"):
        prepare(CIFAR, raw, tmp_path / "mirror", progress=False)
    assert not (raw / BATCHES / "data_batch_3").exists()


@pytest.mark.parametrize("form", CIFAR_FORMS)
def test_missing_cifar10_member_is_named(tmp_path, raw, cifar, form):
    path = write_cifar(tmp_path / "mirror", {k: v for k, v in cifar.items() if k != "test_batch"}, form)
    with pytest.raises(InputError, match=rf"{path.name}.*test_batch"):
        prepare(CIFAR, raw, tmp_path / "mirror", progress=False)


@pytest.mark.parametrize("form", CIFAR_FORMS[1:])
@pytest.mark.parametrize("damage", [cut_short, lambda path: path.write_bytes(b"<html>moved</html>")])
def test_damaged_cifar10_archive_is_refused_by_name(tmp_path, raw, cifar, form, damage):
    damage(write_cifar(tmp_path / "mirror", cifar, form))
    with pytest.raises(InputError, match=f"{form}: damaged or cut short.*delete it and fetch it again"):
        prepare(CIFAR, raw, tmp_path / "mirror", progress=False)


def test_damaged_cifar10_copy_is_refused_by_name(tmp_path, raw, cifar):
    write_cifar(tmp_path / "mirror", cifar, BATCHES)
    prepare(CIFAR, raw, tmp_path / "mirror", progress=False)
    flip_byte(raw / BATCHES / "test_batch", 100)
    with pytest.raises(InputError, match=f"raw/{BATCHES}/test_batch: damaged"):
        prepare(CIFAR, raw, tmp_path / "mirror", progress=False)


# --- the other sets of torchvision --------------------------------------------------------------------


@pytest.mark.parametrize(("source", "name"), [("fashion_mnist", "FashionMNIST"), ("kmnist", "KMNIST")])
def test_sets_in_mnists_format_are_their_own_files(tmp_path, raw, monkeypatch, mnist, source, name):
    """Red: another set's files of the same names taken for this one's."""
    images = np.random.default_rng(5).integers(0, 256, (90, 28, 28))
    labels = np.tile(np.arange(10), 9)
    images[:, 0, 0] = 100 + labels
    write_mnist(tmp_path / "mirror", monkeypatch, images, labels, name)
    for path in (mnist / "MNIST" / "raw").iterdir():  # MNIST's, directly in the mirror
        path.rename(mnist / path.name)
    spec = replace(MNIST, source=source, normalisation="unit")
    data = prepare(spec, raw, tmp_path / "mirror", progress=False)
    assert data.facts["official"] == {"train": 60, "test": 30}
    assert data.train.inputs.shape[-1] == spec.side
    for split in (data.train, data.test):
        assert (split.inputs[:, 0, 0, 0] * 255).round().long().tolist() == (100 + split.labels).tolist()
    assert len(prepare(MNIST, raw, tmp_path / "mirror", progress=False).train) == 40
    assert torch.equal(prepare(spec, raw, None, progress=False).test.inputs, data.test.inputs)
    flip_byte(raw / name / "raw" / "train-images-idx3-ubyte.gz", 40)
    with pytest.raises(InputError, match=f"raw/{name}/raw/train-images-idx3-ubyte.gz: damaged"):
        prepare(spec, raw, None, progress=False)
    shutil.rmtree(tmp_path / "mirror" / name)
    with pytest.raises(InputError, match=f"the mirror holds none of {name}/raw/train-images-idx3-ubyte.gz;"):
        prepare(spec, tmp_path / "other", tmp_path / "mirror", progress=False)


@pytest.fixture
def cifar100(monkeypatch, offline) -> dict[str, bytes]:
    """Its files, 300 and 100 images; of every image the fine label is the first pixel of each channel."""
    from torchvision.datasets import CIFAR100

    generator = np.random.default_rng(6)
    files = {}
    for name, each in (("train", 3), ("test", 1)):
        fine = generator.permutation(np.repeat(np.arange(100), each))
        pixels = generator.integers(0, 256, (len(fine), 3, 1024), dtype=np.uint8)
        pixels[:, :, 0] = fine[:, None]
        content = {"data": pixels.reshape(-1, 3072), "fine_labels": fine.tolist()}
        files[name] = pickle.dumps(content | {"coarse_labels": (fine // 5).tolist()})
        monkeypatch.setattr(CIFAR100, f"{name}_list", [[name, md5(files[name])]])
    files["meta"] = pickle.dumps({"fine_label_names": [str(k) for k in range(100)]})
    monkeypatch.setattr(CIFAR100, "meta", CIFAR100.meta | {"md5": md5(files["meta"])})
    return files


def test_cifar100_has_its_fine_labels(tmp_path, raw, cifar100):
    (tmp_path / "mirror").mkdir()
    archive = tmp_path / "mirror" / "cifar-100-python.tar.gz"
    make_tar(archive, {f"cifar-100-python/{name}": content for name, content in cifar100.items()})
    spec = replace(CIFAR, source="cifar100", per_class=2, normalisation="unit")
    data = prepare(spec, raw, tmp_path / "mirror", progress=False)
    assert data.classes == 100
    assert data.train.inputs.shape[-1] == spec.side
    assert data.facts["counts"] == {"train": [2] * 100, "test": [1] * 100}
    for split in (data.train, data.test):
        corner = (split.inputs[:, :, 0, 0] * 255).round().long()
        assert torch.equal(corner, split.labels[:, None].expand(-1, 3))
    again = prepare(spec, raw, None, progress=False)
    assert torch.equal(again.train.inputs, data.train.inputs)
    cut_short(raw / "cifar-100-python" / "train")
    with pytest.raises(InputError, match="raw/cifar-100-python/train: damaged"):
        prepare(spec, raw, None, progress=False)


@pytest.mark.parametrize("place", ["SVHN", "."])
def test_svhns_digits_are_their_own_labels(tmp_path, raw, monkeypatch, offline, place):
    """In its files images are (32, 32, 3, N), and the digit 0 has the label 10."""
    from scipy.io import savemat
    from torchvision.datasets import SVHN

    generator = np.random.default_rng(7)
    folder = tmp_path / "mirror" / place
    folder.mkdir(parents=True)
    listed = {}
    for split, each in (("train", 5), ("test", 2)):
        digits = generator.permutation(np.repeat(np.arange(10), each))
        pixels = generator.integers(0, 256, (32, 32, 3, len(digits)), dtype=np.uint8)
        pixels[0, 1] = digits + np.array([[0], [20], [40]])
        path = folder / f"{split}_32x32.mat"
        savemat(path, {"X": pixels, "y": np.where(digits == 0, 10, digits).astype(np.uint8)[:, None]})
        listed[split] = ["http://example.org/", path.name, md5(path.read_bytes())]
    monkeypatch.setattr(SVHN, "split_list", listed)
    spec = replace(CIFAR, source="svhn", normalisation="unit")
    data = prepare(spec, raw, tmp_path / "mirror", progress=False)
    assert data.train.inputs.shape == (40, 3, 32, 32)
    assert data.train.inputs.shape[-1] == spec.side
    assert data.facts["official"] == {"train": 50, "test": 20}
    for split in (data.train, data.test):
        pixel = (split.inputs[:, :, 0, 1] * 255).round().long()
        assert torch.equal(pixel, split.labels[:, None] + torch.tensor([0, 20, 40]))
    assert torch.equal(prepare(spec, raw, None, progress=False).test.inputs, data.test.inputs)
    flip_byte(raw / "SVHN" / "test_32x32.mat", 200)
    with pytest.raises(InputError, match=r"raw/SVHN/test_32x32\.mat: damaged or cut short"):
        prepare(spec, raw, None, progress=False)


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
    mirror.mkdir(exist_ok=True)
    path = mirror / form
    files = {f"aclImdb/{name}": content for name, content in reviews.items()}
    files |= {"aclImdb/train/unsup/0_0.txt": b"unlabelled", "aclImdb/README": b"read me"}
    if form != "aclImdb":
        make_tar(path, files)
        return path
    for name, content in files.items():
        (mirror / name).parent.mkdir(parents=True, exist_ok=True)
        (mirror / name).write_bytes(content)
    return path


def decode(inputs: torch.Tensor, length: int, corpus: list[bytes]) -> str:
    from ncpipe.datasets.byte_pairs import train_byte_pairs

    texts = [text.decode().replace("<br />", " ") for text in corpus]
    return train_byte_pairs(texts, 300, False).decode(inputs[:length].tolist())


def official_train(reviews: dict[str, bytes]) -> list[bytes]:
    return [reviews[name] for name in sorted(reviews) if name.startswith("train/")]


def test_imdb_is_the_same_from_each_form_of_a_mirror(tmp_path, raw, reviews):
    found = []
    for form in IMDB_FORMS:
        write_imdb(tmp_path / form, reviews, form)
        found.append(prepare(IMDB, raw, tmp_path / form, progress=False))
    for data in found:
        assert data.facts == found[0].facts
        assert torch.equal(data.train.inputs, found[0].train.inputs)
        assert torch.equal(data.test.lengths, found[0].test.lengths)
    assert found[0].facts["counts"] == {"train": [4, 4], "test": [3, 3]}
    assert found[0].facts["official"] == {"train": 12, "test": 12}
    assert found[0].vocabulary == 300
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


def test_tokens_are_padded_on_the_right_to_their_length(tmp_path, raw, reviews):
    write_imdb(tmp_path / "m", reviews, "aclImdb")
    data = prepare(replace(IMDB, test_per_class=None), raw, tmp_path / "m", progress=False)
    for split in (data.train, data.test):
        assert split.inputs.shape == (len(split), 12)
        assert split.inputs.dtype == split.lengths.dtype == torch.int64
        inside = torch.arange(12) < split.lengths[:, None]
        # No review has a padding token of its own, so padding is all that is 0.
        assert torch.equal(split.inputs != 0, inside)
    assert data.test.lengths.max() == 12
    # Ordered by name: the review of white space only is the fourth positive one.
    assert data.test.lengths[9] == 1
    assert data.test.inputs[9, 0] == 1


def test_keep_start_and_end(tmp_path, raw, reviews):
    write_imdb(tmp_path / "m", reviews, "aclImdb")
    spec = replace(IMDB, test_per_class=None)
    start, end, whole = (
        prepare(replace(spec, keep=keep, context=context), raw, tmp_path / "m", progress=False).test
        for keep, context in (("start", 12), ("end", 12), ("start", 300))
    )
    cut = 0
    for row in range(12):
        ids = whole.inputs[row, : whole.lengths[row]].tolist()
        assert start.inputs[row, : start.lengths[row]].tolist() == ids[:12]
        assert end.inputs[row, : end.lengths[row]].tolist() == ids[-12:]
        cut += len(ids) > 12
    assert cut > 4


@pytest.mark.parametrize("form", IMDB_FORMS)
def test_missing_review_is_refused_with_its_folder(tmp_path, raw, reviews, form):
    del reviews["train/pos/4_8.txt"]
    write_imdb(tmp_path / "m", reviews, form)
    message = f"{form}: aclImdb/train/pos has 5 reviews, the official one 6; delete {form} and fetch it again"
    with pytest.raises(InputError, match=message):
        prepare(IMDB, raw, tmp_path / "m", progress=False)


@pytest.mark.parametrize("form", IMDB_FORMS)
def test_altered_review_is_refused_with_its_split(tmp_path, raw, reviews, form):
    reviews["test/neg/2_8.txt"] = reviews["test/neg/2_8.txt"][:-1]
    write_imdb(tmp_path / "m", reviews, form)
    with pytest.raises(InputError, match=f"{form}: a review of aclImdb/test is not the official one"):
        prepare(IMDB, raw, tmp_path / "m", progress=False)


def test_imdb_archive_in_raw_is_used_if_it_is_the_official_one(tmp_path, raw, reviews, monkeypatch):
    archive = write_imdb(raw, reviews, "aclImdb_v1.tar.gz")
    with pytest.raises(InputError, match=r"raw/aclImdb_v1\.tar\.gz: damaged or cut short"):
        prepare(IMDB, raw, None, progress=False)
    monkeypatch.setattr("ncpipe.datasets.imdb.ARCHIVE_MD5", md5(archive.read_bytes()))
    assert len(prepare(IMDB, raw, None, progress=False).train) == 8


def test_byte_pairs_are_the_same_in_every_process(tmp_path):
    from ncpipe.datasets.byte_pairs import train_byte_pairs

    choose = random.Random(4)
    words = ["".join(choose.choices("abcdé", k=choose.randint(2, 7))) for _ in range(400)]
    corpus = [" ".join(choose.choices(words, k=40)) for _ in range(50)]
    code = (
        "import sys, json; from ncpipe.datasets.byte_pairs import train_byte_pairs;"
        "print(train_byte_pairs(json.loads(sys.argv[1]), 600, False).to_str())"
    )
    here = train_byte_pairs(corpus, 600, progress=False)
    for _ in range(3):
        command = [sys.executable, "-c", code, json.dumps(corpus)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == here.to_str()
    assert (here.token_to_id("[PAD]"), here.token_to_id("[UNK]"), here.get_vocab_size()) == (0, 1, 600)


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
    # Without special tokens of its own, padding is 0 and so is the one token of an empty review.
    assert data.test.lengths[9] == 1


@pytest.mark.parametrize("error", [OSError("We couldn't connect\nto it"), ValueError("unknown kind")])
def test_tokenizer_that_cannot_be_loaded(tmp_path, raw, reviews, monkeypatch, error):
    def fail(name):
        raise error

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
    assert data.facts["duplicates"] == {"repeated": 117, "conflicting": 0}
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
    found = [
        torch.tensor(prepare(replace(spec, seed=seed), raw, None, progress=False).facts["centres"])
        for seed in (0, 1)
    ]
    for centres in found:
        assert torch.linalg.matrix_rank(centres) == 3
        torch.testing.assert_close(centres.norm(dim=1), torch.full((7,), 2.0))
        assert bool((centres.abs().amax(0) > 0.01).all())
    assert torch.linalg.matrix_rank(torch.cat(found)) == 6
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
