"""Define the spec of L-RN1 and L-RN2; `ncpipe.models.resnet` has the network."""

from dataclasses import dataclass
from typing import Literal

from ncpipe.config.architectures.paper import PaperArchitecture


@dataclass(frozen=True)
class ResNetModel(PaperArchitecture):
    """A ResNet of S25 Def. 3.1 (norm: post) or B.1 (norm: pre).

    architecture: L-RN1 or L-RN2, with blocks of one or two layers.
    """

    architecture: Literal["L-RN1", "L-RN2"]
