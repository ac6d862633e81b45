"""Neural regression collapse of features, weights and targets that are vectors [Andriopoulos et al. 2024].

Features are divided by their lengths and not centred, principal axes are those of centred features: so the
authors' code has it. At the optimum of their features model the mean feature is 0, and both are the same.

N  samples    d  feature width    t  numbers of a target
"""

import math
from typing import NamedTuple

from ncpipe.metrics.entry import LAST, WEIGHTS, Metric, family, metric
from ncpipe.metrics.geometry import scaled
from ncpipe.metrics.powers_of_two import EPS
from ncpipe.system.lazy_torch import Tensor, torch

ADGZR24 = "ADGZR24 sec. 3"
ISOTROPIC = 1e-6  # relative spread of the targets' deviations from which on their covariance tells gamma


class PrincipalAxes(NamedTuple):
    """The decomposition u diag(s) axes of centred rows (N, d), up to scale; r = min(N, d), s falls.

    u (N, r), s (r,), axes (r, d). s is exactly 0 where it is no more than centring rounds to.
    """

    u: Tensor
    s: Tensor
    axes: Tensor


def principal_axes(rows: Tensor) -> PrincipalAxes:
    """Return the decomposition of rows (N, d) less their mean; of rank 1 and NaN where one is not finite."""
    rows = scaled(rows)
    if not bool(rows.isfinite().all()):
        return PrincipalAxes(rows[:, :1] * math.nan, rows[0, :1] * math.nan, rows[:1] * math.nan)
    u, s, axes = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)
    return PrincipalAxes(u, s.where(s > EPS * len(rows) ** 0.5 * rows.norm(), 0.0), axes)


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
    weight = scaled(weight)
    _, sizes, axes = torch.linalg.svd(weight, full_matrices=False)
    return _mean_outside(features, axes[sizes > max(weight.shape) * EPS * sizes[0]])


@family(
    Metric(
        "nrc3", "NRC3", "0", "distance of W Wᵀ to a form of the targets' covariance",
        "min over 0 ≤ γ ≤ λ_min(Σ) of ‖WWᵀ/‖WWᵀ‖ − S/‖S‖‖², S = Σ^(1/2) − √γ I; t > 1 alone", "[0, 4]",
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
