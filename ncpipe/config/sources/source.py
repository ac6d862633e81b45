"""Define what all data specs have, and keys that several of them share: wrong labels and small classes."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ncpipe.config.bounds import Bound, Count, Index
from ncpipe.config.transfer_specs import Transfer

Targets = Literal["classes", "vectors", "tags"]


@dataclass(frozen=True)
class LabelNoise:
    """Wrong training labels; metrics are computed for the given and for the true labels.

    fraction: share of the training samples whose label is replaced; the samples of a smaller fraction are
    among those of a larger one.
    kind: `uniform` draws each label from all classes, the true one included; `permutation` permutes the
    labels of these samples, so that every class keeps its size.
    seed: seed of the draw of these samples and of their labels.
    """

    fraction: Annotated[float, Bound(low=0, high=1)]
    kind: Literal["uniform", "permutation"]
    seed: Index


@dataclass(frozen=True)
class Imbalance:
    """Fewer training samples of some classes; the test split stays as it is.

    majority: number of classes, the first ones, that keep `per_class` samples; null for a long tail, where
    each class has the same share of the samples of the one before, as in CIFAR-100-LT.
    ratio: size of a majority class, or of a long tail's first class, over that of a minority class, or of the
    last one; sizes are per_class / ratio for these, rounded.
    resample: `over` repeats the samples of the small classes until they are per_class again; `none` does not.
    """

    majority: Count | None
    ratio: Annotated[float, Bound(1, 10**6)]  # no data set has as many samples of a class
    resample: Literal["none", "over"]


class DataSpec:
    """Base of the records below `data` in params.yaml; the first field of each is `source`.

    targets: what is predicted of a sample, one of `classes`, a vector, or its `tags`, some of the classes.
    label_noise, imbalance, transfer: as in ImageData, where a record has these keys.
    side: length that a patch has to divide: an image's side or a vector's length; None if unknown before the
    data are read.
    """

    source: str
    targets: Targets = "classes"
    label_noise: LabelNoise | None = None
    imbalance: Imbalance | None = None
    transfer: Transfer | None = None
    side: int | None = None
