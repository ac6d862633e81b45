"""From what params.yaml says of the data to prepared tensors."""

from pathlib import Path

from ncpipe.datasets.prepared import Prepared
from ncpipe.errors import InputError
from ncpipe.specs import ArraysData, Data, GaussianMixtureData, TextData


def prepare(spec: Data, raw: Path, mirror: Path | None, progress: bool) -> Prepared:
    """Fetch the official files where they are not in `raw` yet, and make the balanced draw that `spec` asks.

    mirror: a folder with the official files, used instead of the network. progress: bars on standard error
    if that is a terminal. Raises InputError that names the file, address or key at fault.
    """
    if mirror is not None and not mirror.is_dir():
        raise InputError(f"{mirror}: the mirror is not a folder; correct --mirror or NCPIPE_MIRROR")
    # Each source brings libraries that take seconds to import; only the one in use is loaded.
    if isinstance(spec, GaussianMixtureData):
        from ncpipe.datasets.gaussian_mixture import prepare_gaussian_mixture

        return prepare_gaussian_mixture(spec)
    if isinstance(spec, ArraysData):
        from ncpipe.datasets.arrays import prepare_arrays

        return prepare_arrays(spec)
    if isinstance(spec, TextData):
        from ncpipe.datasets.imdb import prepare_imdb

        return prepare_imdb(spec, raw, mirror, progress)
    match spec.source:
        case "digits":
            from ncpipe.datasets.digits import prepare_digits

            return prepare_digits(spec)
        case "mnist" | "fashion_mnist" | "kmnist":
            from ncpipe.datasets.torchvision_images import prepare_mnist

            return prepare_mnist(spec, raw, mirror, progress)
        case "cifar10" | "cifar100":
            from ncpipe.datasets.torchvision_images import prepare_cifar

            return prepare_cifar(spec, raw, mirror, progress)
        case "svhn":
            from ncpipe.datasets.torchvision_images import prepare_svhn

            return prepare_svhn(spec, raw, mirror, progress)
