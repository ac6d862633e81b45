"""Few-shot errors of frozen features, their bounds, and directional CDNV, in float64, without a classifier.

Luthra, Salunkhe and Galanti 2026 (arXiv 2603.03530) bound the error of the nearest mean of a few shots by the
variance along the axes that separate classes. The distribution of a class is that of its own samples here.

N  samples    t  classes    n  shots of each    d  feature width    D_ij = mu_i - mu_j    u_ij = D_ij/|D_ij|
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ncpipe.metrics.entry import metric
from ncpipe.metrics.pairs import in_parts
from ncpipe.metrics.powers_of_two import times_two_to
from ncpipe.metrics.statistics import ClassStatistics
from ncpipe.system.lazy_torch import Tensor, torch

TARGET = "every, target; with `nc.measure(shots=...)` every split"
LSG26 = "LSG26"
BOUND = (
    "1/t Σ_{i≠j} (4Ṽ + (√(4V²/n + V/n) + √(V/n) + √(Θ/n³ + 2(n−1)V²/n³))²)/(1 + (v_j − v_i)/n)², of pair ij: "
    "Ṽ = mean_i (u_ijᵀ(h − μ_i))²/‖D‖², v_k = Var_k/‖D‖², V = v_i + v_j, Θ = Σ of both mean ‖h − μ‖⁴/‖D‖⁴, "
    "D = μ_i − μ_j"
)
Decide = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class DecisionAxes:
    """Variances of classes along the axes to other classes; those of one class with itself mean nothing.

    along (t, t): mean (u_ij^T(h - mu_i))^2/|D_ij|^2 of class i. variances and fourth (t, t): the means of
    |h - mu_i|^2/|D_ij|^2 and of its square. coincide: whether two class means do, to rounding.
    """

    along: Tensor
    variances: Tensor
    fourth: Tensor
    coincide: bool


def decision_axes(features: Tensor, labels: Tensor, statistics: ClassStatistics) -> DecisionAxes:
    """Return what features (N, d) with labels (N,) in 0..t-1 vary by along the axes; statistics: theirs."""
    means = statistics.means
    along, variances, fourth = means.new_empty(3, len(means), len(means))
    coincide = False
    for label, mean in enumerate(means):
        rows = times_two_to(features[labels == label].double(), -statistics.exponent) - mean
        axes = mean - means
        lengths = torch.linalg.vector_norm(axes, dim=1)
        lengths[label] = math.inf  # its own column is never read
        coincide |= bool((lengths <= statistics.cutoff).any())
        sizes = torch.linalg.vector_norm(rows, dim=1, keepdim=True) / lengths
        along[label] = (rows @ (axes / lengths.square().unsqueeze(1)).T).square().mean(0)
        variances[label], fourth[label] = sizes.square().mean(0), sizes.pow(4).mean(0)
    return DecisionAxes(along, variances, fourth, coincide)


@metric(
    "NC1", "0",
    "class variance along the axis to another class over squared distance, mean over ordered pairs",
    "mean over ordered pairs of mean_i (u_ijᵀ(h − μ_i))²/‖μ_i − μ_j‖², u_ij along μ_i − μ_j", "[0, ∞]", LSG26,
    order=2, label="directional CDNV", where=TARGET,
)  # fmt: skip
def directional_cdnv(axes: DecisionAxes) -> float:
    """Return mean over i != j of Var(u_ij^T h)/|D_ij|^2 of class i; inf where two class means coincide.

    At most `cdnv`, which counts the variance in all directions; far below it where features vary across the
    axes.
    """
    return math.inf if axes.coincide else _off_diagonal(axes.along).mean().item()


@metric(
    "transfer", "0", "few-shot error on target classes, nearest mean of the shots",
    "share, mean over classes and episodes, whose nearest mean of n shots is not their class's", "[0, 1]",
    "K23 sec. 4.3", scale="linear", label="few-shot error (ncc)", where=TARGET,
)  # fmt: skip
def transfer_ncc_error(
    rows: Tensor, labels: Tensor, shots: int, episodes: int, generator: "torch.Generator"
) -> float:
    """Return the mean error of the `nearest_shots` over episodes; see `few_shot_error`."""
    return few_shot_error(rows, labels, shots, episodes, generator, nearest_shots)


@metric(
    "transfer", "0", "few-shot error on target classes, ridge regression on the shots",
    "share, mean over classes and episodes, that ridge regression on n shots puts in another class", "[0, 1]",
    "K23 sec. 4.3", scale="linear", label="few-shot error (ridge)", where="last, target",
)  # fmt: skip
def transfer_ridge_error(
    rows: Tensor, labels: Tensor, shots: int, episodes: int, generator: "torch.Generator", ridge: float
) -> float:
    """Return the mean error of `ridge_shots` over episodes; see `few_shot_error`."""
    return few_shot_error(
        rows, labels, shots, episodes, generator, lambda drawn, others: ridge_shots(drawn, others, ridge)
    )


@metric(
    "transfer", "0", "what their CDNV allows the nearest mean's error to be",
    "8(t−1)(1 + 1/n) `cdnv` of t target classes, at least the expected error of n shots drawn anew", "[0, ∞]",
    "K23 sec. 4.3, constants ours", order=2, where=TARGET,
)  # fmt: skip
def transfer_bound(target: ClassStatistics, shots: int) -> float:
    """Return 8 (t-1)(1 + 1/n) CDNV, an upper bound of the expected nearest-shot-mean error; often > 1.

    With m the means of the shots, a sample h of class i is nearer to m_j than to m_i only if h - m_i, or
    h - m_j less its mean, is at least |mu_i - mu_j|/2 long: two inequalities of Chebyshev, averaged over
    ordered pairs of classes.
    """
    return 8 * (target.classes - 1) * (1 + 1 / shots) * target.pair_ratios[0]


@metric(
    "transfer", "0", "what their directional CDNV and fourth moments allow it to be", BOUND, "[0, ∞]",
    "LSG26 Thm 4.1", order=2, where=TARGET,
)  # fmt: skip
def transfer_directional_bound(axes: DecisionAxes, shots: int) -> float:
    """Return an upper bound of the expected nearest-shot-mean error: 4 (t-1) `directional_cdnv` for large n.

    Chebyshev's inequality for |h - m_j|^2 - |h - m_i|^2 of a sample h of class i and the means m of shots.
    inf where two class means coincide, and where this difference is not positive in the mean for a pair.
    """
    spread = axes.variances.T  # of class j over |D_ij|^2, as |D_ij| = |D_ji|
    variances, fourth = axes.variances + spread, axes.fourth + axes.fourth.T
    mean = _off_diagonal(1 + (spread - axes.variances) / shots)
    if axes.coincide or bool((mean <= 0).any()):
        return math.inf
    deviations = (
        (4 * variances.square() + variances).div(shots).sqrt()
        + (variances / shots).sqrt()
        + ((fourth + 2 * (shots - 1) * variances.square()) / shots**3).sqrt()
    )
    shares = _off_diagonal(4 * axes.along + deviations.square()) / mean.square()
    return (shares.sum() / len(axes.along)).item()


def few_shot_error(
    rows: Tensor, labels: Tensor, shots: int, episodes: int, generator: "torch.Generator", decide: Decide
) -> float:
    """Return the mean error over episodes; rows (N, d) float64, labels (N,) in 0..t-1.

    An episode draws n samples of every class, without replacement. decide(shots (t, n, d), rows (m, d))
    learns from them, and its error is over all others, each class weighing the same.
    """
    classes, errors = int(labels.max()) + 1, []
    for _ in range(episodes):
        drawn = draw_shots(labels, classes, shots, generator)
        others = torch.ones(len(labels), dtype=torch.bool, device=labels.device)
        others[drawn.flatten()] = False
        errors.append(balanced_error(decide(rows[drawn], rows[others]), labels[others], classes))
    return math.fsum(errors) / len(errors)


def draw_shots(labels: Tensor, classes: int, count: int, generator: "torch.Generator") -> Tensor:
    """Return indices (t, n) of n samples of every class."""
    indices = []
    for label in range(classes):
        members = torch.nonzero(labels == label).flatten()
        order = torch.randperm(len(members), generator=generator, device="cpu")
        indices.append(members[order[:count].to(members.device)])
    return torch.stack(indices)


def nearest_shots(shots: Tensor, rows: Tensor) -> Tensor:
    """Return classes (m,) of rows (m, d) by the nearest mean of shots (t, n, d); ties go to the lowest."""
    means = shots.mean(1)
    mode = "donot_use_mm_for_euclid_dist"
    parts = in_parts(rows, len(means))
    return torch.cat([torch.cdist(part, means, compute_mode=mode).argmin(1) for part in parts])


def ridge_shots(shots: Tensor, rows: Tensor, strength: float) -> Tensor:
    """Return classes (m,) of rows (m, d) by ridge regression of one-hot labels on shots (t, n, d).

    A minimises 1/(tn) sum |A (h - c) - (e_y - 1/t)|^2 + strength s |A|^2 over the shots, with c their mean
    and s their mean squared distance from it, so that the features' scale changes nothing. Shots that are all
    one point tell nothing: the lowest class.
    """
    classes, count, width = shots.shape
    samples = shots.reshape(-1, width)
    centre = samples.mean(0)
    centred = samples - centre
    size = centred.square().sum() / len(samples)
    if size == 0:
        return torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
    units = torch.eye(classes, dtype=torch.float64, device=rows.device)
    targets = units.repeat_interleave(count, 0) - 1 / classes
    scale = size.sqrt()
    # The dual: a (tn, tn) system however wide the features are.
    scaled = centred / scale
    gram = scaled @ scaled.T / len(samples)
    gram.diagonal().add_(strength)
    dual = torch.linalg.solve(gram, targets) / len(samples)
    axes = scaled.T @ dual
    parts = in_parts(rows, classes)
    return torch.cat([(((part - centre) / scale) @ axes).argmax(1) for part in parts])


def balanced_error(decided: Tensor, labels: Tensor, classes: int) -> float:
    """Return the share of wrong decisions, averaged over classes."""
    wrong = torch.bincount(labels, weights=(decided != labels).double(), minlength=classes)
    return (wrong / torch.bincount(labels, minlength=classes)).mean().item()


def _off_diagonal(values: Tensor) -> Tensor:
    """Return the entries (t (t-1),) of pairs i != j."""
    return values[~torch.eye(len(values), dtype=torch.bool, device=values.device)]
