"""Define what the records of a study.py build on."""

from typing import Any, ClassVar

from ncpipe.config.architectures.architecture import Architecture, Kind
from ncpipe.config.sources.source import DataSpec


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


class OwnData(DataSpec):
    """Base of the records below `data` that a study.py defines; the first field of each is `source`.

    kind: what the inputs are, see ArraysData. targets: `vectors`, as a ClassVar, where its function gives
    targets (N, t) in place of labels; `tags` where it gives tags (N, K).
    """

    study_entry: ClassVar[Any]
    kind: Kind


class OwnLoss:
    """Base of the records below `loss` that a study.py defines; the first field of each is `name`.

    compares_samples: whether a sample's loss depends on the others of its batch. Its function then gives the
    mean over the batch, and otherwise a number for each sample.
    """

    study_entry: ClassVar[Any]
    compares_samples: ClassVar[bool] = False
    name: str


class OwnOptimizer:
    """Base of the records below `optimizer` that a study.py defines; the first field of each is `name`.

    state: names of what the optimizer keeps of each parameter, which is 0 at first.
    """

    study_entry: ClassVar[Any]
    state: ClassVar[tuple[str, ...]] = ()
    name: str
    learning_rate: float


class OwnTraining:
    """Base of the records below `training` that a study.py defines; the first field of each is `name`.

    epochs: what the loop counts, at least 1.
    """

    study_entry: ClassVar[Any]
    name: str
    epochs: int
