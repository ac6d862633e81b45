"""What a layer's features decide: by the nearest class mean, by the classifier, and how clearly.

B  samples of a batch    K  classes    d  feature width
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ncpipe.metrics.geometry import unit_rows


class NearestMean:
    """argmin_k |h - mu_k| (B,) of features (B, d) for class means (K, d), both float64.

    Taken from |mu_k|^2/2 - h mu_k about the mean of the means, where a common offset costs no digits.
    """

    def __init__(self, means: Tensor) -> None:
        self._centre = means.mean(0)
        self._centred = means - self._centre
        self._half = self._centred.square().sum(1) / 2

    def __call__(self, features: Tensor, space: Tensor | None = None) -> Tensor:
        """space (B, d): memory to write over, where there is some."""
        centred = torch.sub(features, self._centre, out=space)
        return torch.addmm(self._half, centred, self._centred.T, alpha=-1).argmin(1)


def nearest_means(features: Tensor, means: Tensor) -> Tensor:
    """`NearestMean` of features (B, d) for means (K, d), both float64."""
    return NearestMean(means)(features)


def logit_margins(logits: Tensor, labels: Tensor) -> Tensor:
    """f_y - max_{k != y} f_k (B,) of logits (B, K); above 0 where the sample is classified right."""
    places = labels.unsqueeze(1)
    right = logits.gather(1, places).squeeze(1)
    return right - logits.scatter(1, places, -torch.inf).amax(1)


def misalignments(features: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """1 - cos(h, W_y) (B,) of features (B, d) and the rows of W (K, d); NaN for a zero vector.

    Taken as |h/|h| - W_y/|W_y||^2/2, which keeps its digits near 0.
    """
    rows = unit_rows(weight)[labels]
    return unit_rows(features).sub_(rows).square_().sum(1) / 2


def effective_depth(errors: Sequence[float], tolerance: float) -> int:
    """First layer l in 1..L whose nearest-mean error is <= tolerance, L if there is none [K23 sec. 4.2].

    errors: `ncc_error` on the training samples of layers 1..L in the order of the forward pass.
    """
    reached = [layer for layer, error in enumerate(errors, 1) if error <= tolerance]
    return reached[0] if reached else len(errors)
