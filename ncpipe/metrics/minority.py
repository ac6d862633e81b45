"""Minority collapse: the small classes' rows of weights, which may point one way [K23 sec. 3.1.6].

K  classes    M  large ones, the first    B  small ones, the others    d  feature width
"""

import math

from ncpipe.metrics.entry import metric
from ncpipe.metrics.geometry import scaled, unit_rows
from ncpipe.system.lazy_torch import Tensor, torch

K23 = "K23 sec. 3.1.6"


@metric(
    "minority", "1", "cosine of the small classes' rows of weights",
    "mean over pairs of small classes of cos(W_k, W_j)", "[−1, 1]", K23, scale="linear",
    label="cosine of minority rows", where="last, weights; 1 is minority collapse, −1/(K−1) a simplex",
)  # fmt: skip
def minority_cosine(weight: Tensor, majority: int) -> float:
    """Return the mean over rows M, ..., K - 1 of W; NaN for fewer than two of them and for rows of 0."""
    rows = unit_rows(weight[majority:].double())
    pairs = torch.triu_indices(len(rows), len(rows), offset=1, device=weight.device)
    cosines = (rows @ rows.T)[pairs[0], pairs[1]]
    return cosines.mean().item() if len(cosines) else math.nan


@metric(
    "minority", "0", "what tells the small classes' rows of weights apart",
    "‖W_B − its mean row‖/‖W‖, W_B the rows of small classes", "[0, 1]", "formula ours", scale="linear",
    label="spread of minority rows", where="last, weights; 0 is minority collapse",
)  # fmt: skip
def minority_spread(weight: Tensor, majority: int) -> float:
    """Return the spread: sqrt((B - 1)/(K - 1)) for a simplex, 0 also where W_B goes to 0; NaN for W = 0."""
    rows = scaled(weight)
    small = rows[majority:]
    return ((small - small.mean(0)).norm() / rows.norm()).item()
