"""MNIST and CIFAR-10: official files checked against torchvision's own MD5 lists and read by its classes.

Files are fetched by ncpipe.datasets.sources, which writes them whole or not at all, can be silent and
reads mirrors; torchvision finds them in place and does not use the network.
"""

import warnings
from pathlib import Path

import numpy as np
import torch
from torchvision.datasets import CIFAR10, MNIST

from ncpipe.datasets.images import Pool, from_splits
from ncpipe.datasets.prepared import Prepared
from ncpipe.datasets.sources import copy_verified, download, first_existing, require_md5, unpack_verified
from ncpipe.errors import InputError
from ncpipe.specs import ImageData

LARGEST = 255


def prepare_mnist(spec: ImageData, raw: Path, mirror: Path | None, progress: bool) -> Prepared:
    """Images (N, 1, 28, 28)."""
    _fetch_mnist(raw, mirror, progress)
    train, test = (_read_mnist(raw, train) for train in (True, False))
    return from_splits(spec, train, test, LARGEST, {name: f"md5:{md5}" for name, md5 in MNIST.resources})


def _fetch_mnist(raw: Path, mirror: Path | None, progress: bool) -> None:
    folder = raw / "MNIST" / "raw"
    for name, md5 in MNIST.resources:
        target = folder / name
        if target.is_file():
            require_md5(target, md5)
        elif mirror is not None:
            copy_verified(
                first_existing(mirror, [mirror / "MNIST" / "raw" / name, mirror / name]), target, md5
            )
        else:
            download([f"{url}{name}" for url in MNIST.mirrors], target, md5, progress)
        # Only the archives have checksums; a leftover from an interrupted unpacking would be believed.
        target.with_suffix("").unlink(missing_ok=True)
    MNIST(raw, download=True)


def _read_mnist(raw: Path, train: bool) -> Pool:
    data = MNIST(raw, train=train)
    return Pool(data.data[:, None], data.targets.long())


def prepare_cifar10(spec: ImageData, raw: Path, mirror: Path | None, progress: bool) -> Prepared:
    """Images (N, 3, 32, 32)."""
    files = dict((*CIFAR10.train_list, *CIFAR10.test_list, (CIFAR10.meta["filename"], CIFAR10.meta["md5"])))
    _fetch_cifar10(raw, mirror, files, progress)
    train, test = (_read_cifar10(raw, train) for train in (True, False))
    return from_splits(spec, train, test, LARGEST, {name: f"md5:{md5}" for name, md5 in files.items()})


def _fetch_cifar10(raw: Path, mirror: Path | None, files: dict[str, str], progress: bool) -> None:
    folder = raw / CIFAR10.base_folder
    missing = {name: md5 for name, md5 in files.items() if not (folder / name).is_file()}
    for name in files.keys() - missing.keys():
        require_md5(folder / name, files[name])
    if not missing:
        return
    source = _cifar10_source(raw, mirror, progress)
    if source.is_file():
        unpack_verified(source, CIFAR10.base_folder, missing, folder, progress)
        return
    for name, md5 in missing.items():
        if not (source / name).is_file():
            raise InputError(f"{source / name}: not found; put the official file there")
        copy_verified(source / name, folder / name, md5)


def _cifar10_source(raw: Path, mirror: Path | None, progress: bool) -> Path:
    """The folder or archive to take the batches from, downloaded where there is neither."""
    archive = raw / CIFAR10.filename
    if archive.is_file():
        require_md5(archive, CIFAR10.tgz_md5)
    elif mirror is not None:
        names = (CIFAR10.base_folder, CIFAR10.filename, f"{CIFAR10.base_folder}.tar.xz")
        return first_existing(mirror, [mirror / name for name in names])
    else:
        download([CIFAR10.url], archive, CIFAR10.tgz_md5, progress)
    return archive


def _read_cifar10(raw: Path, train: bool) -> Pool:
    with warnings.catch_warnings():
        # The official pickles predate the type NumPy now wants for this argument.
        warnings.filterwarnings("ignore", r"dtype\(\): align should be passed")
        data = CIFAR10(raw, train=train)
    pixels = np.ascontiguousarray(data.data.transpose(0, 3, 1, 2))
    return Pool(torch.from_numpy(pixels), torch.tensor(data.targets, dtype=torch.int64))
