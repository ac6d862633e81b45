"""Tell samples of other data from test samples by what enters the last layer, in float64.

N  training samples    n  samples that are scored    K  classes    d  feature width
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ncpipe.metrics.catalogue import OUTLIER_SCORES
from ncpipe.metrics.checks import Array, as_tensor, check_finite
from ncpipe.metrics.losses import logits_of
from ncpipe.metrics.outlier_scores import SEPARATIONS, nc5_orthogonality
from ncpipe.metrics.statistics import class_statistics
from ncpipe.system.errors import InputError


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
        for separate, *_ in SEPARATIONS:
            yield f"{name}_{separate.__name__}", separate(inside, outside) if finite else math.nan
    yield "nc5_orthogonality", nc5_orthogonality(means, both[len(test) :]) if finite else math.nan


def outlier_scores(
    train: Tensor, labels: Tensor, means: Tensor, rows: Tensor, weight: Tensor | None, bias: Tensor | None
) -> dict[str, Tensor]:
    """Return the scores (n,) of rows (n, d) by name; all in float64 on one device.

    train (N, d) with labels (N,), and means (K, d) of its classes; weight and bias as above.
    """
    given: dict[str, Any] = {"train": train, "labels": labels, "means": means, "rows": rows}
    if weight is not None:
        given |= {
            "weight": weight,
            "bias": bias,
            "logits": logits_of(rows, weight, bias),
            "largest": logits_of(train, weight, bias).max(1).values.mean(),
        }
    return {
        each.function.__name__: each.result(given) for each in OUTLIER_SCORES if each.needs <= given.keys()
    }


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
