"""Define the keys of data from a formula: mixtures, modular addition, a teacher's vectors, labels alone."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ncpipe.config.architectures.architecture import Kind
from ncpipe.config.bounds import Bound, Count, Index, NonNegative, Positive, Size
from ncpipe.config.sources.source import DataSpec, Imbalance, LabelNoise, Targets
from ncpipe.config.transfer_specs import Transfer


@dataclass(frozen=True)
class GaussianMixtureData(DataSpec):
    """x = separation * u_k + noise * z in `dimension` coordinates, u_k a random unit vector, z ~ N(0, I).

    source: gaussian_mixture.
    classes: K.
    dimension: coordinates of x.
    separation: length of the classes' means.
    noise: standard deviation of each coordinate.
    per_class: training samples of each class.
    test_per_class: test samples of each class.
    seed: seed of the class means and the samples.
    label_noise: wrong training labels; none without it.
    imbalance: classes with fewer training samples; none without it.
    transfer: classes to train on and others to try features on; all are trained on without it.
    mean_rank: dimension of a random subspace that all u_k are drawn from; every coordinate's without it.
    """

    kind: ClassVar[Kind] = "vector"

    source: Literal["gaussian_mixture"]
    classes: Annotated[int, Bound(2, 10**5)]  # their Gram matrix takes 80 GB
    dimension: Size
    separation: Positive
    noise: NonNegative
    per_class: Count
    test_per_class: Count
    seed: Index
    label_noise: LabelNoise | None = None
    imbalance: Imbalance | None = None
    transfer: Transfer | None = None
    mean_rank: Size | None = None

    def __post_init__(self) -> None:
        if self.mean_rank is not None and self.mean_rank > self.dimension:
            raise ValueError(
                f"mean_rank: {self.mean_rank} is more than the {self.dimension} of `dimension`; lower it"
            )

    @property
    def side(self) -> int:  # type: ignore[override]
        """Coordinates of a sample."""
        return self.dimension


@dataclass(frozen=True)
class ModularData(DataSpec):
    """All pairs (a, b) of numbers below K, as two one-hot vectors, with the label (a + b) mod K.

    source: modular.
    modulus: K, which is also the number of classes.
    per_class: training pairs of each class, drawn at random; the K - per_class others are the test split.
    seed: seed of the draw.
    label_noise: wrong training labels; none without it.
    imbalance: classes with fewer training samples; none without it.
    """

    kind: ClassVar[Kind] = "vector"

    source: Literal["modular"]
    modulus: Annotated[int, Bound(2, 1000)]  # the pairs take 8 GB
    per_class: Count
    seed: Index
    label_noise: LabelNoise | None = None
    imbalance: Imbalance | None = None

    def __post_init__(self) -> None:
        if self.per_class >= self.modulus:
            raise ValueError(
                f"per_class: {self.per_class} leaves none of a class's {self.modulus} pairs (modulus) for "
                "the test; lower it"
            )

    @property
    def classes(self) -> int:
        """K."""
        return self.modulus

    @property
    def side(self) -> int:  # type: ignore[override]
        """Coordinates of a sample."""
        return 2 * self.modulus


@dataclass(frozen=True)
class TeacherData(DataSpec):
    """Regression: x ~ N(0, I) in `dimension` coordinates, and vectors that a random network makes of it.

    The teacher is A x, or A tanh(B x + b). Its outputs are scaled and turned so that the mean of the training
    targets is 0 and their covariance, over N, is the given one.
    source: teacher.
    dimension: coordinates of x.
    covariance: of the training targets, t rows of t numbers; symmetric and positive definite.
    hidden: units of the tanh layer; null is a linear teacher.
    samples: training samples.
    test_samples: test samples.
    seed: seed of the teacher and of the samples.
    """

    kind: ClassVar[Kind] = "vector"
    targets: ClassVar[Targets] = "vectors"  # type: ignore[misc]

    source: Literal["teacher"]
    dimension: Size
    covariance: tuple[tuple[float, ...], ...]
    hidden: Count | None
    samples: Count
    test_samples: Count
    seed: Index

    def __post_init__(self) -> None:
        rows, size = self.covariance, len(self.covariance)
        if not size or any(len(row) != size for row in rows):
            raise ValueError("covariance: its rows make no square; write t rows of t numbers")
        if any(rows[i][j] != rows[j][i] for i in range(size) for j in range(i)):
            raise ValueError("covariance: is not symmetric; entry (i, j) has to be entry (j, i)")
        if self.samples <= size:
            raise ValueError(f"samples: {self.samples} have no covariance of rank {size}; take more")
        if (width := self.dimension if self.hidden is None else self.hidden) < size:
            key = "dimension" if self.hidden is None else "hidden"
            raise ValueError(f"{key}: {width} is below the {size} numbers of a target; raise it")

    @property
    def classes(self) -> int:
        """The numbers of a target, t, which is how many outputs a network has."""
        return len(self.covariance)

    @property
    def side(self) -> int:  # type: ignore[override]
        """Coordinates of a sample."""
        return self.dimension


@dataclass(frozen=True)
class FreeData(DataSpec):
    """Labels alone: the features of every sample are learned by the network, and there is no test split.

    source: free.
    classes: K.
    per_class: samples of each class, n.
    reduced: whether one sample with n lambda_H stands for the n of its class. Gradient descent then takes the
    same way as with all of them, if they start equal; anything else is refused.
    """

    kind: ClassVar[Kind] = "free"

    source: Literal["free"]
    classes: Annotated[int, Bound(2, 10**5)]  # their Gram matrix takes 80 GB
    per_class: Count
    reduced: bool = False
