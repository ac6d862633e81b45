"""From what params.yaml says of the data to prepared tensors."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ncpipe.config.specs import (
    ArraysData,
    Data,
    FreeData,
    GaussianMixtureData,
    ImageData,
    MarkovData,
    NextTokenData,
    TextData,
)
from ncpipe.config.study import loaded
from ncpipe.config.transfer_specs import OtherImages, Transfer
from ncpipe.datasets.labels import changed
from ncpipe.datasets.prepared import Prepared
from ncpipe.system.errors import InputError


def prepare(spec: Data, raw: Path, mirror: Path | None, progress: bool) -> Prepared:
    """Fetch the official files where they are not in `raw` yet, and make the balanced draw that `spec` asks.

    mirror: a folder with the official files, used instead of the network. progress: bars on standard error
    if that is a terminal. Raises InputError that names the file, address or key at fault.
    """
    if mirror is not None and not mirror.is_dir():
        raise InputError(f"{mirror}: the mirror is not a folder; correct --mirror or NCPIPE_MIRROR")
    if function := loaded().data.get(type(spec)):
        from ncpipe.datasets.arrays import prepare_own

        return prepare_own(spec, function)
    data = SOURCES[spec.source](spec, raw, mirror, progress)
    data = changed(data, spec)
    return data if spec.transfer is None else _parted(data, spec, spec.transfer, raw, mirror, progress)


def _parted(
    data: Prepared, spec: Data, transfer: Transfer, raw: Path, mirror: Path | None, progress: bool
) -> Prepared:
    from ncpipe.datasets.transfer import parted

    other = "none" if transfer.data is None else transfer.data.source
    return parted(data, transfer, TARGETS[other](spec, transfer.data, raw, mirror, progress))


# Each source brings libraries that take seconds to import; only the one in use is loaded.


def _gaussian_mixture(spec: GaussianMixtureData, *_: object) -> Prepared:
    from ncpipe.datasets.gaussian_mixture import prepare_gaussian_mixture

    return prepare_gaussian_mixture(spec)


def _free(spec: FreeData, *_: object) -> Prepared:
    from ncpipe.datasets.free import prepare_free

    return prepare_free(spec)


def _arrays(spec: ArraysData, *_: object) -> Prepared:
    from ncpipe.datasets.arrays import prepare_arrays

    return prepare_arrays(spec)


def _imdb(spec: TextData, raw: Path, mirror: Path | None, progress: bool) -> Prepared:
    from ncpipe.datasets.imdb import prepare_imdb

    return prepare_imdb(spec, raw, mirror, progress)


def _markov(spec: MarkovData, *_: object) -> Prepared:
    from ncpipe.datasets.markov import prepare_markov

    return prepare_markov(spec)


def _text(spec: NextTokenData, raw: Path, mirror: Path | None, progress: bool) -> Prepared:
    from ncpipe.datasets.next_tokens import prepare_text

    return prepare_text(spec, raw, mirror, progress)


def _digits(spec: ImageData, *_: object) -> Prepared:
    from ncpipe.datasets.digits import prepare_digits

    return prepare_digits(spec)


def _mnist(spec: ImageData, raw: Path, mirror: Path | None, progress: bool) -> Prepared:
    from ncpipe.datasets.torchvision_images import prepare_mnist

    return prepare_mnist(spec, raw, mirror, progress)


def _cifar(spec: ImageData, raw: Path, mirror: Path | None, progress: bool) -> Prepared:
    from ncpipe.datasets.torchvision_images import prepare_cifar

    return prepare_cifar(spec, raw, mirror, progress)


def _svhn(spec: ImageData, raw: Path, mirror: Path | None, progress: bool) -> Prepared:
    from ncpipe.datasets.torchvision_images import prepare_svhn

    return prepare_svhn(spec, raw, mirror, progress)


SOURCES: Mapping[str, Callable[..., Prepared]] = MappingProxyType(
    {
        "gaussian_mixture": _gaussian_mixture,
        "free": _free,
        "arrays": _arrays,
        "imdb": _imdb,
        "markov": _markov,
        "text": _text,
        "digits": _digits,
        "mnist": _mnist,
        "fashion_mnist": _mnist,
        "kmnist": _mnist,
        "cifar10": _cifar,
        "cifar100": _cifar,
        "svhn": _svhn,
    }
)
# Other images, of which the target classes of `data.transfer` are: another choice of an experiment's.


def _no_images(*_: object) -> None:
    """The target classes are the data's own."""


def _images(spec: ImageData, other: OtherImages) -> ImageData:
    """Drawn as the data themselves are, but for a test image each that nothing reads."""
    return ImageData(other.source, other.per_class, 1, other.seed, spec.normalisation)


def _other_digits(spec: ImageData, other: OtherImages, *_: object) -> Prepared:
    return _digits(_images(spec, other))


def _other_mnist(spec: ImageData, other: OtherImages, *rest: Any) -> Prepared:
    return _mnist(_images(spec, other), *rest)


def _other_cifar(spec: ImageData, other: OtherImages, *rest: Any) -> Prepared:
    return _cifar(_images(spec, other), *rest)


def _other_svhn(spec: ImageData, other: OtherImages, *rest: Any) -> Prepared:
    return _svhn(_images(spec, other), *rest)


TARGETS: Mapping[str, Callable[..., Prepared | None]] = MappingProxyType(
    {
        "none": _no_images,
        "digits": _other_digits,
        "mnist": _other_mnist,
        "fashion_mnist": _other_mnist,
        "kmnist": _other_mnist,
        "cifar10": _other_cifar,
        "cifar100": _other_cifar,
        "svhn": _other_svhn,
    }
)
