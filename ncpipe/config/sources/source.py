"""Define what all data specs have, and keys that several of them share: wrong labels and small classes."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ncpipe.config.bounds import Bound, Count, Index

Targets = Literal["classes", "vectors", "tags"]


class PlainData:
    """Base of data specs without label noise, imbalance and transfer, and without a side.

    targets: what is predicted of a sample, one of `classes`, a vector, or its `tags`, some of the classes.
    side: length that a patch has to divide: an image's side or a vector's length; None if unknown before the
    data are read.
    """

    targets: ClassVar[Targets] = "classes"
    label_noise: ClassVar[None] = None
    imbalance: ClassVar[None] = None
    transfer: ClassVar[None] = None
    side: ClassVar[None] = None


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

    majority: number of classes, the first ones, that keep `per_class` samples.
    ratio: size of a majority class over that of a minority class, which keeps per_class / ratio, rounded.
    resample: `over` repeats the samples of the small classes until they are per_class again; `none` does not.
    """

    majority: Count
    ratio: Annotated[float, Bound(1, 10**6)]  # no data set has as many samples of a class
    resample: Literal["none", "over"]
