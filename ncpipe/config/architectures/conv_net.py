"""Define the spec of a small convolutional network with a ReLU head; the network is in `ncpipe.models`."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ncpipe.config.architectures.architecture import Architecture, Classifier
from ncpipe.config.bounds import Bound, Count, NonNegative, Positive, Size


@dataclass(frozen=True)
class ConvNetModel(Architecture):
    """Convolutions with batch norm, their pixels mapped linearly to features, and S24's head of L matrices.

    No bias anywhere but in batch norm. Convolutions are drawn with variance 2 / fan_in; nothing bounds the
    features.
    architecture: conv_net.
    pooled: side of the squares of pixels that are averaged before all else; 1 takes images as they are.
    channels: channels of each 3 x 3 convolution; each but the first halves the image's sides.
    width: width of the features that enter the head, and of its layers.
    feature_gain: the map to the features is drawn with variance feature_gain^2 / fan_in.
    gain: the head's and the last layer's weights are drawn with variance gain^2 / fan_in.
    batch_norm_eps: added to the variance that a batch normalisation divides by.
    classifier: kind of the last layer; learned by default.
    """

    # fixed, and so no keys
    norm: ClassVar[str] = "batch"  # type: ignore[misc]
    initialisation: ClassVar[str] = "normal"  # type: ignore[misc]
    last_bias: ClassVar[bool] = False  # type: ignore[misc]
    has_head: ClassVar[bool] = True  # type: ignore[misc]
    reads_images: ClassVar[bool] = True  # type: ignore[misc]

    architecture: Literal["conv_net"]
    pooled: Annotated[int, Bound(1, 64)]  # little would be left of an image
    channels: tuple[Count, ...]
    width: Size
    feature_gain: Positive
    gain: Positive
    batch_norm_eps: NonNegative
    classifier: Classifier | None = None

    def __post_init__(self) -> None:
        if not self.channels:
            raise ValueError("channels: empty; list at least one")

    @property
    def feature_width(self) -> int:
        return self.width

    def side_incompatibility(self, side: int | None) -> str:
        if side is None or side % self.pooled == 0:
            return ""
        return f"model.pooled: {self.pooled} does not divide the input's side {side}"

    def depth_incompatibility(self, depth: int) -> str:
        return "" if depth >= 2 else "L >= 2 (L counts the head's matrices, the last layer's included)"
