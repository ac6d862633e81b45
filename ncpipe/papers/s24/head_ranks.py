"""Compare a trained head with DNC and SRG: losses over their levels, ranks, names of structures.

K  classes    d  width    L  depth
"""

import math
from typing import Any

from torch import Tensor

from ncpipe.papers.s24.dufm_runs import head_levels, levels_of
from ncpipe.papers.s24.structure import (
    RANK_TOLERANCE,
    classes_given_up,
    dnc_found,
    rank_gap,
    ranks,
    structure,
)
from ncpipe.study import Run, TrainedRun

MARK = "-"  # between the ranks of layers
DATA_CUT = 0.05  # of s_1: class means on data carry noise that free features do not


LEVELS = ("loss_dnc", "loss_srg", "loss_over_dnc", "loss_over_srg")
FREE = (*LEVELS, "ranks", "ranks_before", "dnc_found", "structure", "structure_last", "classes_given_up")
HEAD = (*FREE, "rank_features", "rank_gap", "mean_rank", "low_rank_over_dnc")


def rank_columns(trained: TrainedRun) -> dict[str, Any]:
    """Return the columns FREE of a run of dufm, or HEAD of a network with a head on data [S24 sec. 6].

    Empty ones where the loss is not finite, is not the squared error of classes, or the network has no head.
    Of data the levels are those of `head_levels`.

    loss_dnc, loss_srg: the levels; loss_over_dnc, loss_over_srg: the loss over each. ranks, ranks_before: of
    the class means M_2, ..., M_L behind the ReLU and before it, as 5-5-10. dnc_found: full rank in all of
    M_2..M_L and a loss within .1 % of L_DNC. structure: the name; structure_last: that of layer L alone,
    before its ReLU. classes_given_up: outputs that are 0 for every class. Of data also rank_features, that of
    M_1, and rank_gap, how clear the ranks of M_2, ..., M_{L-1} and M~_L are (`structure.rank_gap`); of runs
    that keep their classes mean_rank, over M_2, ..., M_{L-1} (M_2 for L = 2), and where that is below K
    low_rank_over_dnc, the loss over L_DNC.
    """
    run, features = trained.run, trained.features
    free, head = run.spec.model.has_free_features, run.spec.model.head(run.depth)
    row: dict[str, Any] = dict.fromkeys(FREE if free else HEAD)
    if head is None or run.spec.data.targets == "vectors" or run.spec.loss != "mse":
        return row
    levels = levels_of(run) if free else head_levels(run, features.train.labels)
    cut, loss = RANK_TOLERANCE if free else DATA_CUT, trained.row["loss"]
    ratios = loss / levels.dnc, loss / levels.srg
    row |= dict(zip(LEVELS, (levels.dnc, levels.srg, *ratios), strict=True))
    if not math.isfinite(loss):
        return row
    after = [class_means(trained, layer) for layer in head.after]
    before = [class_means(trained, layer) for layer in head.before]
    means_structure = structure(after[max(head.depth - 3, 0)], after[0] if head.depth == 2 else before[-1])
    given_up = classes_given_up(after[-1] @ features.weight.T)
    row |= {
        "ranks": _joined(after, cut),
        "ranks_before": _joined(before, cut),
        "dnc_found": dnc_found(after, loss, levels.dnc, cut),
        "structure": means_structure.name,
        "structure_last": means_structure.last,
        "classes_given_up": given_up,
    }
    if not free:
        rank, ratio = _rank_and_ratio(trained, after, cut, given_up, ratios[0])
        row |= {
            "rank_features": _joined([class_means(trained, head.input_layer)], cut),
            "rank_gap": rank_gap([*after[:-1], before[-1]], cut),
            "mean_rank": rank,
            "low_rank_over_dnc": ratio,
        }
    return row


def _rank_and_ratio(
    trained: TrainedRun, after: list[Tensor], cut: float, given_up: int, ratio: float
) -> tuple[float, float]:
    """Return mean_rank and, if it is below K, the loss over L_DNC of a run that keeps its classes; else NaN.

    It gives none up and errs on no training sample: two classes with the same features cost as much as one
    that is given up, and have no output 0.
    """
    if given_up or trained.row["train_error"] > 0:
        return math.nan, math.nan
    layer_ranks = ranks(after[:-1] or after, cut)
    rank = sum(layer_ranks) / len(layer_ranks)
    return rank, ratio if rank < len(trained.features.weight) else math.nan


def head_of(run: Run) -> Any:
    """Return the head of a run that has one."""
    head = run.spec.model.head(run.depth)
    assert head is not None
    return head


def class_means(trained: TrainedRun, layer: str) -> Tensor:
    """Return class means (K, d) on the training samples, about 0."""
    statistics = trained.features.layers[layer]["train"].statistics
    means: Tensor = statistics.uncentred_means() * 2.0**statistics.exponent
    return means


def _joined(means: list[Tensor], cut: float) -> str:
    return MARK.join(f"{rank:.0f}" for rank in ranks(means, cut))


FREE_COLUMNS = {FREE: rank_columns}
HEAD_COLUMNS = {HEAD: rank_columns}
