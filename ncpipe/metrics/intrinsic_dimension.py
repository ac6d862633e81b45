"""The intrinsic dimension of features by distances to two neighbours [Facco et al. 2017].

N  samples    d  feature width
"""

import math

from ncpipe.metrics.entry import metric
from ncpipe.metrics.nrc import scaled
from ncpipe.metrics.pairs import nearest_distances
from ncpipe.system.lazy_torch import Tensor, torch

MOST = 10_000  # samples whose distances are taken
KEPT = 0.9  # of the ratios of distances, the least


@metric(
    "rank", "at most t", "intrinsic dimension by two nearest neighbours",
    "slope through 0 of −log(1 − i/N) on the i-th least log r_2/r_1, of the least 90 %; r the distances to "
    f"the two nearest, of the first {MOST:,} samples", "[0, ∞]", "FARL17", scale="linear",
    label="intrinsic dimension",
)  # fmt: skip
def intrinsic_dimension(features: Tensor) -> float:
    """Return the TwoNN estimate of features (N, d) [Facco et al. 2017]; NaN for fewer than 3 that differ.

    Samples that coincide with another one are left out.
    """
    rows = scaled(features[:MOST].double())
    if len(rows) < 3 or not bool(rows.isfinite().all()):
        return math.nan
    first, second = nearest_distances(rows, rows, 3)[:, 1:].T
    ratios = (second / first)[first > 0].log().sort().values
    count = int(KEPT * len(ratios))
    places = torch.arange(1, count + 1, dtype=torch.float64, device=ratios.device)
    heights = -torch.log1p(-places / len(ratios))
    return float((ratios[:count] @ heights) / ratios[:count].square().sum())
