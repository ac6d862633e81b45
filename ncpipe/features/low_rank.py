"""A trained deep features model beside DNC and SRG: losses over their levels, ranks, names.

K  classes    d  width    L  depth
"""

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ncpipe.features.passes import Features
from ncpipe.metrics.scales import times_two_to
from ncpipe.metrics.spectrum import singular_values
from ncpipe.metrics.structure import classes_given_up, dnc_found, ranks, structure
from ncpipe.metrics.table import LAST_LAYER, TRAIN
from ncpipe.optima.dufm_runs import levels_of
from ncpipe.specs import Run

MARK = "-"  # between the ranks of layers


def low_rank_columns(run: Run, features: Features, loss: float) -> dict[str, Any]:
    """Columns of a run's row, by `metrics.structure` [S24 sec. 6]; empty ones where the loss is not finite.

    loss_dnc, loss_srg: the levels; loss_over_dnc, loss_over_srg: the loss over each. ranks, ranks_before: of
    the class means M_2, ..., M_L behind the ReLU and before it, as 5-5-10. dnc_found: full rank in all of
    M_2..M_L and a loss within .1 % of L_DNC. structure: the name; structure_last: that of layer L alone,
    before its ReLU. classes_given_up: outputs that are 0 for every class.
    """
    levels = levels_of(run)
    row: dict[str, Any] = {
        "loss_dnc": levels.dnc,
        "loss_srg": levels.srg,
        "loss_over_dnc": loss / levels.dnc,
        "loss_over_srg": loss / levels.srg,
    }
    names = ("ranks", "ranks_before", "dnc_found", "structure", "structure_last", "classes_given_up")
    if not math.isfinite(loss):
        return row | dict.fromkeys(names)
    depth = run.depth
    after = [_means(features, LAST_LAYER if at == depth else f"H{at}") for at in range(2, depth + 1)]
    before = [_means(features, f"Z{at}") for at in range(2, depth + 1)]
    found = structure(after[max(depth - 3, 0)], after[0] if depth == 2 else before[-1])
    values = (
        _joined(after),
        _joined(before),
        dnc_found(after, loss, levels.dnc),
        found.name,
        found.last,
        classes_given_up(after[-1] @ features.weight.T),
    )
    return row | dict(zip(names, values, strict=True))


def _means(features: Features, layer: str) -> Tensor:
    """Class means (K, d) on the training samples, about 0."""
    statistics = features.layers[layer][TRAIN].statistics
    return times_two_to(statistics.uncentred_means(), statistics.exponent)


def _joined(means: list[Tensor]) -> str:
    return MARK.join(f"{rank:.0f}" for rank in ranks(means))


def singular_rows(run: Run, features: Features) -> Iterator[dict[str, Any]]:
    """Singular values of M~_2, ..., M~_L and M_L: layer (`~M2`, ..., `M4`), place from 1, value."""
    layers = {f"~M{at}": f"Z{at}" for at in range(2, run.depth + 1)} | {f"M{run.depth}": LAST_LAYER}
    for name, layer in layers.items():
        for place, value in enumerate(singular_values(_means(features, layer)).tolist(), 1):
            yield {"layer": name, "place": place, "value": value}


def gram_rows(run: Run, features: Features) -> Iterator[dict[str, Any]]:
    """Gram matrices over their mean diagonal, of M_{L-1}, M~_L and M_L: layer, row, column, value."""
    depth = run.depth
    layers = {f"M{depth - 1}": f"H{depth - 1}", f"~M{depth}": f"Z{depth}", f"M{depth}": LAST_LAYER}
    for name, layer in layers.items():
        means = _means(features, layer)
        gram = means @ means.T
        for row, line in enumerate((gram / gram.diagonal().mean()).tolist()):
            for column, value in enumerate(line):
                yield {"layer": name, "row": row, "column": column, "value": value}
