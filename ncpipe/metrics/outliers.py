"""Scores that tell samples of other data from test samples, and NC5, in float64.

Every score is higher the more a sample looks like training samples. Constants are those of the papers, or of
OpenOOD v1.5 where a paper tunes them on outliers. A score's metrics are its AUROC and its FPR95.

N  training samples    n  samples that are scored    K  classes    d  feature width
"""

import inspect
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ncpipe.metrics.entry import Metric, families_of, family, metric
from ncpipe.metrics.pairs import in_parts, nearest_distances
from ncpipe.metrics.powers_of_two import EPS, rounding_of
from ncpipe.metrics.statistics import class_statistics
from ncpipe.system.lazy_torch import Tensor, torch

NEIGHBOURS = 50  # the k of knn
NCI_NORM = 1e-4  # weight of |h|_1 in NCI
Score = TypeVar("Score", bound=Callable[..., Tensor])


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Return the share of pairs in which the score of a test sample (n,) is above that of an outlier (m,).

    Ties count half.
    """
    ordered = outside.sort().values
    below = torch.searchsorted(ordered, inside) + torch.searchsorted(ordered, inside, right=True)
    return int(below.sum()) / (2 * len(inside) * len(outside))


def fpr95(inside: Tensor, outside: Tensor) -> float:
    """Return the share of outliers (m,) that score at least as high as the best 95 % of test samples (n,)."""
    accepted = -(-19 * len(inside) // 20)
    threshold = inside.sort(descending=True).values[accepted - 1]
    return int((outside >= threshold).sum()) / len(outside)


SEPARATIONS = (
    (
        auroc, "AUROC", "test samples above outliers, share of pairs by",
        "share of pairs with s of test > s of ood", "higher",
    ),
    (
        fpr95, "FPR95", "outliers above the 5 % quantile of test samples by",
        "share of ood with s from that on which 95 % of test have", "lower",
    ),
)  # fmt: skip


def score(name: str, formula: str, source: str) -> Callable[[Score], Score]:
    """Return a decorator that enters what separates by a score, which is called as its function."""

    def enter(function: Score) -> Score:
        names = inspect.signature(function).parameters
        layers = "every" if {"weight", "logits"}.isdisjoint(names) else "last"
        entries = (
            Metric(
                f"{function.__name__}_{separate.__name__}", "outliers", "-", f"{meaning} {name}",
                f"{share}; {formula}", "[0, 1]", source, f"{layers}, ood; {better} tells more apart",
                scale="linear", label=f"{measure} of {name}",
            )
            for separate, measure, meaning, share, better in SEPARATIONS
        )  # fmt: skip
        return family(*entries)(function)

    return enter


@score("largest softmax", "s = max_k softmax(Wh + b)_k", "HG17")
def msp(logits: Tensor) -> Tensor:
    """Return log p/(1 - p) (n,) of the largest softmax p of logits (n, K) [Hendrycks & Gimpel 2017].

    It orders samples as p does, which is 1 in float64 from a margin of 37 on.
    """
    top, decision = logits.max(1, keepdim=True)
    return top.squeeze(1) - torch.logsumexp(logits.scatter(1, decision, -math.inf), 1)


@score("energy", "s = log Σ_k exp(Wh + b)_k", "LWOL20")
def energy(logits: Tensor) -> Tensor:
    """Return log sum_k exp(f_k) (n,) of logits (n, K) [Liu et al. 2020]."""
    return torch.logsumexp(logits, 1)


@score("NCI", "s = W_c(h − m)/‖h − m‖ + 10⁻⁴‖h‖₁, c the decision, m the mean of training features", "LQ25")
def nci(train: Tensor, rows: Tensor, weight: Tensor, logits: Tensor) -> Tensor:
    """Return w_c (h - m)/|h - m| + 1e-4 |h|_1 (n,) [Liu & Qin 2025, sec. 3].

    c is the class that the logits (n, K) decide for, m the mean of train (N, d). The first part is 0 where
    h = m.
    """
    centred = rows - train.mean(0)
    along = (weight[logits.argmax(1)] * centred).sum(1)
    return _over(along, torch.linalg.vector_norm(centred, dim=1)) + NCI_NORM * rows.abs().sum(1)


@score("ViM", "s = log Σ_k exp(Wh + b)_k − α‖R(h + W⁺b)‖, R off the first axes", "WLFZ22")
def vim(
    train: Tensor,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    logits: Tensor,
    largest: Tensor,
    rounding: float = 0.0,
) -> Tensor:
    """Return logsumexp(f) - a |R (h - o)| (n,), f the logits (n, K) [Wang et al. 2022, sec. 4].

    o = -W^+ b is the origin, R the projection on all but the first D principal axes of train - o (N, d), not
    centred, and a the mean largest logit over the mean |R (h - o)|, both of train. D is 1000 from d = 2048,
    512 from 768, and d // 2 below, as in the authors' code. largest (): the mean largest logit of train.
    rounding: the share of a feature that its type rounds. NaN where train lies in the first D axes.
    """
    width = train.shape[1]
    first = 1000 if width >= 2048 else 512 if width >= 768 else width // 2
    origin = 0.0 if bias is None else -torch.linalg.pinv(weight) @ bias
    train, rows = train - origin, rows - origin
    residual = _principal(train)[1][:, first:]
    length = torch.linalg.vector_norm(train @ residual, dim=1).mean()
    if length <= max(rounding, max(train.shape) * EPS) * torch.linalg.vector_norm(train, dim=1).max():
        return torch.full_like(rows[:, 0], math.nan)
    virtual = largest / length * torch.linalg.vector_norm(rows @ residual, dim=1)
    return torch.logsumexp(logits, 1) - virtual


@score("NECO", "s = ‖Ph‖/‖h‖, h standardised, P onto the first K − 1 axes", "BBPMF24")
def neco(train: Tensor, rows: Tensor, means: Tensor, rounding: float = 0.0) -> Tensor:
    """Return |P h|/|h| (n,), P onto the first principal axes of training features [Ben Ammar et al. eq. 6].

    train (N, d), rows (n, d), both with each coordinate's mean and deviation of train removed first, as in
    the authors' code. There are K - 1 axes, as many as a simplex spans. A feature that is 0 scores 0. NaN
    where all rows lie in these axes, as they do for K > d. rounding: as in `vim`.
    """
    mean, deviation = train.mean(0), train.std(0, correction=0)
    constant = deviation <= len(train) * EPS * mean.abs()
    deviation = torch.where(constant, 1.0, deviation)
    rounded = rounding * (rows / deviation).norm()
    train, rows = (train - mean) / deviation, (rows - mean) / deviation
    axes, count = _principal(train)[1], len(means) - 1
    outside = (rows @ axes[:, count:]).norm()
    if rows.norm() > 0 and outside <= max(max(rows.shape) * EPS * rows.norm(), rounded):
        return torch.full_like(rows[:, 0], math.nan)
    inside = torch.linalg.vector_norm(rows @ axes[:, :count], dim=1)
    return _over(inside, torch.linalg.vector_norm(rows, dim=1))


@score("Mahalanobis", "s = −min_k (h − μ_k)ᵀΣ_W⁺(h − μ_k)", "LLLS18")
def mahalanobis(train: Tensor, labels: Tensor, means: Tensor, rows: Tensor, rounding: float = 0.0) -> Tensor:
    """Return -min_k (h - mu_k) S^+ (h - mu_k) (n,) [Lee et al. 2018, eq. 2].

    S is the covariance (d, d) of train (N, d) about the means (K, d) of its classes, over N. Its eigenvalues
    up to d 2^-52 of the largest count as 0, and those of what `rounding` of train may be, as in `vim`. NaN
    where these are all, unless they are 0.
    """
    centred = train - means[labels.to(train.device, torch.int64)]
    sizes, axes = _principal(centred)
    nonzero = sizes.square() > centred.shape[1] * EPS * sizes[0].square()
    nonzero &= sizes > rounding * train.norm()
    if sizes[0] > 0 and not bool(nonzero.any()):
        return torch.full_like(rows[:, 0], math.nan)
    whitener = axes[:, : len(sizes)][:, nonzero] / sizes[nonzero] * len(train) ** 0.5
    return -nearest_distances(rows @ whitener, means @ whitener, 1)[:, -1].square()


@score("k-nearest", "s = −distance of h/‖h‖ to its 50th nearest", "SMZL22")
def knn(train: Tensor, rows: Tensor) -> Tensor:
    """Return minus the distance (n,) to the k-th nearest of train (N, d), all of length 1 [Sun et al. 2022].

    k = 50, or N if that is less. Features that are 0 stay so.
    """
    train, rows = (_over(x, torch.linalg.vector_norm(x, dim=1, keepdim=True)) for x in (train, rows))
    return -nearest_distances(rows, train, min(NEIGHBOURS, len(train)))[:, -1]


@metric(
    "NC5", "0", "mean |cos| of class means and the mean of outliers",
    "mean over k of abs(cos(μ_k, mean of ood)), **not** centred", "[0, 1]", "BBPMF24 eq. 5",
    where="every, ood", scale="linear", label="NC5",
)  # fmt: skip
def nc5_orthogonality(means: Tensor, ood: Tensor) -> float:
    """Return the mean |cos| of class means (K, d) and the mean of ood (m, d) [Ben Ammar et al. eq. 5].

    Nothing is centred. NaN where one of the means is 0.
    """
    mean = ood.mean(0)
    lengths = torch.linalg.vector_norm(means, dim=1) * torch.linalg.vector_norm(mean)
    return float((means @ mean / lengths).abs().mean())


*SCORES, _NC5 = families_of((sys.modules[__name__],), ("outliers", "NC5"))


def outlier_metrics(
    features: Tensor,
    labels: Tensor,
    test: Tensor,
    ood: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> Iterator[tuple[str, float]]:
    """Yield AUROC and FPR95 of each score, and NC5, as (metric, value); NaN of features that are not finite.

    features (N, d), labels (N,): the training samples, from which scores learn. test, ood (., d): what they
    tell apart. weight (K, d), bias (K,): the classifier; without it there are only scores of features alone.
    """
    rounding = max(_rounding_of(part) for part in (features, test, ood))
    train = features.double()
    scored = torch.cat([test.to(train), ood.to(train)])
    finite = bool(train.isfinite().all()) and bool(scored.isfinite().all())
    if not finite:  # of a run that diverged
        train, scored = torch.zeros_like(train), torch.zeros_like(scored)
    weight, bias = (None if tensor is None else tensor.to(train) for tensor in (weight, bias))
    classes = int(labels.max()) + 1 if weight is None else len(weight)
    means = class_statistics(train, labels, classes).in_unit(0).means
    for name, score in outlier_scores(train, labels, means, scored, weight, bias, rounding).items():
        inside, outside = score[: len(test)], score[len(test) :]
        known = finite and not bool(score.isnan().any())
        for separate, *_ in SEPARATIONS:
            yield f"{name}_{separate.__name__}", separate(inside, outside) if known else math.nan
    yield "nc5_orthogonality", nc5_orthogonality(means, scored[len(test) :]) if finite else math.nan


def _rounding_of(features: Tensor) -> float:
    """Return the share of float32 features that a network rounds; 0 of others, which round single entries."""
    return rounding_of(features.dtype) if features.dtype == torch.float32 else 0.0


def outlier_scores(
    train: Tensor,
    labels: Tensor,
    means: Tensor,
    rows: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    rounding: float = 0.0,
) -> dict[str, Tensor]:
    """Return the scores (n,) of rows (n, d) by name; all in float64 on one device.

    train (N, d) with labels (N,), and means (K, d) of its classes; weight and bias as above. rounding: the
    share of a feature that its type rounds.
    """
    values: dict[str, Any] = {
        "train": train, "labels": labels, "means": means, "rows": rows, "rounding": rounding,
    }  # fmt: skip
    if weight is not None:
        added = 0.0 if bias is None else bias
        maxima = [(part @ weight.T + added).max(1).values for part in in_parts(train, len(weight))]
        largest = torch.cat(maxima).mean()
        values |= {"weight": weight, "bias": bias, "logits": rows @ weight.T + added, "largest": largest}
    families = [score for score in SCORES if score.needs <= values.keys()]
    return {score.function.__name__: score.result(values) for score in families}


def _principal(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return singular values of rows (N, d) and their principal axes as columns (d, d), largest first."""
    _, sizes, axes = torch.linalg.svd(torch.linalg.qr(rows, mode="r").R)  # d x d, however many rows
    return sizes, axes.T


def _over(values: Tensor, lengths: Tensor) -> Tensor:
    """Return values / lengths, 0 where a length is."""
    return torch.where(lengths > 0, values / lengths, 0.0)
