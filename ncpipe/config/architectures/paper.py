"""Define what the specs of S25's two families of networks share, and the one of L-RN1 and L-RN2."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ncpipe.config.architectures.architecture import Architecture, Classifier
from ncpipe.config.bounds import Bound, NonNegative, Positive, Size

TWO_LAYER_MLPS = ("L-RN2", "L-T12", "L-T22")


@dataclass(frozen=True)
class PaperArchitecture(Architecture):
    """Residual networks with LN whose blocks end in one- or two-layer MLPs [S25 Def. 3.1, 3.2, B.1, B.2].

    architecture: name in the paper, which says the numbers of its layers and matrices.
    norm: `post` normalises after each branch has been added, `pre` inside the branch alone.
    width: d, of every layer.
    last_bias: whether the last layer has a bias; `scope: all` penalises it, nothing else does.
    layer_norm_eps: added to the variance that a layer normalisation divides by.
    initialisation: weights are drawn with variance gain^2 / fan_in, normal or uniform, and biases start at 0.
    gain: gain of the random initialisation.
    mlp_width: hidden width of two-layer MLPs (L-RN2, L-T12, L-T22); no key of the others.
    classifier: kind of the last layer; learned by default.
    """

    bounds_features: ClassVar[bool] = True  # type: ignore[misc]

    architecture: str
    norm: Literal["post", "pre"]
    width: Annotated[int, Bound(2, 10**6)]
    last_bias: bool
    layer_norm_eps: NonNegative
    initialisation: Literal["normal", "uniform"]
    gain: Positive
    mlp_width: Size | None = None
    classifier: Classifier | None = None

    def __post_init__(self) -> None:
        # mlp_width is given for two-layer MLPs, and only for them.
        two_layers = self.architecture in TWO_LAYER_MLPS
        if two_layers and self.mlp_width is None:
            raise ValueError(f"mlp_width is needed: {self.architecture} has two-layer MLPs")
        if not two_layers and self.mlp_width is not None:
            raise ValueError(f"mlp_width does not apply: {self.architecture} has one-layer MLPs; remove it")

    @property
    def uniform(self) -> bool:
        """Whether weights are drawn from a uniform distribution, not a normal one."""
        return self.initialisation == "uniform"

    @property
    def feature_width(self) -> int:
        return self.width


@dataclass(frozen=True)
class ResNetModel(PaperArchitecture):
    """A ResNet of S25 Def. 3.1 (norm: post) or B.1 (norm: pre).

    architecture: L-RN1 or L-RN2, with blocks of one or two layers.
    """

    architecture: Literal["L-RN1", "L-RN2"]
