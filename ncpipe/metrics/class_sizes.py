"""Collapse, alignment and errors of frequent and rare classes apart [K23 sec. 3.1.6; Wang et al. 2026].

K  classes    d  feature width    N  samples    n_k  training samples of class k
"""

from collections.abc import Iterator, Mapping
from typing import Any

from ncpipe.metrics.collapse import between_trace
from ncpipe.metrics.entry import LAST, Metric
from ncpipe.metrics.statistics import ClassStatistics
from ncpipe.metrics.uniformity import alignments
from ncpipe.system.lazy_torch import Tensor, torch

# Groups of classes: large and small ones, or thirds of a long tail. The middle has what is left of K/3.
SIZES = {
    "majority": "large", "minority": "small",
    "head": "the most frequent", "middle": "the middle", "tail": "the rarest",
}  # fmt: skip


def _of_group(group: str, size: str) -> Iterator[Metric]:
    shown: dict[str, Any] = {"scale": "linear", "where": LAST}
    yield Metric(
        f"{group}_error", "minority", "-", f"the classifier's error on {size} classes",
        f"share of the samples of {size} classes with argmax(Wh + b) ≠ y", "[0, 1]", "K23 sec. 3.1.6",
        **shown,
    )  # fmt: skip
    yield Metric(
        f"{group}_alignment", "minority", "1", f"alignment of W's rows and means of {size} classes",
        f"mean over {size} classes of cos(W_k, μ_k − μ_G)", "[−1, 1]", "WGX26", **shown,
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
    ratios = statistics.squares / statistics.counts / between_trace(statistics)
    errors = torch.zeros(len(counts), dtype=torch.float64, device=wrong.device)
    errors.index_add_(0, labels, wrong.double())
    for group, members in groups.items():
        yield f"{group}_error", (errors[members].sum() / statistics.counts[members].sum()).item()
        yield f"{group}_alignment", cosines[members].mean().item()
        yield f"{group}_nc1", ratios[members].mean().item()
    sizes = counts.double().log10()
    away = sizes - sizes.mean()
    if bool((counts != counts[0]).any()):
        yield "alignment_by_size", ((away * cosines).sum() / away.square().sum()).item()
