"""Cross-entropy with the entropy regulariser of 2502.10691, which spreads the features of a batch."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from ncpipe.study import OwnLoss, Positive


@dataclass(frozen=True)
class EntropyRegularised(OwnLoss):
    """strength: of the mean of -log distance to the nearest feature of the batch, all of length 1."""

    compares_samples: ClassVar = True
    name: Literal["entropy_regularised"]
    strength: Positive


def entropy_regularised(logits, labels, features, spec):
    fit = -logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).mean()
    units = torch.nn.functional.normalize(features, dim=-1)
    with torch.no_grad():
        own = torch.eye(len(units), dtype=units.dtype, device=units.device)
        nearest = (units @ units.mT - 2 * own).argmax(-1)
    distances = torch.linalg.vector_norm(units - units[nearest] + 1e-8, dim=-1)
    return fit - spec.strength * (distances + 1e-8).log().mean()


LOSSES = {EntropyRegularised: entropy_regularised}
