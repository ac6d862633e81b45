"""Define the keys of image sets; `ncpipe.datasets.images` draws them."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

from ncpipe.config.architectures.architecture import Kind
from ncpipe.config.bounds import Count, Index
from ncpipe.config.sources.sizes import check_sizes
from ncpipe.config.sources.source import DataSpec, Imbalance, LabelNoise
from ncpipe.config.transfer_specs import OtherImages, Transfer

# Pixels of an image's side, by source.
SIDES = MappingProxyType(
    {
        "digits": 8,
        "mnist": 28,
        "fashion_mnist": 28,
        "kmnist": 28,
        "cifar10": 32,
        "cifar100": 32,
        "svhn": 32,
    }
)


@dataclass(frozen=True)
class ImageData(DataSpec):
    """Balanced draw from an image set; pixels are divided by their largest value first.

    source: the image set; digits comes with scikit-learn, the others are downloaded.
    per_class: training images of each class.
    test_per_class: test images of each class; null takes the whole test split.
    seed: seed of the random draw of samples.
    normalisation: `standardise` subtracts each channel's mean over the drawn training set and divides by
    its standard deviation; `unit` leaves pixels in [0, 1].
    label_noise: wrong training labels; none without it.
    imbalance: classes with fewer training samples; none without it.
    transfer: classes to train on and others to try features on; all are trained on without it.
    ood: images of another set, for scores that tell them from test images; none without it.
    """

    kind: ClassVar[Kind] = "image"

    source: Literal["digits", "mnist", "fashion_mnist", "kmnist", "cifar10", "cifar100", "svhn"]
    per_class: Count
    test_per_class: Count | None
    seed: Index
    normalisation: Literal["standardise", "unit"]
    label_noise: LabelNoise | None = None
    imbalance: Imbalance | None = None
    transfer: Transfer | None = None
    ood: OtherImages | None = None

    def __post_init__(self) -> None:
        check_sizes(self.source, self.per_class, self.test_per_class)
        if self.ood is not None and self.ood.source == self.source:
            raise ValueError(f"ood: {self.source} is what the network is trained on; take another set")

    @property
    def classes(self) -> int:
        """K."""
        if self.transfer is not None:
            return len(self.transfer.trained)
        return 100 if self.source == "cifar100" else 10

    @property
    def side(self) -> int:  # type: ignore[override]
        """Pixels of an image's side."""
        return SIDES[self.source]
