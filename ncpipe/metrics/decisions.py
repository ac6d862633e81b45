"""Compute margins of decisions, and how features are aligned with the classifier.

B  samples of a batch    K  classes    d  feature width
"""

from ncpipe.metrics.powers_of_two import row_scales
from ncpipe.system.lazy_torch import Tensor, torch

# Lengths whose squares, and those of 1e-16 of them, float64 holds.
SHORTEST, LONGEST = 2.0**-400, 2.0**500


def logit_margins(logits: Tensor, labels: Tensor) -> Tensor:
    """Return f_y - max_{k != y} f_k (B,) of logits (K, B), which are overwritten.

    Above 0 where a sample is classified correctly.
    """
    places = labels.unsqueeze(0)
    right = logits.gather(0, places).squeeze(0)
    return right - logits.scatter_(0, places, -torch.inf).amax(0)


def misalignments(
    features: Tensor, labels: Tensor, directions: Tensor, buffer: Tensor | None = None
) -> Tensor:
    """Return 1 - cos(h, w_y) (B,) of features (B, d) and directions w (K, d); NaN for a zero vector.

    directions: the `unit_rows` of W. Taken as |h - |h| w_y|^2/(2 |h|^2), which keeps its digits near 0.
    buffer (B, d): memory to overwrite.
    """
    lengths = torch.linalg.vector_norm(features, dim=1)
    shortest, longest = torch.aminmax(lengths) if len(lengths) else (torch.ones(()), torch.ones(()))
    if not (shortest > SHORTEST and longest < LONGEST):
        features = features / row_scales(features)
        lengths = torch.linalg.vector_norm(features, dim=1)
    rows = torch.index_select(directions, 0, labels, out=buffer)
    torch.addcmul(features, lengths.unsqueeze(1), rows, value=-1, out=rows)
    return torch.linalg.vector_norm(rows, dim=1).div_(lengths).square_() / 2
