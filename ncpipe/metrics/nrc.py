"""Neural regression collapse of features, weights and targets that are vectors [Andriopoulos et al. 2024].

Features are divided by their lengths and not centred, principal axes are those of centred features: so the
authors' code has it. At the optimum of their features model the mean feature is 0, and both are the same.
Those of any layer are of centred features and targets [Rangamani & Unal 2026, sec. 3]: the signal of a layer
is its t first principal axes.

N  samples    d  feature width    m  rows of a matrix that reads the layer    t  numbers of a target
"""

import math
from typing import NamedTuple

from ncpipe.metrics.entry import EVERY, LAST, WEIGHTS, Metric, family, metric
from ncpipe.metrics.geometry import scaled
from ncpipe.metrics.pairs import nearest_distances
from ncpipe.metrics.powers_of_two import EPS, entry_rounding_of, rounding_of
from ncpipe.metrics.spectrum import stable_rank
from ncpipe.system.lazy_torch import Tensor, torch

ADGZR24 = "ADGZR24 sec. 3"
RU26 = "RU26 sec. 3"
MOST = 10_000  # samples whose distances are taken
SMALLEST = 0.9  # share of the ratios of distances that the line is fitted to
ISOTROPIC = 1e-6  # relative spread of the targets' deviations from which on their covariance tells gamma


class PrincipalAxes(NamedTuple):
    """The decomposition u diag(s) axes of centred rows (N, d), up to scale; r = min(N, d), s falls.

    u (N, r), s (r,), axes (r, d). s is exactly 0 where it is no more than centring rounds to, or than the
    rows' type does: in float32 `rounding_of` it times |rows|; in half types twice what a random matrix of
    the entries' roundings (`entry_rounding_of`) has along the axis.
    """

    u: Tensor
    s: Tensor
    axes: Tensor


def principal_axes(rows: Tensor) -> PrincipalAxes:
    """Return the decomposition of rows (N, d) less their mean; of rank 1 and NaN where one is not finite."""
    of_entries = entry_rounding_of(rows.dtype)
    of_type, rows = 0.0 if of_entries else rounding_of(rows.dtype), scaled(rows)
    if not bool(rows.isfinite().all()):
        return PrincipalAxes(rows[:, :1] * math.nan, rows[0, :1] * math.nan, rows[:1] * math.nan)
    u, s, axes = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)
    columns = torch.linalg.vector_norm(axes * torch.linalg.vector_norm(rows, dim=0), dim=1)
    along = 2 * of_entries * (1 + (rows.shape[1] / len(rows)) ** 0.5) * columns
    rounding = along.clamp(min=float(max(EPS * len(rows) ** 0.5, of_type) * rows.norm()))
    return PrincipalAxes(u, s.where(s > rounding, 0.0), axes)


@metric(
    "NRC1", "0", "share of features outside their t first principal axes",
    "mean of ‖h − Ph‖²/‖h‖², P onto the t first principal axes of h; t numbers of a target", "[0, 1]",
    ADGZR24, order=2, label="NRC1", headline=True,
)  # fmt: skip
def nrc1(features: Tensor, signal: PrincipalAxes, length: int) -> float:
    """Return the share of features (N, d); one that is 0 counts as 0. It is 0 for d <= t."""
    return _mean_outside(features, signal.axes[:length][signal.s[:length] > 0])


@metric(
    "NRC2", "0", "share of features outside the rows of W", "the same with P onto the rows of W", "[0, 1]",
    ADGZR24, order=2, label="NRC2", headline=True, where=LAST,
)  # fmt: skip
def nrc2(features: Tensor, weight: Tensor) -> float:
    """Return the share of features (N, d), where one that is 0 counts as 0."""
    if not bool(features.isfinite().all() and weight.isfinite().all()):
        return math.nan
    _, sizes, axes = torch.linalg.svd(scaled(weight), full_matrices=False)
    return _mean_outside(features, axes[sizes > _rounding(weight) * sizes[0]])


@family(
    Metric(
        "nrc3", "NRC3", "0", "distance of W Wᵀ to a form of the targets' covariance",
        "min over 0 ≤ γ ≤ λ_min(Σ) of ‖WWᵀ/‖WWᵀ‖ − S/‖S‖‖², S = Σ^(1/2) − √γ I; t > 1 alone", "[0, 2]",
        ADGZR24, order=2, rounding="features", label="NRC3", headline=True, where=WEIGHTS,
    ),
    Metric(
        "nrc3_gamma", "NRC3", "-", "the gamma of that form",
        "the γ where that least is; λ_W λ_H at the features model's optimum", "[0, λ_min(Σ)]", ADGZR24,
        scale="linear", label="gamma of NRC3", where=WEIGHTS,
    ),
)  # fmt: skip
def nrc3(weight: Tensor, targets: Tensor) -> tuple[float, float]:
    """Return the least |W W^T/|W W^T| - S/|S||^2, S = Sigma^(1/2) - sqrt(gamma) I, and the gamma of it.

    weight (t, d); Sigma (t, t): covariance of the targets (N, t), over N. gamma is between 0 and the least
    eigenvalue of Sigma. Both are NaN where that is 0, or W is. gamma is NaN where all eigenvalues are equal:
    the value is the same for each then. The distance has one stationary point in sqrt(gamma), so it is
    compared there and at the ends.
    """
    if not bool(weight.isfinite().all()):
        return math.nan, math.nan
    weight = scaled(weight)
    gram = weight @ weight.T
    variances, axes = torch.linalg.eigh(covariance(targets))
    if not bool(weight.any()) or variances[0] <= len(targets) * EPS * variances[-1]:
        return math.nan, math.nan
    gram, deviations = axes.T @ gram @ axes / gram.norm(), variances.sqrt()
    least = float(deviations[0])

    def distance(shift: float) -> float:
        form = torch.diag(deviations - shift)
        return float((gram - form / form.norm()).square().sum())

    if float(deviations[-1]) - least < ISOTROPIC * least:
        return distance(0.0), math.nan
    inner, trace = float((gram.diagonal() * deviations).sum()), float(gram.trace())
    total, square, count = float(deviations.sum()), float(deviations.square().sum()), len(deviations)
    bottom = trace * total - inner * count
    stationary = (trace * square - inner * total) / bottom if bottom else 0.0
    shifts = (0.0, min(max(stationary, 0.0), least), least)
    value, shift = min((distance(shift), shift) for shift in shifts)
    return value, shift**2


@metric(
    "error", "-", "squared error over the targets' variance, 1 - R^2", "‖f − Y‖²/‖Y − mean‖² = 1 − R²",
    "[0, ∞)", label="relative squared error", where=LAST,
)  # fmt: skip
def relative_mse(predictions: Tensor, targets: Tensor) -> float:
    """Return the error of predictions and targets (N, t); NaN for constant targets."""
    targets = targets.double()
    spread = (targets - targets.mean(0)).square().sum()
    return float((predictions - targets).square().sum() / spread) if spread > 0 else math.nan


@family(
    Metric(
        "nrc1_variance", "NRC1", "0", "share of variance outside the t first principal axes",
        "1 − Σ_{j≤t} s_j²/Σ_j s_j², s the singular values of centred h", "[0, 1]", RU26, order=2,
        rounding="features", label="NRC1 of variance",
    ),
    Metric(
        "stable_rank_features", "rank", "at most t", "stable rank of centred features",
        "Σ_j s_j²/s_1², s the singular values of centred h", "[1, rank]",
        "RU26 sec. 4.3, of Σ_h in its code", scale="linear", label="stable rank of features",
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
    ranks = (signal.s > 0).sum(), (sizes > _rounding(reader) * sizes[0]).sum()
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


def _rounding(matrix: Tensor) -> float:
    """Return the share of a matrix's largest singular value up to which others are rounding of its type."""
    return max(max(matrix.shape) * EPS, rounding_of(matrix.dtype))


def covariance(targets: Tensor) -> Tensor:
    """Return the covariance (t, t) of targets (N, t), over N, in float64."""
    centred = targets.double() - targets.double().mean(0)
    return centred.T @ centred / len(targets)


def _mean_outside(features: Tensor, axes: Tensor) -> float:
    """Return the mean of |h - P h|^2/|h|^2, P the projection on orthonormal rows (r, d)."""
    features = features.double()
    largest = features.abs().amax(1, keepdim=True)
    units = features / largest.where(largest > 0, 1.0)
    lengths = units.norm(dim=1, keepdim=True)
    units = units / lengths.where(lengths > 0, 1.0)
    return float((units - units @ axes.T @ axes).square().sum(1).mean())
