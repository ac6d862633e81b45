"""A trained deep features model beside DNC and SRG: losses over their levels, ranks, names.

K  classes    d  width    L  depth
"""

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ncpipe.features.passes import Features
from ncpipe.metrics.scales import times_two_to
from ncpipe.metrics.spectrum import RANK_TOLERANCE, singular_values
from ncpipe.metrics.structure import classes_given_up, dnc_found, rank_gap, ranks, structure
from ncpipe.metrics.table import TRAIN
from ncpipe.optima.dufm_runs import head_levels, levels_of
from ncpipe.specs import Run

MARK = "-"  # between the ranks of layers
DATA_CUT = 0.05  # of s_1: class means on data carry noise that free features do not


def low_rank_columns(run: Run, features: Features, loss: float) -> dict[str, Any]:
    """Columns of a run's row, of dufm or of a head of a network on data, by `metrics.structure` [S24 sec. 6].

    Empty ones where the loss is not finite. Of data the levels are those of `optima.dufm_runs.head_levels`.

    loss_dnc, loss_srg: the levels; loss_over_dnc, loss_over_srg: the loss over each. ranks, ranks_before: of
    the class means M_2, ..., M_L behind the ReLU and before it, as 5-5-10. dnc_found: full rank in all of
    M_2..M_L and a loss within .1 % of L_DNC. structure: the name; structure_last: that of layer L alone,
    before its ReLU. classes_given_up: outputs that are 0 for every class. Of data also rank_features, that of
    M_1, and rank_gap, how clear the ranks of M_2, ..., M_{L-1} and M~_L are (`metrics.structure.rank_gap`).
    """
    free, head = run.spec.model.has_free_features, run.spec.model.head(run.depth)
    assert head is not None
    levels = levels_of(run) if free else head_levels(run, features.train.labels)
    cut = RANK_TOLERANCE if free else DATA_CUT
    row: dict[str, Any] = {
        "loss_dnc": levels.dnc,
        "loss_srg": levels.srg,
        "loss_over_dnc": loss / levels.dnc,
        "loss_over_srg": loss / levels.srg,
    }
    names = ["ranks", "ranks_before", "dnc_found", "structure", "structure_last", "classes_given_up"]
    names += [] if free else ["rank_features", "rank_gap"]
    if not math.isfinite(loss):
        return row | dict.fromkeys(names)
    after = [_means(features, layer) for layer in head.after]
    before = [_means(features, layer) for layer in head.before]
    found = structure(after[max(head.depth - 3, 0)], after[0] if head.depth == 2 else before[-1])
    values: list[Any] = [
        _joined(after, cut),
        _joined(before, cut),
        dnc_found(after, loss, levels.dnc, cut),
        found.name,
        found.last,
        classes_given_up(after[-1] @ features.weight.T),
    ]
    if not free:
        entering = [_means(features, head.entry)]
        values += [_joined(entering, cut), rank_gap([*after[:-1], before[-1]], cut)]
    return row | dict(zip(names, values, strict=True))


def _means(features: Features, layer: str) -> Tensor:
    """Class means (K, d) on the training samples, about 0."""
    statistics = features.layers[layer][TRAIN].statistics
    return times_two_to(statistics.uncentred_means(), statistics.exponent)


def _joined(means: list[Tensor], cut: float) -> str:
    return MARK.join(f"{rank:.0f}" for rank in ranks(means, cut))


def singular_rows(run: Run, features: Features) -> Iterator[dict[str, Any]]:
    """Singular values of M~_2, ..., M~_L and M_L: layer (`~M2`, ..., `M4`), place from 1, value."""
    head = run.spec.model.head(run.depth)
    assert head is not None
    layers = {f"~M{at}": name for at, name in enumerate(head.before, start=2)}
    layers |= {f"M{head.depth}": head.after[-1]}
    for name, layer in layers.items():
        for place, value in enumerate(singular_values(_means(features, layer)).tolist(), 1):
            yield {"layer": name, "place": place, "value": value}


def gram_rows(run: Run, features: Features) -> Iterator[dict[str, Any]]:
    """Gram matrices over their mean diagonal, of M_{L-1}, M~_L and M_L: layer, row, column, value."""
    head = run.spec.model.head(run.depth)
    assert head is not None
    depth, inner = head.depth, (head.entry, *head.after)[-2]
    layers = {f"M{depth - 1}": inner, f"~M{depth}": head.before[-1], f"M{depth}": head.after[-1]}
    for name, layer in layers.items():
        means = _means(features, layer)
        gram = means @ means.T
        for row, line in enumerate((gram / gram.diagonal().mean()).tolist()):
            for column, value in enumerate(line):
                yield {"layer": name, "row": row, "column": column, "value": value}
