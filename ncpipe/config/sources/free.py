"""Define the keys of free features, which have labels and no inputs; `ncpipe.datasets.free` prepares them."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ncpipe.config.architectures.architecture import Kind
from ncpipe.config.bounds import Bound, Count
from ncpipe.config.sources.source import DataSpec


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
