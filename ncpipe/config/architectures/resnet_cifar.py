"""Define the spec of small residual networks for images; `ncpipe.models.resnet_cifar` has the network."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ncpipe.config.architectures.architecture import Architecture, Classifier, Head
from ncpipe.config.bounds import Bound, NonNegative, Positive, Size


@dataclass(frozen=True)
class CifarResNetModel(Architecture):
    """ResNet8, ResNet20 and their kin with batch norm [He et al. 2016, sec. 4.2]; L = 6n + 2 is their number.

    No bias anywhere but in batch norm. Convolutions are drawn with variance 2 / fan_in; nothing bounds the
    features.
    architecture: resnet_cifar.
    width: channels of the first stage; the others have two and four times as many.
    head_layers: ReLU layers between the pooled features and the last layer [S24 sec. 6.3].
    gain: the head's and the last layer's weights are drawn with variance gain^2 / fan_in.
    batch_norm_eps: added to the variance that a batch normalisation divides by.
    head_width: width of the head's layers; not allowed without them.
    classifier: kind of the last layer; learned by default.
    """

    # fixed, and so no keys
    norm: ClassVar[str] = "batch"  # type: ignore[misc]
    initialisation: ClassVar[str] = "normal"  # type: ignore[misc]
    last_bias: ClassVar[bool] = False  # type: ignore[misc]
    reads_images: ClassVar[bool] = True  # type: ignore[misc]

    architecture: Literal["resnet_cifar"]
    width: Size
    head_layers: Annotated[int, Bound(0, 1000)]  # deeper heads take minutes to be laid out
    gain: Positive
    batch_norm_eps: NonNegative
    head_width: Size | None = None
    classifier: Classifier | None = None

    def __post_init__(self) -> None:
        if bool(self.head_layers) != (self.head_width is not None):
            raise ValueError("head_width is a number with head_layers and no key with `head_layers: 0`")

    @property
    def feature_width(self) -> int:
        return self.head_width or 4 * self.width

    @property
    def has_head(self) -> bool:  # type: ignore[override]
        return self.head_layers > 0

    def head(self, depth: int) -> Head | None:
        if self.head_width is None:
            return None
        inner = tuple(f"H{layer}" for layer in range(1, self.head_layers))
        before = tuple(f"Z{layer}" for layer in range(1, self.head_layers + 1))
        return Head(f"R{(depth - 2) // 2}", before, (*inner, "last"), min(self.head_width, 4 * self.width))

    def depth_incompatibility(self, depth: int) -> str:
        return "" if depth >= 8 and depth % 6 == 2 else "L = 6n + 2 (8, 14, 20, 26, ...)"
