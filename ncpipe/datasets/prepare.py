"""From what params.yaml says of the data to prepared tensors."""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from ncpipe.config.experiment import Data
from ncpipe.config.records import read
from ncpipe.config.sources.images import ImageData
from ncpipe.config.sources.reviews import TextData
from ncpipe.config.specs import OwnData
from ncpipe.config.transfer_specs import OtherImages
from ncpipe.config.unions import TaggedBy
from ncpipe.datasets.arrays import prepare_arrays, prepare_own
from ncpipe.datasets.generated import (
    prepare_free,
    prepare_gaussian_mixture,
    prepare_modular,
    prepare_teacher,
)
from ncpipe.datasets.images import prepare_digits
from ncpipe.datasets.labels import with_label_changes
from ncpipe.datasets.markov import prepare_markov
from ncpipe.datasets.next_tokens import prepare_text
from ncpipe.datasets.outliers import with_other_images
from ncpipe.datasets.prepared import Prepared
from ncpipe.datasets.transfer import split_for_transfer
from ncpipe.system.artifacts import RAW
from ncpipe.system.errors import InputError


def prepare_data(keys: Mapping[str, Any]) -> Prepared:
    """Return the data set of these keys, as below `data` in params.yaml, with `train` and `test`.

    Official files are downloaded to data/raw, or taken from the folder that NCPIPE_MIRROR names. Raises
    InputError as `prepare`, and with a line for each mistake in the keys.
    """
    mirror = os.environ.get("NCPIPE_MIRROR")
    spec = read(Annotated[Data, TaggedBy("source")], dict(keys), "data")
    return prepare(spec, RAW, Path(mirror) if mirror else None, progress=True)


def prepare(spec: Data, raw: Path, mirror: Path | None, progress: bool) -> Prepared:
    """Fetch the official files where they are not in `raw` yet, and make the balanced draw that `spec` asks.

    mirror: a folder with the official files, used instead of the network. progress: bars on standard error
    if that is a terminal. Raises InputError that names the file, address or key at fault.
    """
    if mirror is not None and not mirror.is_dir():
        raise InputError(f"{mirror}: the mirror is not a folder; correct --mirror or NCPIPE_MIRROR")
    if isinstance(spec, OwnData):
        return prepare_own(spec)
    data = SOURCES[spec.source](spec, raw, mirror, progress)
    data = with_label_changes(data, spec)

    def images(other: OtherImages, **changes: str) -> Prepared:
        """Draw them as the data themselves are, but for one test image of each class, which nothing reads."""
        test = None if other.source == "digits" else 1  # which has one set for both splits
        keys: Any = asdict(other) | {"test_per_class": test, "transfer": None, "ood": None} | changes
        return SOURCES[other.source](replace(spec, **keys), raw, mirror, progress)

    if spec.transfer is not None:
        target = spec.transfer.data
        other = None if target is None else images(target)
        data = split_for_transfer(data, spec.transfer, other)
    if isinstance(spec, ImageData) and spec.ood is not None:
        data = with_other_images(data, spec.ood, images(spec.ood, normalisation="unit"))
    return data


# Sources whose libraries take seconds to import: only the one in use is loaded.


def _imdb(spec: TextData, raw: Path, mirror: Path | None, progress: bool) -> Prepared:
    from ncpipe.datasets.imdb import prepare_imdb

    return prepare_imdb(spec, raw, mirror, progress)


def _official_images(spec: ImageData, raw: Path, mirror: Path | None, progress: bool) -> Prepared:
    from ncpipe.datasets.torchvision_images import prepare_official

    return prepare_official(spec, raw, mirror, progress)


SOURCES: Mapping[str, Callable[..., Prepared]] = MappingProxyType(
    {
        "gaussian_mixture": prepare_gaussian_mixture,
        "modular": prepare_modular,
        "teacher": prepare_teacher,
        "free": prepare_free,
        "arrays": prepare_arrays,
        "imdb": _imdb,
        "markov": prepare_markov,
        "text": prepare_text,
        "digits": prepare_digits,
        "mnist": _official_images,
        "fashion_mnist": _official_images,
        "kmnist": _official_images,
        "cifar10": _official_images,
        "cifar100": _official_images,
        "svhn": _official_images,
    }
)
