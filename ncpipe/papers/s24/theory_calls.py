"""Compute numbers of the deep unconstrained features model, for claims [S24; docs/low_rank_runs.md]."""

import math
from typing import Annotated

from ncpipe.config.bounds import Bound, Count, Index, Positive
from ncpipe.papers.s24.dufm_numerical import descend
from ncpipe.theory import dufm
from ncpipe.theory.dufm_shapes import largest_points
from ncpipe.theory.dufm_solutions import dnc_solution, objective, perturbed, srg_solution

Classes = Annotated[int, Bound(low=2)]
Depth = Annotated[int, Bound(low=2)]


def srg_over_dnc(
    classes: Classes, depth: Depth, per_class: Count, decay: Positive, minus: Index = 2
) -> float:
    """Return the loss of the strongly regular graph's solution over that of deep neural collapse."""
    return dufm.srg_over_dnc(dufm.equal_decays(classes, per_class, depth, decay), minus)


def small_decay_ratio(points: Classes, depth: Depth) -> float:
    """Return rho, the limit of L_SRG/L_DNC as decay goes to 0, for K = points (points - 1)/2."""
    return dufm.small_decay_ratio(points, depth)


def ratio_slope(points: Classes, depth: Depth) -> float:
    """Return the slope of log rho on log K from K = points (points - 1)/2 to twice as many points."""
    ratios = [dufm.small_decay_ratio(r, depth) for r in (points, 2 * points)]
    classes = [r * (r - 1) / 2 for r in (points, 2 * points)]
    return math.log(ratios[1] / ratios[0]) / math.log(classes[1] / classes[0])


def dnc_threshold(classes: Classes, depth: Depth) -> float:
    """Return Lambda from which on deep neural collapse costs no less than zero matrices."""
    return dufm.dnc_threshold(classes, depth)


def best_minus(classes: Classes, depth: Depth, per_class: Count, decay: Positive) -> float:
    """Return the least loss of the graph's solutions with up to r/2 minus signs, over that with two."""
    dufm.check_classes(classes)
    model = dufm.equal_decays(classes, per_class, depth, decay)
    most = largest_points(classes) // 2
    return min(dufm.srg_loss(model, minus) for minus in range(2, most + 1)) / dufm.srg_loss(model)


def built_over_closed(classes: Classes, depth: Depth, per_class: Count, decay: Positive) -> float:
    """Return the loss of the matrices of DNC or SRG over its closed form, whichever is farther from 1."""
    model = dufm.equal_decays(classes, per_class, depth, decay)
    ratios = []
    for solution, closed in (
        (dnc_solution(model), dufm.dnc_loss(model)),
        (srg_solution(model), dufm.srg_loss(model)),
    ):
        ratios.append(objective(model, solution.features, solution.weights) / closed)
    return max(ratios, key=lambda ratio: abs(ratio - 1))


def descended_over_srg(
    classes: Classes, depth: Depth, per_class: Count, decay: Positive, noise: Positive, seed: Index
) -> float:
    """Return the loss after descent from the perturbed SRG solution, over the SRG's: 1 at a local minimum."""
    model = dufm.equal_decays(classes, per_class, depth, decay)
    start = srg_solution(model, width=3 * classes)
    return descend(model, [perturbed(start, noise, seed)]).value / dufm.srg_loss(model)
