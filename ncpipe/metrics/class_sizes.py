"""Collapse, alignment and errors of frequent and rare classes apart [K23 sec. 3.1.6; Wang et al. 2026].

Under minority collapse the small classes' rows of weights point one way.

K  classes    M  large ones, the first    B  small ones, the others    d  feature width    N  samples
n_k  training samples of class k
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ncpipe.metrics.collapse import between_trace
from ncpipe.metrics.entry import LAST, Metric, metric
from ncpipe.metrics.geometry import scaled, unit_rows
from ncpipe.metrics.statistics import ClassStatistics
from ncpipe.metrics.uniformity import alignments
from ncpipe.system.lazy_torch import Tensor, torch

K23 = "K23 sec. 3.1.6"
# Groups of classes: large and small ones, or thirds of a long tail. The middle has what is left of K/3.
SIZES = {
    "majority": "large", "minority": "small",
    "head": "the most frequent", "middle": "the middle", "tail": "the rarest",
}  # fmt: skip


def _of_group(group: str, size: str) -> Iterator[Metric]:
    fields: dict[str, Any] = {"scale": "linear", "where": LAST}
    yield Metric(
        f"{group}_error", "minority", "-", f"the classifier's error on {size} classes",
        f"share of the samples of {size} classes with argmax(Wh + b) ≠ y", "[0, 1]", K23,
        **fields,
    )  # fmt: skip
    yield Metric(
        f"{group}_alignment", "minority", "1", f"alignment of W's rows and means of {size} classes",
        f"mean over {size} classes of cos(W_k, μ_k − μ_G)", "[−1, 1]", "WGX26", **fields,
    )  # fmt: skip
    yield Metric(
        f"{group}_nc1", "minority", "0", f"within-class over between-class variance of {size} classes",
        f"mean over {size} classes of Var_k / tr Σ_B", "[0, ∞]", "formula ours", order=2, rounding="features",
        where=LAST, label=f"{group} NC1",
    )  # fmt: skip


BY_SIZE = (
    *(entry for group, size in SIZES.items() for entry in _of_group(group, size)),
    Metric(
        "alignment_by_size", "minority", "0", "how much better frequent classes are aligned than rare ones",
        "slope of cos(W_k, μ_k − μ_G) on log₁₀ n_k", "ℝ", "formula ours", scale="linear", where=LAST,
    ),
)  # fmt: skip


@metric(
    "minority", "1", "cosine of the small classes' rows of weights",
    "mean over pairs of small classes of cos(W_k, W_j)", "[−1, 1]", K23, scale="linear",
    label="cosine of minority rows", where="last, weights; 1 is minority collapse, −1/(K−1) a simplex",
)  # fmt: skip
def minority_cosine(weight: Tensor, majority: int) -> float:
    """Return the mean over rows M, ..., K - 1 of W; NaN for fewer than two of them and for rows of 0."""
    rows = unit_rows(weight[majority:].double())
    pairs = torch.triu_indices(len(rows), len(rows), offset=1, device=weight.device)
    cosines = (rows @ rows.T)[pairs[0], pairs[1]]
    return cosines.mean().item() if len(cosines) else math.nan


@metric(
    "minority", "0", "what tells the small classes' rows of weights apart",
    "‖W_B − its mean row‖/‖W‖, W_B the rows of small classes", "[0, 1]", "formula ours", scale="linear",
    label="spread of minority rows", where="last, weights, of two small classes on; 0 is minority collapse",
)  # fmt: skip
def minority_spread(weight: Tensor, majority: int) -> float:
    """Return the spread: sqrt((B - 1)/(K - 1)) for a simplex, 0 also where W_B goes to 0.

    NaN for W = 0, and for fewer than two small classes.
    """
    rows = scaled(weight)
    small = rows[majority:]
    if len(small) < 2:
        return math.nan
    return ((small - small.mean(0)).norm() / rows.norm()).item()


def size_groups(classes: int, majority: int | None) -> dict[str, slice]:
    """Return the classes of each group, where sizes fall from class to class."""
    if majority is not None:
        return {"majority": slice(majority), "minority": slice(majority, classes)}
    third = round(classes / 3)
    ends = {"head": (0, third), "middle": (third, classes - third), "tail": (classes - third, classes)}
    return {group: slice(*end) for group, end in ends.items() if end[0] < end[1]}


def metrics_by_size(
    groups: Mapping[str, slice],
    counts: Tensor,
    statistics: ClassStatistics,
    weight: Tensor,
    wrong: Tensor,
    labels: Tensor,
) -> Iterator[tuple[str, float]]:
    """Yield the metrics of groups of classes, as (metric, value).

    counts (K,): training samples. wrong (N,): the decisions on samples of `statistics` and labels (N,).
    """
    cosines = alignments(statistics, weight)
    between = between_trace(statistics)
    spread = statistics.squares / statistics.counts
    ratios = torch.full_like(spread, math.inf) if between == 0 else spread / between
    errors = torch.zeros(len(counts), dtype=torch.float64, device=wrong.device)
    errors.index_add_(0, labels, wrong.double())
    for group, members in groups.items():
        yield f"{group}_error", (errors[members].sum() / statistics.counts[members].sum()).item()
        yield f"{group}_alignment", cosines[members].mean().item()
        yield f"{group}_nc1", ratios[members].mean().item()
    sizes = counts.double().log10()
    centred = sizes - sizes.mean()
    if bool((counts != counts[0]).any()):
        yield "alignment_by_size", ((centred * cosines).sum() / centred.square().sum()).item()
