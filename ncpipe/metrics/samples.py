"""Metrics of single samples: alignment with the classifier, margins, decisions, held-out distances.

What each takes is accumulated by `ncpipe.metrics.sample_statistics`, in a second pass.

N  samples
"""

import math

from ncpipe.metrics.collapse import between_trace, ratio
from ncpipe.metrics.entry import Metric, family, metric
from ncpipe.metrics.powers_of_two import size_exponent, value_times_two_to
from ncpipe.metrics.sample_statistics import SampleStatistics, common_exponent
from ncpipe.metrics.statistics import ClassStatistics
from ncpipe.system.lazy_torch import Tensor

OBSERVED = " (an observed value, no interpolation)"
IN_WORDS = "K23 sec. 4.1 in words, formula ours"
SHARES = (0.05, 0.5, 0.95)  # of the margins' quantiles


@metric(
    "NC3", "0", "1 - mean cosine of a feature and its row of weights", "1 − mean cos(h, W_y)", "[0, 2]",
    "S25 Def. 3.4", order=2, label="NC3", headline=True,
)  # fmt: skip
def nc3_cosine(samples: SampleStatistics, misalignment: Tensor) -> float:
    return misalignment.item() / samples.samples.item()


@metric(
    "NC4", "0", "share where classifier and nearest class mean disagree",
    "share with argmax(Wh + b) ≠ nearest **train** mean", "[0, 1]", "K23 eq. 9", scale="linear",
    label="NC4 mismatch",
)  # fmt: skip
def nc4_mismatch(samples: SampleStatistics, mismatched: Tensor) -> float:
    return _share(samples, mismatched)


@metric(
    "NC4", "0", "error of the nearest class mean", "share whose nearest **train** mean is not their class's",
    "[0, 1]", "K23 sec. 4.2", scale="linear", label="nearest-class-mean error",
)  # fmt: skip
def ncc_error(samples: SampleStatistics, wrong: Tensor) -> float:
    return _share(samples, wrong)


@metric(
    "test", "0", "squared distance to the nearest train mean",
    "mean squared distance to the nearest train mean / tr Σ_B of train", "[0, ∞]", IN_WORDS, order=2,
)  # fmt: skip
def weak_test_collapse(statistics: ClassStatistics, nearest: Tensor, train: ClassStatistics) -> float:
    return _over_between(statistics, nearest, train)


@metric(
    "test", "0", "squared distance to the own class's train mean",
    "mean squared distance to the own class's train mean / tr Σ_B of train", "[0, ∞]", IN_WORDS,
    order=2, headline=True,
)  # fmt: skip
def strong_test_collapse(statistics: ClassStatistics, train: ClassStatistics) -> float:
    exponent = common_exponent(statistics, train)
    test, about = statistics.in_unit(exponent), train.in_unit(exponent)
    # sum |h - mu|^2 about another mean than the class's own: every term is positive, so no digit is lost.
    total = (test.squares + test.counts * (test.means - about.means).square().sum(1)).sum()
    return _over_between(statistics, total, train)


@family(
    *(
        Metric(
            f"margin_{name}", "margin", "> 0", f"right logit less the largest other, {meaning}",
            f"{formula} f_y − max_{{k≠y}} f_k{ending}", "ℝ", scale="linear",
        )
        for name, meaning, formula, ending in (
            ("min", "smallest", "smallest", ""),
            ("mean", "mean", "mean of", ""),
            ("p05", "5 % quantile", "5 % quantile of", OBSERVED),
            ("p50", "median", "median of", OBSERVED),
            ("p95", "95 % quantile", "95 % quantile of", OBSERVED),
        )
    ),
    note="; higher is clearer",
)  # fmt: skip
def margin_summaries(margins: Tensor) -> tuple[float, ...]:
    """Return the smallest, the mean and quantiles of margins (N,)."""
    import numpy as np  # only now: those who read the entries need none of it

    values = margins.cpu().numpy()
    exponent = size_exponent(np.abs(values).max())  # their sum may leave float64's range
    with np.errstate(over="ignore", invalid="ignore"):  # where the margins themselves left it
        mean = float(np.ldexp(np.ldexp(values, -exponent).mean(), exponent))
    ranks = [math.ceil(share * len(values)) - 1 for share in SHARES]
    partition = np.partition(values, ranks)  # sorting them all takes several times as long
    return float(values.min()), mean, *(float(partition[rank]) for rank in ranks)


def _share(samples: SampleStatistics, count: Tensor) -> float:
    if not bool(samples.within.isfinite()):
        return math.nan
    return count.item() / samples.samples.item()  # integer tensors would be divided in float32


def _over_between(statistics: ClassStatistics, total: Tensor, train: ClassStatistics) -> float:
    """Return total/N/tr(Sigma_B) of a total in the unit of `common_exponent`."""
    share = ratio(total / statistics.samples, between_trace(train))
    return value_times_two_to(share, 2 * (common_exponent(statistics, train) - train.exponent))
