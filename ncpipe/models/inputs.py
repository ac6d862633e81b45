"""Describe and reshape the samples that networks read.

N  samples    D  coordinates    C  tokens    p  patch size    V  vocabulary
"""

from dataclasses import dataclass

from torch import Tensor

from ncpipe.config.architectures.architecture import Architecture
from ncpipe.system.errors import InputError

USUAL_WIDTH = 64  # where a spec of study.py has no key `width`
POSITIONS_PER_ROW = 8  # of an image whose convolutions have a few channels, against a row of a layer's width


@dataclass(frozen=True)
class InputShape:
    """Shape of a sample: D coordinates, C tokens of p coordinates, C of V token ids, an image, or nothing.

    size: D, p, 1, an image's channels, or the number of samples whose features are free. copies: equal
    samples that each of these stands for. tokens: C, or None. vocabulary: V, or None. positions: height x
    width of an image, or None. every_position: whether every token predicts, not the last one alone.
    """

    size: int
    tokens: int | None = None
    vocabulary: int | None = None
    positions: int | None = None
    copies: int = 1
    every_position: bool = False

    @property
    def rows(self) -> int:
        """Approximate number of rows of a layer's width that a sample makes; it sets how many fit a pass."""
        if self.positions is not None:
            return max(1, self.positions // POSITIONS_PER_ROW)
        return self.tokens or 1


def width_of(spec: Architecture) -> int:
    """Return about how wide the layers are; with `InputShape.rows`, it sets how many samples fit a pass."""
    return getattr(spec, "width", USUAL_WIDTH)


def unchanged(inputs: Tensor, spec: Architecture) -> Tensor:
    """Return the inputs as they are."""
    return inputs


def check_square(inputs: Tensor, architecture: str) -> None:
    """Raise InputError unless images (N, c, h, w) are square; those with the channels last are not."""
    height, width = inputs.shape[2:]
    if height != width:
        raise InputError(
            f"model.architecture: {architecture} takes square images (N, channels, height, width), "
            f"not {height} x {width} with {inputs.shape[1]} channels"
        )


def flatten(inputs: Tensor, spec: Architecture) -> Tensor:
    """Return inputs (N, ...) as vectors (N, D)."""
    return inputs.flatten(1)


def patches(inputs: Tensor, patch: int) -> Tensor:
    """Return patches (N, C, p), row by row, of images (N, c, h, w) or vectors (N, D).

    patch: side of a square, or p. Raises InputError where it does not divide the inputs.
    """
    for length in inputs.shape[2:] if inputs.dim() == 4 else inputs.shape[1:]:
        if length % patch:
            raise InputError(f"model.patch: {patch} does not divide the input's side {length}")
    if inputs.dim() == 2:
        return inputs.unflatten(1, (-1, patch))
    squares = inputs.unfold(2, patch, patch).unfold(3, patch, patch)  # (N, c, h/p, w/p, p, p)
    return squares.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2).contiguous()
