"""Tell samples of other data from test samples by what enters the last layer, in float64.

Every score is higher the more a sample looks like training samples. Constants are those of the papers, or of
OpenOOD v1.5 where a paper tunes them on outliers.

N  training samples    n  samples that are scored    K  classes    d  feature width
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ncpipe.metrics.checks import Array, as_tensor, check_finite
from ncpipe.metrics.losses import logits_of
from ncpipe.metrics.statistics import class_statistics
from ncpipe.system.errors import InputError

EPS = torch.finfo(torch.float64).eps
NEIGHBOURS = 50  # the k of knn
NCI_NORM = 1e-4  # weight of |h|_1 in NCI
DISTANCES = 2**24  # that are held at a time


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
    train = features.double()
    both = torch.cat([test.to(train), ood.to(train)])
    finite = bool(train.isfinite().all()) and bool(both.isfinite().all())
    if not finite:  # of a run that diverged
        train, both = torch.zeros_like(train), torch.zeros_like(both)
    rows, offsets = (None if each is None else each.to(train) for each in (weight, bias))
    classes = int(labels.max()) + 1 if weight is None else len(weight)
    means = class_statistics(train, labels, classes).in_unit(0).means
    for name, score in outlier_scores(train, labels, means, both, rows, offsets).items():
        inside, outside = score[: len(test)], score[len(test) :]
        yield f"{name}_auroc", auroc(inside, outside) if finite else math.nan
        yield f"{name}_fpr95", fpr95(inside, outside) if finite else math.nan
    yield "nc5_orthogonality", nc5(means, both[len(test) :]) if finite else math.nan


def outlier_scores(
    train: Tensor, labels: Tensor, means: Tensor, rows: Tensor, weight: Tensor | None, bias: Tensor | None
) -> dict[str, Tensor]:
    """Return the scores (n,) of rows (n, d) by name; all in float64 on one device.

    train (N, d) with labels (N,), and means (K, d) of its classes; weight and bias as above.
    """
    of_features = {
        "neco": neco(train, rows, len(means)),
        "mahalanobis": mahalanobis(train, labels, means, rows),
        "knn": nearest_neighbours(train, rows),
    }
    if weight is None:
        return of_features
    logits = logits_of(rows, weight, bias)
    return {
        "msp": max_softmax(logits),
        "energy": torch.logsumexp(logits, 1),
        "nci": nci(train, rows, weight, bias),
        "vim": vim(train, rows, weight, bias),
        **of_features,
    }


def max_softmax(logits: Tensor) -> Tensor:
    """Return log p/(1 - p) (n,) of the largest softmax p of logits (n, K) [Hendrycks & Gimpel 2017].

    It orders samples as p does, which is 1 in float64 from a margin of 37 on.
    """
    top, place = logits.max(1, keepdim=True)
    return top.squeeze(1) - torch.logsumexp(logits.scatter(1, place, -math.inf), 1)


def neco(train: Tensor, rows: Tensor, classes: int) -> Tensor:
    """Return |P h|/|h| (n,), P onto the first principal axes of training features [Ben Ammar et al. eq. 6].

    train (N, d), rows (n, d), both with each coordinate's mean and deviation of train removed first, as in
    the authors' code. There are K - 1 axes, as many as a simplex spans. A feature that is 0 scores 0.
    """
    mean, deviation = train.mean(0), train.std(0, correction=0)
    constant = deviation <= len(train) * EPS * mean.abs()
    deviation = torch.where(constant, 1.0, deviation)
    known, rows = (train - mean) / deviation, (rows - mean) / deviation
    inside = torch.linalg.vector_norm(rows @ _principal(known)[1][:, : classes - 1], dim=1)
    return _over(inside, torch.linalg.vector_norm(rows, dim=1))


def nci(train: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return w_c (h - m)/|h - m| + 1e-4 |h|_1 (n,) [Liu & Qin 2025, sec. 3].

    c is the class that the classifier (K, d) decides for, m the mean of train (N, d). The first part is 0
    where h = m.
    """
    decided = logits_of(rows, weight, bias).argmax(1)
    centred = rows - train.mean(0)
    along = (weight[decided] * centred).sum(1)
    return _over(along, torch.linalg.vector_norm(centred, dim=1)) + NCI_NORM * rows.abs().sum(1)


def vim(train: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return logsumexp(f) - a |R (h - o)| (n,), f the logits [Wang et al. 2022, sec. 4].

    o = -W^+ b is the origin, R the projection on all but the first D principal axes of train - o (N, d), not
    centred, and a the mean largest logit over the mean |R (h - o)|, both of train. D is 1000 from d = 2048,
    512 from 768, and d // 2 below, as in the authors' code. NaN where train lies in the first D axes.
    """
    width = train.shape[1]
    first = 1000 if width >= 2048 else 512 if width >= 768 else width // 2
    origin = 0.0 if bias is None else -torch.linalg.pinv(weight) @ bias
    known, shifted = train - origin, rows - origin
    residual = _principal(known)[1][:, first:]
    left = torch.linalg.vector_norm(known @ residual, dim=1).mean()
    if left <= max(known.shape) * EPS * torch.linalg.vector_norm(known, dim=1).max():
        return torch.full_like(rows[:, 0], math.nan)
    scale = logits_of(train, weight, bias).max(1).values.mean() / left
    virtual = scale * torch.linalg.vector_norm(shifted @ residual, dim=1)
    return torch.logsumexp(logits_of(rows, weight, bias), 1) - virtual


def mahalanobis(train: Tensor, labels: Tensor, means: Tensor, rows: Tensor) -> Tensor:
    """Return -min_k (h - mu_k) S^+ (h - mu_k) (n,) [Lee et al. 2018, eq. 2].

    S is the covariance (d, d) of train (N, d) about the means (K, d) of its classes, over N. Its eigenvalues
    up to d 2^-52 of the largest count as 0.
    """
    centred = train - means[labels.to(train.device, torch.int64)]
    sizes, axes = _principal(centred)
    kept = sizes.square() > centred.shape[1] * EPS * sizes[0].square()
    whitener = axes[:, : len(sizes)][:, kept] / sizes[kept] * len(train) ** 0.5
    return -_distances(rows @ whitener, means @ whitener, 1).square()


def nearest_neighbours(train: Tensor, rows: Tensor) -> Tensor:
    """Return minus the distance (n,) to the k-th nearest of train (N, d), all of length 1 [Sun et al. 2022].

    k = 50, or N if that is less. Features that are 0 stay so.
    """
    known, rows = (_over(each, torch.linalg.vector_norm(each, dim=1, keepdim=True)) for each in (train, rows))
    return -_distances(rows, known, min(NEIGHBOURS, len(known)))


def nc5(means: Tensor, ood: Tensor) -> float:
    """Return the mean |cos| of class means (K, d) and the mean of ood (m, d) [Ben Ammar et al. eq. 5].

    Nothing is centred. NaN where one of the means is 0.
    """
    other = ood.mean(0)
    lengths = torch.linalg.vector_norm(means, dim=1) * torch.linalg.vector_norm(other)
    return float((means @ other / lengths).abs().mean())


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Return the share of pairs in which the score of a test sample (n,) is above that of an outlier (m,).

    Ties count half. NaN of NaN.
    """
    if bool(inside.isnan().any() or outside.isnan().any()):
        return math.nan
    ordered = outside.sort().values
    below = torch.searchsorted(ordered, inside) + torch.searchsorted(ordered, inside, right=True)
    return int(below.sum()) / (2 * len(inside) * len(outside))


def fpr95(inside: Tensor, outside: Tensor) -> float:
    """Return the share of outliers (m,) that score as high as the best 95 % of test samples (n,), at least.

    NaN of NaN.
    """
    if bool(inside.isnan().any() or outside.isnan().any()):
        return math.nan
    accepted = -(-19 * len(inside) // 20)
    threshold = inside.sort(descending=True).values[accepted - 1]
    return int((outside >= threshold).sum()) / len(outside)


def check_outliers(ood: Array, features: Array, test: Array | None) -> Tensor:
    """Return ood (m, d) as a tensor; raise InputError where no score can compare it with test samples."""
    rows, known = as_tensor(ood), as_tensor(features)
    if test is None:
        raise InputError("ood: its scores are compared with those of test samples; give test features too")
    if rows.ndim != 2 or not len(rows) or rows.shape[1] != known.shape[1]:
        raise InputError(f"ood features are {tuple(rows.shape)}; they must be (samples, {known.shape[1]})")
    check_finite("ood features", rows)
    for name, other in (("train", known), ("test", as_tensor(test))):
        if rows.shape == other.shape and torch.equal(rows.to(other), other) and bool((rows != rows[0]).any()):
            raise InputError(f"ood features are the {name} features; give those of other data")
    return rows


def _principal(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return singular values of rows (N, d) and their principal axes as columns (d, d), largest first."""
    _, sizes, axes = torch.linalg.svd(torch.linalg.qr(rows, mode="r").R)  # d x d, however many rows
    return sizes, axes.T


def _distances(rows: Tensor, known: Tensor, k: int) -> Tensor:
    """Return the distance (n,) of each of rows (n, d) to its k-th nearest of known (N, d)."""
    parts = []
    for some in rows.split(max(1, DISTANCES // len(known))):
        # A product of matrices would lose the digits of neighbours in a collapsed class.
        far = torch.cdist(some, known, compute_mode="donot_use_mm_for_euclid_dist")
        parts.append(far.kthvalue(k, 1).values)
    return torch.cat(parts)


def _over(values: Tensor, lengths: Tensor) -> Tensor:
    """Return values / lengths, 0 where a length is."""
    return torch.where(lengths > 0, values / lengths, 0.0)
