"""From what params.yaml says of the data to prepared tensors."""

from collections.abc import Callable
from pathlib import Path

from ncpipe.datasets.labels import changed
from ncpipe.datasets.prepared import Prepared
from ncpipe.errors import InputError
from ncpipe.specs import ArraysData, Data, FreeData, GaussianMixtureData, ImageData, TextData
from ncpipe.study import loaded


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
    return data if isinstance(spec, FreeData) else changed(data, spec)


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


SOURCES: dict[str, Callable[..., Prepared]] = {
    "gaussian_mixture": _gaussian_mixture,
    "free": _free,
    "arrays": _arrays,
    "imdb": _imdb,
    "digits": _digits,
    "mnist": _mnist,
    "fashion_mnist": _mnist,
    "kmnist": _mnist,
    "cifar10": _cifar,
    "cifar100": _cifar,
    "svhn": _svhn,
}
