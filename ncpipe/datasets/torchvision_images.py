"""MNIST, CIFAR, SVHN and their kin: official files checked against torchvision's own MD5 lists, read by it.

Files are fetched by ncpipe.datasets.sources, which writes them whole or not at all, can be silent and
reads mirrors; torchvision finds them in place and does not use the network.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision.datasets import CIFAR10, CIFAR100, KMNIST, MNIST, SVHN, FashionMNIST

from ncpipe.config.sources.images import ImageData
from ncpipe.datasets.images import Pool, from_splits
from ncpipe.datasets.prepared import Prepared
from ncpipe.datasets.sources import copy_verified, fetch_verified, find_official, require_md5, unpack_verified
from ncpipe.system.errors import InputError

LARGEST = 255
Official = type[Any]  # torchvision has no types
MNIST_LIKE: Mapping[str, Official] = {"mnist": MNIST, "fashion_mnist": FashionMNIST, "kmnist": KMNIST}
CIFAR: Mapping[str, tuple[Official, int]] = {"cifar10": (CIFAR10, 10), "cifar100": (CIFAR100, 100)}


def prepare_official(spec: ImageData, raw: Path, mirror: Path | None, progress: bool) -> Prepared:
    """Prepare a set in MNIST's format, one of CIFAR's, or SVHN: images (N, channels, side, side)."""
    prepare = _mnist if spec.source in MNIST_LIKE else _cifar if spec.source in CIFAR else _svhn
    return prepare(spec, raw, mirror, progress)


def _mnist(spec: ImageData, raw: Path, mirror: Path | None, progress: bool) -> Prepared:
    official = MNIST_LIKE[spec.source]
    _fetch_mnist(official, raw, mirror, progress)
    train, test = (_read_mnist(official, raw, train) for train in (True, False))
    return from_splits(spec, train, test, LARGEST, {name: f"md5:{md5}" for name, md5 in official.resources})


def _fetch_mnist(official: Official, raw: Path, mirror: Path | None, progress: bool) -> None:
    place = f"{official.__name__}/raw"
    for name, md5 in official.resources:
        target, urls = raw / place / name, [f"{url}{name}" for url in official.mirrors]
        # All of them have the same names: only MNIST's may lie about.
        names = [f"{place}/{name}", *([name] if official is MNIST else [])]
        fetch_verified(target, md5, urls, mirror, names, progress)
        # Only the archives have checksums; a leftover from an interrupted unpacking would be believed.
        target.with_suffix("").unlink(missing_ok=True)
    official(raw, download=True)


def _read_mnist(official: Official, raw: Path, train: bool) -> Pool:
    data = official(raw, train=train)
    return Pool(data.data[:, None], data.targets.long(), 10)


def _cifar(spec: ImageData, raw: Path, mirror: Path | None, progress: bool) -> Prepared:
    """Prepare CIFAR-10, or CIFAR-100 with its fine labels."""
    official, classes = CIFAR[spec.source]
    meta = official.meta["filename"], official.meta["md5"]
    files = dict((*official.train_list, *official.test_list, meta))
    _fetch_cifar(official, raw, mirror, files, progress)
    train, test = (_read_cifar(official, raw, train, classes) for train in (True, False))
    return from_splits(spec, train, test, LARGEST, {name: f"md5:{md5}" for name, md5 in files.items()})


def _fetch_cifar(
    official: Official, raw: Path, mirror: Path | None, files: dict[str, str], progress: bool
) -> None:
    folder = raw / official.base_folder
    missing = {name: md5 for name, md5 in files.items() if not (folder / name).is_file()}
    for name in files.keys() - missing.keys():
        require_md5(folder / name, files[name])
    if not missing:
        return
    names = [official.base_folder, official.filename, f"{official.base_folder}.tar.xz"]
    archive = raw / official.filename
    source = find_official(archive, official.tgz_md5, [official.url], mirror, names, progress)
    if source.is_file():
        unpack_verified(source, official.base_folder, missing, folder, progress)
        return
    for name, md5 in missing.items():
        if not (source / name).is_file():
            raise InputError(f"{source / name}: not found; put the official file there")
        copy_verified(source / name, folder / name, md5)


def _read_cifar(official: Official, raw: Path, train: bool, classes: int) -> Pool:
    with warnings.catch_warnings():
        # The official pickles predate the type NumPy now wants for this argument.
        warnings.filterwarnings("ignore", r"dtype\(\): align should be passed")
        data = official(raw, train=train)
    pixels = np.ascontiguousarray(data.data.transpose(0, 3, 1, 2))
    return Pool(torch.from_numpy(pixels), torch.tensor(data.targets, dtype=torch.int64), classes)


def _svhn(spec: ImageData, raw: Path, mirror: Path | None, progress: bool) -> Prepared:
    """Prepare SVHN's cropped digits without the extra ones, labelled by digit."""
    files = {split: SVHN.split_list[split] for split in ("train", "test")}
    folder = raw / "SVHN"
    for url, name, md5 in files.values():
        fetch_verified(folder / name, md5, [url], mirror, [f"SVHN/{name}", name], progress)
    train, test = (_read_svhn(folder, split) for split in files)
    return from_splits(spec, train, test, LARGEST, {name: f"md5:{md5}" for _, name, md5 in files.values()})


def _read_svhn(folder: Path, split: str) -> Pool:
    data = SVHN(folder, split)
    pixels = np.ascontiguousarray(data.data)
    return Pool(torch.from_numpy(pixels), torch.from_numpy(data.labels), 10)
