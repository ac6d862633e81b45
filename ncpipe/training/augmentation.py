"""Draw random shifts and flips and apply them to training images.

`ncpipe.training.descent` draws them from a stream of their own, one for each run.

S  runs    B  images of a batch    c  channels    h, w  height and width
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ncpipe.config.experiment import Augmentation


def draw_moves(augmentation: Augmentation, count: int, generator: torch.Generator) -> Tensor:
    """Draw (count, 3): shift down and shift right of each image, in pixels, and 1 if it is flipped."""
    reach = augmentation.shift
    shifts = torch.randint(-reach, reach + 1, (count, 2), generator=generator)
    flips = torch.randint(0, 2 if augmentation.flip else 1, (count, 1), generator=generator)
    return torch.cat([shifts, flips], 1)


def augment(images: Tensor, moves: Tensor, reach: int) -> Tensor:
    """Return images (S, B, c, h, w), shifted, then flipped, by moves (S, B, 3) of at most `reach` pixels.

    Pixels from outside the image are 0: the mean colour of standardised images.
    """
    runs, _, _, height, width = images.shape
    padded = F.pad(images.flatten(0, 1), (reach, reach, reach, reach))
    down, right, flip = moves.flatten(0, 1).unsqueeze(2).unbind(1)  # (S B, 1) each
    rows = torch.arange(height, device=images.device) + reach - down
    columns = torch.arange(width, device=images.device).expand(len(flip), -1)
    columns = torch.where(flip > 0, width - 1 - columns, columns) + reach - right
    numbers = torch.arange(len(padded), device=images.device)[:, None, None]
    moved = padded[numbers, :, rows[:, :, None], columns[:, None, :]]  # (S B, h, w, c)
    return moved.permute(0, 3, 1, 2).contiguous().unflatten(0, (runs, -1))
