"""Define what one run is: frozen records whose field names are the keys of params.yaml.

No default changes a result: a key is either written in params.yaml or, where the field is optional, does not
apply (`patch` of a ResNet, `mlp_width` of a one-layer block). The lines of a docstring that begin with a
field's name describe the key, here and in editors (`ncpipe.commands.json_schema`). `params` reads the file.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from ncpipe.config.architectures.architecture import Architecture, Kind
from ncpipe.config.architectures.conv_net import ConvNetModel
from ncpipe.config.architectures.dufm import DufmModel
from ncpipe.config.architectures.mlp import MLPModel
from ncpipe.config.architectures.resnet import ResNetModel
from ncpipe.config.architectures.resnet_cifar import CifarResNetModel
from ncpipe.config.architectures.transformer import TransformerModel
from ncpipe.config.bounds import (
    Bound,
    Count,
    Epochs,
    Fraction,
    Index,
    NonNegative,
    Number,
    Positive,
    Size,
    key_of,
)
from ncpipe.config.loss_specs import Loss, is_plain, name_of, objective_incompatibility
from ncpipe.config.transfer_specs import OtherImages, Transfer
from ncpipe.config.unions import ByPresence, TaggedBy
from ncpipe.system.errors import shown

Device = Literal["auto", "cpu", "cuda", "mps"]
Targets = Literal["classes", "vectors", "tags"]
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
    ratio: Annotated[float, Bound(1, 10**6, why="no data set has as many samples of a class")]
    resample: Literal["none", "over"]


@dataclass(frozen=True)
class ImageData:
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
    targets: ClassVar[Targets] = "classes"

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
        if self.ood is not None and self.ood.source == self.source:
            raise ValueError(f"ood: {self.source} is what the network is trained on; take another set")

    @property
    def classes(self) -> int:
        """K."""
        if self.transfer is not None:
            return len(self.transfer.trained)
        return 100 if self.source == "cifar100" else 10

    @property
    def side(self) -> int:
        """Pixels of an image's side."""
        return SIDES[self.source]


@dataclass(frozen=True)
class TextData:
    """Balanced draw from the Large Movie Review Dataset, as token ids padded on the right.

    source: imdb.
    per_class: training reviews of each class.
    test_per_class: test reviews of each class; null takes the whole test split.
    seed: seed of the random draw of samples.
    tokenizer: `corpus` trains a byte-pair encoding on the official training reviews; any other value is the
    name of a tokenizer on the Hugging Face hub.
    vocabulary: entries of the encoding that `corpus` trains; null with a tokenizer of the hub.
    context: tokens of a review; shorter ones are padded.
    keep: part of a longer review that is used, its `start` or its `end`.
    label_noise: wrong training labels; none without it.
    imbalance: classes with fewer training samples; none without it.
    """

    kind: ClassVar[Kind] = "tokens"
    targets: ClassVar[Targets] = "classes"
    side: ClassVar[None] = None
    transfer: ClassVar[None] = None

    source: Literal["imdb"]
    per_class: Count
    test_per_class: Count | None
    seed: Index
    tokenizer: str
    vocabulary: Annotated[int, Bound(300, 10**6, why="no corpus here has as many words")] | None
    context: Annotated[int, Bound(2, 10**5, why="no review is as long")]
    keep: Literal["start", "end"]
    label_noise: LabelNoise | None = None
    imbalance: Imbalance | None = None

    def __post_init__(self) -> None:
        if (self.tokenizer == "corpus") != (self.vocabulary is not None):
            raise ValueError("vocabulary is a number with `tokenizer: corpus` and null with a hub tokenizer")


@dataclass(frozen=True)
class GaussianMixtureData:
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
    targets: ClassVar[Targets] = "classes"

    source: Literal["gaussian_mixture"]
    classes: Annotated[int, Bound(2, 10**5, why="their Gram matrix takes 80 GB")]
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
    def side(self) -> int:
        """Coordinates of a sample."""
        return self.dimension


@dataclass(frozen=True)
class ModularData:
    """All pairs (a, b) of numbers below K, as two one-hot vectors, with the label (a + b) mod K.

    source: modular.
    modulus: K, which is also the number of classes.
    per_class: training pairs of each class, drawn at random; the K - per_class others are the test split.
    seed: seed of the draw.
    label_noise: wrong training labels; none without it.
    imbalance: classes with fewer training samples; none without it.
    """

    kind: ClassVar[Kind] = "vector"
    targets: ClassVar[Targets] = "classes"
    transfer: ClassVar[None] = None

    source: Literal["modular"]
    modulus: Annotated[int, Bound(2, 1000, why="the pairs take 8 GB")]
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
    def side(self) -> int:
        """Coordinates of a sample."""
        return 2 * self.modulus


@dataclass(frozen=True)
class TeacherData(PlainData):
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
    targets: ClassVar[Targets] = "vectors"

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
class ArraysData:
    """Samples of a file of one's own, with classes numbered 0, 1, 2, ...; it may have no test samples.

    source: arrays.
    file: an .npz or .safetensors file with the arrays inputs, labels (N,) and, if there are test samples,
    test_inputs, test_labels; its path from params.yaml. The stage fetch of dvc.yaml has to list it too.
    Samples of other data, for scores that tell them from test samples, are the array ood_inputs.
    kind: what inputs are: `vector` (N, D), `image` (N, channels, height, width), or `tokens` (N, C), ids from
    0, padded on the right where arrays `lengths`, `test_lengths`, `ood_lengths` (N,) say how many are real.
    per_class: training samples of each class; null takes all of them, which need not be balanced then.
    test_per_class: test samples of each class; null takes all there are.
    seed: seed of the random draw of samples.
    normalisation: `standardise` subtracts the mean over the drawn training set and divides by the standard
    deviation, of each channel or coordinate, or by 1 where it is 0; `none` takes numbers as they are.
    label_noise: wrong training labels; none without it.
    imbalance: classes with fewer training samples; none without it.
    transfer: classes to train on and others to try features on; all are trained on without it.
    targets: `vectors` for regression: the file then has the arrays targets (N, t) and test_targets, of
    floats, in place of labels; `tags` where a sample has several classes: then the arrays tags (N, K) and
    test_tags, of 0 and 1; `classes` by default.
    """

    side: ClassVar[None] = None

    source: Literal["arrays"]
    file: str
    kind: Literal["vector", "image", "tokens"]
    per_class: Count | None
    test_per_class: Count | None
    seed: Index
    normalisation: Literal["standardise", "none"]
    label_noise: LabelNoise | None = None
    imbalance: Imbalance | None = None
    transfer: Transfer | None = None
    targets: Targets = "classes"

    def __post_init__(self) -> None:
        if self.targets != "classes":
            for key in ("per_class", "test_per_class", "label_noise", "imbalance", "transfer"):
                if getattr(self, key) is not None:
                    raise ValueError(f"{key}: needs classes, and the targets are {self.targets}; write null")
        if self.kind == "tokens" and self.normalisation != "none":
            raise ValueError("normalisation: token ids have none; write `none`")
        if self.per_class is None and self.imbalance is not None:
            raise ValueError("imbalance: makes classes small that have per_class samples; give per_class")


@dataclass(frozen=True)
class FreeData(PlainData):
    """Labels alone: the features of every sample are learned by the network, and there is no test split.

    source: free.
    classes: K.
    per_class: samples of each class, n.
    reduced: whether one sample with n lambda_H stands for the n of its class. Gradient descent then takes the
    same way as with all of them, if they start equal; anything else is refused.
    """

    kind: ClassVar[Kind] = "free"

    source: Literal["free"]
    classes: Annotated[int, Bound(2, 10**5, why="their Gram matrix takes 80 GB")]
    per_class: Count
    reduced: bool = False


@dataclass(frozen=True)
class MarkovData(PlainData):
    """Sequences of a generated language, each position of which has the next word as its label.

    A word follows `order` others with probability proportional to rank^-zipf e^(sharpness z), z a smooth
    random function of the context (`ncpipe.datasets.markov`): the least loss that any network can reach is
    known.
    source: markov.
    words: size of the vocabulary, and K.
    order: words that the next one depends on.
    zipf: exponent of Zipf's law; 0 makes all words about as frequent.
    sharpness: strength of the dependence on the context; 0 makes words independent.
    sequences: training sequences.
    test_sequences: test sequences.
    context: words of a sequence that predict.
    seed: seed of the language and of its sequences.
    """

    kind: ClassVar[Kind] = "next_tokens"
    label_noise: ClassVar[None] = None
    imbalance: ClassVar[None] = None
    transfer: ClassVar[None] = None

    source: Literal["markov"]
    words: Annotated[int, Bound(2, 200, why="the probabilities of order 2 are words^3 numbers")]
    order: Annotated[int, Bound(1, 2, why="the probabilities are words^(order + 1) numbers")]
    zipf: NonNegative
    sharpness: NonNegative
    sequences: Count
    test_sequences: Count
    context: Annotated[int, Bound(2, 10**5, why="no text here is as long")]
    seed: Index

    def __post_init__(self) -> None:
        if self.context < self.order:
            raise ValueError(f"context: {self.context} words are fewer than the {self.order} of `order`")

    @property
    def classes(self) -> int:
        """K."""
        return self.words


@dataclass(frozen=True)
class NextTokenData(PlainData):
    """Sequences of a text, each position of which has the next token as its label.

    Tokens are those of a byte-pair encoding trained on the text; all that are rare share one, `[UNK]`.
    source: text.
    file: a text file in UTF-8, its path from params.yaml, which the stage fetch of dvc.yaml has to list too;
    null takes the training reviews of the Large Movie Review Dataset, downloaded or from a mirror.
    vocabulary: entries of the encoding.
    min_per_class: a token is rare if it is the next one fewer times in one of the splits.
    sequences: training sequences.
    test_sequences: test sequences, none of which overlaps a training sequence.
    context: tokens of a sequence that predict.
    seed: seed of the random draw of samples.
    """

    kind: ClassVar[Kind] = "next_tokens"
    label_noise: ClassVar[None] = None
    imbalance: ClassVar[None] = None
    transfer: ClassVar[None] = None

    source: Literal["text"]
    file: str | None
    vocabulary: Annotated[int, Bound(300, 10**5, why="each is a class")]
    min_per_class: Count
    sequences: Count
    test_sequences: Count
    context: Annotated[int, Bound(2, 10**5, why="no text here is as long")]
    seed: Index


class OwnModel(Architecture):
    """Base of the records below `model` that a study.py defines.

    Defaults: no normalisation, random weights, a last layer without bias, any data and depth. A spec
    overrides them by a ClassVar or a method of `ncpipe.config.architectures.architecture`.
    """

    norm: ClassVar[str] = "none"  # type: ignore[misc]
    initialisation: ClassVar[str] = "normal"  # type: ignore[misc]
    last_bias: ClassVar[bool] = False  # type: ignore[misc]

    def incompatibility(self, kind: Kind, source: str) -> str:
        return ""

    def depth_incompatibility(self, depth: int) -> str:
        return ""


class OwnData(PlainData):
    """Base of the records below `data` that a study.py defines; the first field of each is `source`.

    kind: what the inputs are, see ArraysData. targets: `vectors`, as a ClassVar, where its function gives
    targets (N, t) in place of labels; `tags` where it gives tags (N, K).
    """

    kind: Kind
    source: str


class OwnLoss:
    """Base of the records below `loss` that a study.py defines; the first field of each is `name`.

    compares_samples: whether a sample's loss depends on the others of its batch. Its function then gives the
    mean over the batch, and otherwise a number for each sample.
    """

    compares_samples: ClassVar[bool] = False
    name: str


Data = (
    ImageData
    | TextData
    | GaussianMixtureData
    | ModularData
    | TeacherData
    | ArraysData
    | FreeData
    | MarkovData
    | NextTokenData
)


Model = ResNetModel | TransformerModel | MLPModel | CifarResNetModel | ConvNetModel | DufmModel


@dataclass(frozen=True)
class Penalty:
    """lambda of S25 eq. 7 and 11, half of which times the squared norm of the weights is added to the loss.

    rule: `constant` is value, `over_depth` is value / L.
    value: lambda, or its numerator.
    last_layer: the last layer's own lambda_L (eq. 11), or null for the same lambda as everywhere.
    biases: whether the inner layers' biases are penalised like their matrices, which the paper does not; so
    are other vectors, such as batch norm's, but not those of the first layer and of the last one.
    scope: `matrices` are those of the inner layers and of the last one; `all` is everything that is learned,
    first layer, biases and batch norm included, as weight decay has it by default; `head` is the matrices of
    a ReLU head and of the last layer, and the features that enter it [S24 sec. 6.2].
    features: lambda_H, half of which times the squared norm of each training sample's features is added to
    the loss: of those that are learned themselves (`architecture: dufm`; value without it), that enter a head
    (`scope: head`) or, in a network without one, the last layer; without it nothing is.
    features_over_value: lambda_H as a multiple of value, in place of features.
    layers: the lambda of each of their layers, from the first to the last, in place of value.
    """

    rule: Literal["constant", "over_depth"]
    value: NonNegative
    last_layer: NonNegative | None
    biases: bool = False
    scope: Literal["matrices", "all", "head"] = "matrices"
    features: NonNegative | None = None
    features_over_value: NonNegative | None = None
    layers: tuple[NonNegative, ...] | None = None

    def __post_init__(self) -> None:
        if self.layers is not None and self.last_layer is not None:
            raise ValueError("last_layer does not apply: `layers` says the last layer's lambda; write null")
        if self.biases and self.scope != "matrices":
            does = "penalises them" if self.scope == "all" else "leaves them free"
            raise ValueError(f"biases does not apply: `scope: {self.scope}` {does}; remove it")
        if None not in (self.features, self.features_over_value):
            raise ValueError("features and features_over_value: both say lambda_H; remove one")
        if self.scope == "head" and self.features is None and self.features_over_value is None:
            raise ValueError(
                "features (or features_over_value) is needed with `scope: head`: lambda_H of its input"
            )

    def inner_strength(self, depth: int) -> float:
        """Return lambda(L) of every penalised matrix but the last, unless `layers` has one for each."""
        return self._at_depth(self.value, depth)

    def last_strength(self, depth: int) -> float:
        """Return lambda_L of the last layer's weights."""
        if self.layers is not None:
            return self._at_depth(self.layers[-1], depth)
        return self.inner_strength(depth) if self.last_layer is None else self.last_layer

    def feature_strength(self, depth: int) -> float:
        """Return lambda_H of free features, or of those that enter a head."""
        if self.features_over_value is not None:
            return self._at_depth(self.features_over_value * self.value, depth)
        return self._at_depth(self.value if self.features is None else self.features, depth)

    def layer_strengths(self, depth: int) -> tuple[float, ...]:
        """Return lambda of W_1, ..., W_L."""
        if self.layers is not None:
            return tuple(self._at_depth(value, depth) for value in self.layers)
        return (self.inner_strength(depth),) * (depth - 1) + (self.last_strength(depth),)

    def _at_depth(self, value: float, depth: int) -> float:
        return value / depth if self.rule == "over_depth" else value


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with heavy-ball momentum.

    name: sgd.
    learning_rate: at the start; see schedule.
    momentum: 0 is none.
    """

    name: Literal["sgd"]
    learning_rate: Positive
    momentum: Fraction


@dataclass(frozen=True)
class Adam:
    """Adam, on the gradient of the objective with its penalty.

    name: adam.
    learning_rate: at the start; see schedule.
    beta1: decay of the mean gradient.
    beta2: decay of the mean squared gradient.
    eps: added to the root of the mean squared gradient.
    """

    name: Literal["adam"]
    learning_rate: Positive
    beta1: Fraction
    beta2: Fraction
    eps: Positive


@dataclass(frozen=True)
class AdamW:
    """Adam with a decoupled decay of the penalised matrices, on top of the objective's own penalty.

    name: adamw.
    learning_rate: at the start; see schedule.
    beta1: decay of the mean gradient.
    beta2: decay of the mean squared gradient.
    eps: added to the root of the mean squared gradient.
    weight_decay: share of the weights that a step of rate 1 takes off.
    """

    name: Literal["adamw"]
    learning_rate: Positive
    beta1: Fraction
    beta2: Fraction
    eps: Positive
    weight_decay: NonNegative


@dataclass(frozen=True)
class Lbfgs:
    """One strong-Wolfe L-BFGS iteration per epoch, full batch.

    name: lbfgs.
    learning_rate: scales the first of at most 25 trial steps.
    memory: steps whose curvature is remembered.
    """

    name: Literal["lbfgs"]
    learning_rate: Positive
    memory: Annotated[int, Bound(1, 1000, why="each takes two copies of the weights")]


@dataclass(frozen=True)
class Lion:
    """Steps along the sign of a mean gradient [Chen et al. 2023, Algorithm 2].

    name: lion.
    learning_rate: at the start; see schedule.
    beta1: share of the mean gradient in a step's direction.
    beta2: decay of the mean gradient.
    weight_decay: share of the penalised weights that a step of rate 1 takes off.
    """

    name: Literal["lion"]
    learning_rate: Positive
    beta1: Fraction
    beta2: Fraction
    weight_decay: NonNegative = 0.0


@dataclass(frozen=True)
class SignSgd:
    """Steps along the sign of the gradient, or of its mean [Bernstein et al. 2018, Algorithms 1 and 2].

    name: sign_sgd.
    learning_rate: at the start; see schedule.
    momentum: decay of the mean gradient; 0 is SignSGD, more is Signum.
    """

    name: Literal["sign_sgd"]
    learning_rate: Positive
    momentum: Fraction


@dataclass(frozen=True)
class Muon:
    """Momentum whose matrices are orthogonalised by 5 Newton-Schulz iterations [Jordan et al. 2024].

    Matrices of inner layers, and of a ReLU head, take its steps; first layer, last layer and vectors take
    AdamW's. A convolution's kernel (m, c, h, w) is a matrix (m, c h w). Its momentum is Nesterov's.
    name: muon.
    learning_rate: learning rate of the matrices at the start; see schedule.
    momentum: decay of the sum of gradients.
    adam_learning_rate: learning rate of all other parameters at the start; the schedule is the same.
    beta1: decay of the mean gradient, of all else.
    beta2: decay of the mean squared gradient, of all else.
    eps: added to the root of the mean squared gradient, of all else.
    weight_decay: share of the penalised weights that a step of rate 1 takes off.
    """

    state: ClassVar[tuple[str, ...]] = ("momentum", "mean", "square")

    name: Literal["muon"]
    learning_rate: Positive
    momentum: Fraction
    adam_learning_rate: Positive
    beta1: Fraction
    beta2: Fraction
    eps: Positive
    weight_decay: NonNegative = 0.0


@dataclass(frozen=True)
class TorchOptimizer:
    """Any optimizer of torch.optim, by PyTorch's own names; its runs train one at a time.

    It sees the gradient of the objective with its penalty, and all that is learned in one group.
    name: torch.
    class: as in torch.optim, for instance NAdam or RMSprop.
    learning_rate: at the start, PyTorch's lr; see schedule.
    arguments: further ones by name, as {betas: [0.9, 0.99]}; PyTorch's defaults without them.
    """

    name: Literal["torch"]
    class_: str
    learning_rate: Positive
    arguments: dict[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if not self.class_.isidentifier():
            raise ValueError(f"class: {shown(self.class_)} is no name of a class in torch.optim")
        if "lr" in (self.arguments or {}):
            raise ValueError("arguments: lr is set by learning_rate; leave it out")


class OwnOptimizer:
    """Base of the records below `optimizer` that a study.py defines; the first field of each is `name`.

    state: names of what the optimizer keeps of each parameter, which is 0 at first.
    """

    state: ClassVar[tuple[str, ...]] = ()
    name: str
    learning_rate: float


Optimizer = Sgd | Adam | AdamW | Lion | SignSgd | Muon | TorchOptimizer | Lbfgs
OneAtATime = Lbfgs | TorchOptimizer  # whose runs train one after the other, not in one stack


@dataclass(frozen=True)
class ConstantSchedule:
    """A constant learning rate.

    name: constant.
    """

    name: Literal["constant"]


@dataclass(frozen=True)
class CosineSchedule:
    """From the learning rate down to `final` times it along half a cosine.

    name: cosine.
    final: share of the learning rate that is left at the end.
    after: share of the steps at the full rate before it falls.
    """

    name: Literal["cosine"]
    final: Annotated[float, Bound(low=0, high=1)]
    after: Annotated[float, Bound(low=0, high=1, open_high=True)] = 0.0


@dataclass(frozen=True)
class StepSchedule:
    """Times `factor` at each of `milestones`.

    name: step.
    milestones: fractions of all steps.
    factor: factor of the learning rate at each milestone.
    """

    name: Literal["step"]
    milestones: tuple[Annotated[float, Bound(low=0, high=1, open_low=True, open_high=True)], ...]
    factor: Positive

    def __post_init__(self) -> None:
        if not self.milestones:
            raise ValueError("milestones: empty; list at least one, or take `name: constant`")
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError("milestones: must ascend, each once")


Schedule = ConstantSchedule | CosineSchedule | StepSchedule


@dataclass(frozen=True)
class Augmentation:
    """Random changes of training images, drawn anew for every step; nothing is measured on them.

    shift: pixels by which an image is moved at most, up or down and left or right; what comes in is 0.
    flip: whether half of the images are mirrored left to right.
    """

    shift: Annotated[int, Bound(0, 64, why="what is left of an image would be black")]
    flip: bool


@dataclass(frozen=True)
class History:
    """Metrics through training, of snapshots of the weights.

    metrics: names in docs/metric_tables.md; those of the last layer become columns of the history.
    at: shares of the epochs after which weights are kept; 0 is the start, 1 the end.
    """

    metrics: tuple[str, ...]
    at: tuple[Annotated[float, Bound(low=0, high=1)], ...]

    def __post_init__(self) -> None:
        if not (self.metrics and self.at):
            raise ValueError("metrics and at: list at least one each, or remove both")


@dataclass(frozen=True)
class Experiment:
    """Everything of a run except its depth and seed.

    data: the training and test set.
    model: the network.
    loss: cross-entropy, or the squared distance to the one-hot labels, or to targets that are vectors, over
    2 N; `pick_all` is the sum of the cross-entropies of a sample's tags, mean over samples; a loss with keys
    is a record with its name.
    penalty: weight decay as a part of the objective; the first layer is free.
    optimizer: optimizer and its hyperparameters.
    schedule: the learning rate over the steps.
    epochs: passes over the training set.
    batch_size: `full` or samples per step.
    log_every: epochs between two rows of the history.
    augmentation: random changes of the training images; none by default.
    history: metrics through training; without it the history has losses and errors.
    """

    data: Annotated[Data, TaggedBy("source")]
    model: Annotated[Model, TaggedBy("architecture")]
    loss: Annotated[Loss, TaggedBy("name")]
    penalty: Penalty
    optimizer: Annotated[Optimizer, TaggedBy("name")]
    schedule: Annotated[Schedule, TaggedBy("name")]
    epochs: Epochs
    batch_size: Count | Literal["full"]
    log_every: Epochs
    augmentation: Augmentation | None = None
    history: History | None = None

    def __post_init__(self) -> None:
        if problem := self.model.incompatibility(self.data.kind, self.data.source):
            raise ValueError(problem)
        if problem := self.model.side_incompatibility(self.data.side):
            raise ValueError(problem)
        if problem := self._free_features_incompatibility():
            raise ValueError(problem)
        if self.data.label_noise and self.data.imbalance:
            raise ValueError("data.label_noise: does not go together with imbalance; remove one of them")
        if problem := self._transfer_incompatibility():
            raise ValueError(problem)
        if problem := self._target_incompatibility() or objective_incompatibility(self):
            raise ValueError(problem)
        if isinstance(self.optimizer, Lbfgs) and self.batch_size != "full":
            raise ValueError("batch_size: lbfgs needs `full`")
        if self.augmentation is not None:
            if not self.model.reads_images:
                raise ValueError(f"augmentation: {self.model.architecture} does not read images as such")
            if isinstance(self.optimizer, Lbfgs):
                raise ValueError("augmentation: lbfgs needs the same samples in every step; remove it")

    def depth_incompatibility(self, depth: int) -> str:
        """Return which depths the experiment takes if this is none of them, else ''."""
        if needs := self.model.depth_incompatibility(depth):
            return f"{self.model.architecture} needs {needs}"
        count = len(self.penalty.layers or ())
        if self.penalty.layers is not None and count != depth:
            return f"penalty.layers has {count} lambdas, and L = {depth} layers need one each"
        return ""

    def _free_features_incompatibility(self) -> str:
        """Return why data, model and penalty are incompatible where features are free, or ''."""
        model = self.model
        if model.has_free_features:
            if self.penalty.scope != "matrices":
                return f"penalty.scope: {model.architecture} has nothing but matrices; remove it"
            return model.free_features_incompatibility(self)
        if self.data.kind == "free":
            return f"model.architecture: {model.architecture} reads inputs, free data have none; take dufm"
        with_head, of_head = model.has_head, self.penalty.scope == "head"
        if of_head and not with_head:
            return f"penalty.scope: this {model.architecture} has no head; take `matrices` or `all`"
        keys = ["layers"]
        if model.bounds_features or (with_head and not of_head):
            keys += ["features", "features_over_value"]
        for key in keys:
            if getattr(self.penalty, key) is not None:
                only = " without `scope: head`" if with_head and key != "layers" else ""
                return f"penalty.{key} does not apply to {model.architecture}{only}; remove it"
        return ""

    @property
    def penalises_features(self) -> bool:
        """Whether features have a lambda_H that the network computes."""
        own = (self.penalty.features, self.penalty.features_over_value)
        return own != (None, None) and not self.model.has_free_features

    def _target_incompatibility(self) -> str:
        """Return why loss and model are not for what the targets are, or ''."""
        targets, own = self.data.targets, isinstance(self.loss, OwnLoss)
        if targets == "classes":
            problem = "loss: pick_all needs data with `targets: tags`; take `ce` for one class a sample"
            return problem if self.loss_name == "pick_all" and not own else ""
        fitting = "pick_all" if targets == "tags" else "mse"
        if not own and (self.loss_name != fitting or (fitting == "mse" and not is_plain(self.loss))):
            smooth = "smoothed labels need" if self.loss_name == fitting else f"{self.loss_name} needs"
            needed = f"{smooth} classes" if self.loss_name != "pick_all" else "pick_all needs tags"
            return f"loss: {needed}, and the targets are {targets}; take `{fitting}`"
        if targets == "vectors" and self.model.has_fixed_classifier:
            return "model.classifier: a simplex is for classes, and the targets are vectors; remove it"
        if self.model.starts_built:
            return (
                f"model.initialisation: {self.model.initialisation} is for classes, and the targets are "
                f"{targets}; take `normal`"
            )
        return ""

    def _transfer_incompatibility(self) -> str:
        """Return why data.transfer is incompatible with the other data keys, or ''."""
        data = self.data
        if data.transfer is None:
            return ""
        if data.label_noise or data.imbalance:
            return "data.transfer: does not go together with label_noise or imbalance; remove one of them"
        if data.transfer.data is not None and (data.kind != "image" or data.source == "arrays"):
            return "data.transfer.data: other images need one of the image sets to train on; remove it"
        return ""

    @property
    def loss_name(self) -> str:
        """The loss, without its keys."""
        return name_of(self.loss)

    def snapshot_epochs(self) -> list[int]:
        """Return the epochs after which weights are kept, ascending."""
        return sorted({round(share * self.epochs) for share in self.history.at}) if self.history else []


class OwnTraining:
    """Base of the records below `training` that a study.py defines; the first field of each is `name`.

    epochs: what the loop counts, at least 1.
    """

    name: str
    epochs: int


@dataclass(frozen=True)
class Measured:
    """Where the network of an own training loop is measured, by names as in `named_modules()`.

    classifier: its last linear layer, such as fc; what enters it is the layer `last`.
    layers: further modules, in the order of the forward pass, whose outputs are measured.
    """

    classifier: str
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.layers)) < len(self.layers):
            raise ValueError("layers: one is listed twice; remove it")


@dataclass(frozen=True)
class OwnLoop:
    """Everything of a run except its depth and seed, where a loop of study.py trains it (docs/extending.md).

    training: the loop and its keys.
    measure: where its network is measured.
    history: metrics through training; without it the history has what the loop logs.
    """

    training: Annotated[OwnTraining, TaggedBy("name")]
    measure: Measured
    history: History | None = None

    @property
    def epochs(self) -> int:
        """Return what the loop counts."""
        return self.training.epochs

    @property
    def log_every(self) -> int:
        """Return 1: nothing is known of it before the loop runs."""
        return 1

    def depth_incompatibility(self, depth: int) -> str:
        """Return '': `build` says which depths it takes."""
        return ""

    def snapshot_epochs(self) -> list[int]:
        """Return the epochs after which weights are kept, ascending."""
        return sorted({round(share * self.epochs) for share in self.history.at}) if self.history else []


if TYPE_CHECKING:
    # What reads the keys of an Experiment asks `own_loop` first: a union would ask it at each key.
    AnyExperiment = Experiment
else:
    AnyExperiment = Annotated[Experiment | OwnLoop, ByPresence("training")]


def own_loop(spec: object) -> OwnLoop | None:
    """Return the spec of a run if a loop of study.py trains it, else None."""
    return spec if isinstance(spec, OwnLoop) else None


@dataclass(frozen=True)
class Compute:
    """How runs are computed.

    device: auto takes CUDA where it can, or the CPU. It does not make a finished run stale; the others do.
    threads: CPU threads of each batch of runs; cores / threads batches train side by side.
    precision: tf32 is float32 whose products a GPU computes from factors rounded to 10 bits of mantissa.
    """

    device: Device
    threads: Annotated[int, Bound(1, 256, why="they are started even where there are fewer cores")]
    precision: Literal["float32", "tf32", "float64"]


def as_json(spec: Any) -> Any:
    """Return a spec as JSON values; optional keys with their default value are left out."""
    if dataclasses.is_dataclass(spec):
        present = ((f, getattr(spec, f.name)) for f in dataclasses.fields(spec))
        return {key_of(field.name): as_json(value) for field, value in present if value != field.default}
    return [as_json(each) for each in spec] if isinstance(spec, tuple) else spec


@dataclass(frozen=True)
class Run:
    """One trained network: a row of the grid."""

    experiment: str
    depth: int
    seed: int
    spec: Experiment
    axis: str | None = None  # key of the experiment that the study varies, if it varies one
    value: Number | None = None  # of that key; spec has it

    @property
    def name(self) -> str:
        varied = "" if self.axis is None else f" {self.axis}={self.value}"
        return f"{self.experiment} L={self.depth}{varied} seed={self.seed}"

    @property
    def columns(self) -> dict[str, Any]:
        """Columns (`ncpipe.tables.keys.run_keys`) that identify the run in tables, with their values."""
        varied = {} if self.axis is None else {"axis": self.axis, "x": self.value}
        return {"experiment": self.experiment, "depth": self.depth, **varied, "seed": self.seed}

    @property
    def path(self) -> Path:
        """Path of the run below a folder of runs (or of features)."""
        path = Path(self.experiment) / f"L{self.depth}"
        return (path if self.value is None else path / _folder(self.value)) / f"s{self.seed}"

    @property
    def data(self) -> Path:
        """Path of its data below the folder of prepared data sets."""
        return data_path(self.experiment, self.value)


def data_path(experiment: str, value: Number | None) -> Path:
    """Return the path of an experiment's data: one for each value of the study's axis, if it has one."""
    path = Path(experiment)
    return path if value is None else path / _folder(value)


def _folder(value: Number) -> str:
    """Return the number as DVC writes it in an item of a matrix, which is as Python does."""
    return f"x{value}"
