"""Neural regression collapse of any layer [Rangamani & Unal 2026, sec. 3], and its intrinsic dimension.

Those of collapse are of centred features and targets. The signal of a layer is its t first principal axes.

N  samples    d  feature width    m  rows of a matrix that reads the layer    t  numbers of a target
"""

import math

from ncpipe.metrics.entry import EVERY, Metric, family, metric
from ncpipe.metrics.geometry import scaled
from ncpipe.metrics.nrc import PrincipalAxes, principal_axes
from ncpipe.metrics.pairs import nearest_distances
from ncpipe.metrics.powers_of_two import EPS
from ncpipe.metrics.spectrum import stable_rank
from ncpipe.system.lazy_torch import Tensor, torch

RU26 = "RU26 sec. 3"
MOST = 10_000  # samples whose distances are taken
SMALLEST = 0.9  # share of the ratios of distances that the line is fitted to


@family(
    Metric(
        "nrc1_variance", "NRC1", "0", "share of variance outside the t first principal axes",
        "1 − Σ_{j≤t} s_j²/Σ_j s_j², s the singular values of centred h", "[0, 1]", RU26, order=2,
        rounding="features", label="NRC1 of variance",
    ),
    Metric(
        "stable_rank_features", "rank", "at most t", "stable rank of centred features", "Σ_j s_j²/s_1²",
        "[1, rank]", "RU26 sec. 4.3, of Σ_h in its code", scale="linear", label="stable rank of features",
    ),
)  # fmt: skip
def feature_spectrum(signal: PrincipalAxes, length: int) -> tuple[float, float]:
    """Return both of centred features (N, d) and t; NaN for constant ones."""
    squares = signal.s.square()
    return float(squares[length:].sum() / squares.sum()), stable_rank(signal.s)


@metric(
    "NRC2", "1", "centred kernel alignment of features and targets",
    "‖hᵀY‖²/(‖hᵀh‖ ‖YᵀY‖) of centred h and Y", "[0, 1]", RU26, scale="linear", label="NRC2, CKA",
)  # fmt: skip
def nrc2_cka(signal: PrincipalAxes, targets: Tensor) -> float:
    """Return the alignment of centred features (N, d) with targets (N, t); NaN where one is constant.

    1 if features are targets up to rotation and scale. At the optimum of the features model it is 1 only for
    targets with equal variances along their axes.
    """
    axes = principal_axes(targets)
    cross = signal.s.unsqueeze(1) * (signal.u.T @ axes.u) * axes.s
    return float(cross.square().sum() / (signal.s.square().norm() * axes.s.square().norm()))


@metric(
    "NRC3", "1", "mean cosine of the principal angles of features and the matrix that reads them",
    "mean cos of the angles between the t first principal axes of centred h and the t first right singular "
    "vectors of W; fewer where one of them has lower rank", "[0, 1]", RU26, scale="linear",
    label="NRC3, alignment", where=f"{EVERY}; inner layers that a matrix reads",
)  # fmt: skip
def nrc3_alignment(signal: PrincipalAxes, reader: Tensor, length: int) -> float:
    """Return the mean cosine of centred features (N, d) and W (m, d); NaN for constant features or W = 0."""
    if not bool(signal.s.isfinite().all() and reader.isfinite().all()):
        return math.nan
    _, sizes, rows = torch.linalg.svd(scaled(reader), full_matrices=False)
    ranks = (signal.s > 0).sum(), (sizes > max(reader.shape) * EPS * sizes[0]).sum()
    count = min(length, *map(int, ranks))
    return float(torch.linalg.svdvals(signal.axes[:count] @ rows[:count].T).mean())


@metric(
    "NRC4", "that of the network", "squared error of the best affine map over the targets' variance",
    "min over A, b of ‖Ah + b − Y‖²/‖Y − mean‖²", "[0, 1]", RU26, label="NRC4, linear error",
)  # fmt: skip
def nrc4_linear_mse(signal: PrincipalAxes, targets: Tensor) -> float:
    """Return 1 - R^2 of the map from centred features (N, d) to targets (N, t), fitted to these samples."""
    centred = targets.double() - targets.double().mean(0)
    u = signal.u * (signal.s > 0)
    residual = centred - u @ (u.T @ centred)
    return float(residual.square().sum() / centred.square().sum())


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
    rows = scaled(features[:MOST])
    if len(rows) < 3 or not bool(rows.isfinite().all()):
        return math.nan
    first, second = nearest_distances(rows, rows, 3)[:, 1:].T
    ratios = (second / first)[first > 0].log().sort().values
    count = int(SMALLEST * len(ratios))
    places = torch.arange(1, count + 1, dtype=torch.float64, device=ratios.device)
    heights = -torch.log1p(-places / len(ratios))
    return float((ratios[:count] @ heights) / ratios[:count].square().sum())
