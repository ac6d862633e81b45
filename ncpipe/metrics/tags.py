"""Neural collapse where a sample may have several of the K classes, its tags [Li et al. 2024].

Samples of one tag collapse as those of classes do, and the mean of a set of tags is a multiple of the sum of
its tags' own means. What is here is of samples with two tags or more, and of the decisions on all samples.

N  samples    K  tags    d  feature width    A  sets of two tags or more
"""

import math

from ncpipe.metrics.collapse import nc1_trace_ratio
from ncpipe.metrics.entry import LAST, Metric, family, metric
from ncpipe.metrics.statistics import class_statistics
from ncpipe.system.lazy_torch import Tensor, torch

LLWQ24 = "LLWQ24"


@family(
    Metric(
        "tags_angle", "tag average", "0",
        "angle in degrees between a set's mean and the sum of its tags' means",
        "mean over sets of ∠(μ_S − mean, s_S − mean) in degrees, s_S = Σ_{k∈S} μ_k; the means are over the "
        "sets of as many tags", "[0, 180]", LLWQ24, order=1, rounding="features", label="tag angle",
        headline=True, where=LAST,
    ),
    Metric(
        "tags_angle_uncentred", "tag average", "0", "the same with means as they are",
        "mean over sets of ∠(μ_S, Σ_{k∈S} μ_k) in degrees, **not** centred", "[0, 180]", LLWQ24,
        order=1, rounding="features", where=LAST,
    ),
)  # fmt: skip
def tags_angles(features: Tensor, tags: Tensor) -> tuple[float, float]:
    """Return angles in degrees between a set's mean and the sum of its tags' own means, means over sets.

    features (N, d), tags (N, K) of 0 and 1. The first is of means less that of all sets of as many tags, on
    both sides: a part that all features of so many tags share changes no decision, and nothing here. NaN
    without a set of several tags, for the first without two of as many, where no sample has a tag alone, and
    where nothing is left to point anywhere.
    """
    rows = tags.bool()
    alone, several = rows.sum(1) == 1, rows.sum(1) > 1
    if not bool(rows[alone].any(0).all()) or not bool(several.any()):
        return math.nan, math.nan
    single = class_statistics(features[alone], rows[alone].long().argmax(1), rows.shape[1])
    sets, numbers = rows[several].unique(dim=0, return_inverse=True)
    of_sets = class_statistics(features[several], numbers, len(sets))
    unit = max(single.exponent, of_sets.exponent)
    single, of_sets = single.in_unit(unit), of_sets.in_unit(unit)
    means, least = of_sets.means, max(single.cutoff, of_sets.cutoff)
    sums = sets.to(means.dtype) @ single.means
    sizes = sets.sum(1)
    centred = [
        _angles(means[same] - means[same].mean(0), sums[same] - sums[same].mean(0), least)
        for size in sizes.unique()
        if (same := sizes == size).sum() > 1
    ]
    first = torch.cat(centred).nanmean().item() if centred else math.nan
    return first, _angles(means, sums, least).nanmean().item()


@metric(
    "count", "", "samples with one tag, of which NC1 to NC4 are",
    "samples with one tag, of which NC1 to NC4 and margins are", "0..N", scale="linear", where=LAST,
)  # fmt: skip
def one_tag_samples(tags: Tensor) -> float:
    """Return the number of samples with one tag, of tags (N, K)."""
    return float((tags.bool().sum(1) == 1).sum())


@metric(
    "tag average", "0", "NC1 of samples with several tags, each set of tags a class",
    "tr Σ_W / tr Σ_B, a class for each set of two tags or more", "[0, ∞]", LLWQ24, order=2,
    label="NC1 of tag sets", where=LAST,
)  # fmt: skip
def tags_nc1(features: Tensor, tags: Tensor) -> float:
    """Return NC1 of features (N, d) with tags (N, K) of 0 and 1; NaN with fewer than two such sets."""
    rows = tags.bool()
    several = rows.sum(1) > 1
    sets, numbers = rows[several].unique(dim=0, return_inverse=True)
    if len(sets) < 2:
        return math.nan
    return nc1_trace_ratio(class_statistics(features[several], numbers, len(sets)))


@metric(
    "error", "0", "share of samples whose m largest logits are not those of their m tags",
    "share with min_{k∈S} (Wh + b)_k ≤ max_{k∉S} (Wh + b)_k", "[0, 1]", scale="linear",
    label="error on tags", where=LAST,
)  # fmt: skip
def tags_error(missed: Tensor) -> float:
    """Return the share of samples whose m largest logits are not those of their m tags.

    missed (N,): which samples those are, by `ncpipe.datasets.targets.wrong_tags`.
    """
    return missed.double().mean().item()


def _angles(a: Tensor, b: Tensor, least: float) -> Tensor:
    """Return the angles (A,) in degrees between rows, exact near 0 too [Kahan 2006, sec. 12].

    NaN of a row whose length is at most `least`, which is rounding.
    """
    lengths = [rows.norm(dim=1, keepdim=True) for rows in (a, b)]
    a, b = (
        rows / of_rows.where(of_rows > least, math.nan) for rows, of_rows in zip((a, b), lengths, strict=True)
    )
    return torch.rad2deg(2 * torch.atan2((a - b).norm(dim=1), (a + b).norm(dim=1)))
