"""Define everything of a run except its depth and seed: frozen records named as the keys of params.yaml.

No default changes a result: a key is either written in params.yaml or, where the field is optional, does not
apply (`patch` of a ResNet, `mlp_width` of a one-layer block). The lines of a docstring that begin with a
field's name describe the key, here and in editors (`ncpipe.commands.json_schema`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from ncpipe.config.architectures.conv_net import ConvNetModel
from ncpipe.config.architectures.mlp import MLPModel
from ncpipe.config.architectures.paper import ResNetModel
from ncpipe.config.architectures.resnet_cifar import CifarResNetModel
from ncpipe.config.architectures.transformer import TransformerModel
from ncpipe.config.bounds import Bound, Count, Epochs
from ncpipe.config.loss_specs import Loss, is_plain, name_of, objective_incompatibility
from ncpipe.config.optimizer_specs import Lbfgs, Optimizer, Schedule
from ncpipe.config.penalty_specs import Penalty
from ncpipe.config.sources.arrays import ArraysData
from ncpipe.config.sources.generated import FreeData, GaussianMixtureData, ModularData, TeacherData
from ncpipe.config.sources.images import ImageData
from ncpipe.config.sources.next_tokens import MarkovData, NextTokenData
from ncpipe.config.sources.reviews import TextData
from ncpipe.config.specs import OwnLoss, OwnTraining
from ncpipe.config.transfer_specs import Episodes, Transfer
from ncpipe.config.unions import ByPresence, TaggedBy

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


Model = ResNetModel | TransformerModel | MLPModel | CifarResNetModel | ConvNetModel


@dataclass(frozen=True)
class Augmentation:
    """Random changes of training images, drawn anew for every step; nothing is measured on them.

    shift: pixels by which an image is moved at most, up or down and left or right; what comes in is 0.
    flip: whether half of the images are mirrored left to right.
    """

    shift: Annotated[int, Bound(0, 64)]  # what is left of an image would be black
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
    2 N; `pick_all` is the sum of the cross-entropies of a sample's tags, mean over samples; a loss with keys,
    as supcon, is a record with its name.
    penalty: weight decay as a part of the objective; its `scope` says of what.
    optimizer: optimizer and its hyperparameters.
    schedule: the learning rate over the steps.
    epochs: passes over the training set.
    batch_size: `full` or samples per step.
    log_every: epochs between two rows of the history.
    augmentation: random changes of the training images; none by default.
    history: metrics through training; without it the history has losses and errors.
    start: weights that training starts from, an entry of STARTS in study.py; random ones by default.
    """

    training: ClassVar[Any] = None  # of an OwnLoop alone, as `measure`
    measure: ClassVar[Any] = None
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
    start: str | None = None

    def __post_init__(self) -> None:
        problem = (
            self.model.incompatibility(self.data.kind, self.data.source)
            or self.model.side_incompatibility(self.data.side)
            or self._free_features_incompatibility()
            or self._data_incompatibility()
            or self._target_incompatibility()
            or objective_incompatibility(self)
            or self._step_incompatibility()
        )
        if problem:
            raise ValueError(problem)

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
        penalty = self.penalty
        given = penalty.features is not None or penalty.features_over_value is not None
        return given and not self.model.has_free_features

    def _target_incompatibility(self) -> str:
        """Return why loss and model are not for what the targets are, or ''."""
        targets, of_study = self.data.targets, isinstance(self.loss, OwnLoss)
        if targets == "classes":
            problem = "loss: pick_all needs data with `targets: tags`; take `ce` for one class a sample"
            return problem if self.loss_name == "pick_all" and not of_study else ""
        fitting = "pick_all" if targets == "tags" else "mse"
        if not of_study and (self.loss_name != fitting or (fitting == "mse" and not is_plain(self.loss))):
            smooth = "smoothed labels need" if self.loss_name == fitting else f"{self.loss_name} needs"
            needed = f"{smooth} classes" if self.loss_name != "pick_all" else "pick_all needs tags"
            return f"loss: {needed}, and the targets are {targets}; take `{fitting}`"
        if targets == "vectors" and self.model.has_fixed_classifier:
            return "model.classifier: a simplex is for classes, and the targets are vectors; remove it"
        return ""

    def _data_incompatibility(self) -> str:
        """Return why label_noise, imbalance and transfer do not go together or with the data, or ''."""
        data = self.data
        if data.label_noise and data.imbalance:
            return "data.label_noise: does not go together with imbalance; remove one of them"
        if data.transfer is None:
            return ""
        if data.label_noise or data.imbalance:
            return "data.transfer: does not go together with label_noise or imbalance; remove one of them"
        if data.transfer.data is not None and (data.kind != "image" or data.source == "arrays"):
            return "data.transfer.data: other images need one of the image sets to train on; remove it"
        return ""

    def _step_incompatibility(self) -> str:
        """Return why the optimizer or the network cannot take the samples of a step, or ''."""
        searches = isinstance(self.optimizer, Lbfgs)
        if searches and self.batch_size != "full":
            return "batch_size: lbfgs needs `full`"
        per_class, classes = (getattr(self.data, key, None) for key in ("per_class", "classes"))
        samples = (per_class or 0) * (classes or 0)
        if samples and self.batch_size != "full" and self.batch_size > samples:
            return f"batch_size: {self.batch_size}, but there are at most {samples} samples; take `full`"
        if self.augmentation is not None and not self.model.reads_images:
            return f"augmentation: {self.model.architecture} does not read images as such"
        if self.augmentation is not None and searches:
            return "augmentation: lbfgs needs the same samples in every step; remove it"
        return ""

    @property
    def transfer(self) -> Transfer | None:
        """What is asked of classes that the network does not know."""
        return self.data.transfer

    @property
    def loss_name(self) -> str:
        """The loss, without its keys."""
        return name_of(self.loss)

    def snapshot_epochs(self) -> list[int]:
        """Return the epochs after which weights are kept, ascending."""
        return sorted({round(share * self.epochs) for share in self.history.at}) if self.history else []


@dataclass(frozen=True)
class Measured:
    """Where the network of an own training loop is measured, by names as in `named_modules()`.

    classifier: its last linear layer, such as fc; what enters it is the layer `last`.
    layers: further modules, in the order of the forward pass, whose outputs are measured.
    transfer: few-shot errors of every layer's features on the classes of the loader `target`.
    """

    classifier: str
    layers: tuple[str, ...] = ()
    transfer: Episodes | None = None

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
    def transfer(self) -> Episodes | None:
        """What is asked of classes that the network does not know."""
        return self.measure.transfer

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
    # What reads the keys of an Experiment asks `spec.training` first: a union would ask it at each key.
    AnyExperiment = Experiment
else:
    AnyExperiment = Annotated[Experiment | OwnLoop, ByPresence("training")]
