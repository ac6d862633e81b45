"""Compute numbers of the deep unconstrained features model, for claims [S24; docs/low_rank_runs.md]."""

import math
from typing import Annotated

import torch

from ncpipe import functional
from ncpipe.papers.s24 import dufm, dufm_relaxed
from ncpipe.papers.s24.dufm_numerical import descend, minimise
from ncpipe.papers.s24.dufm_shapes import largest_points
from ncpipe.papers.s24.dufm_solutions import dnc_solution, layers, objective, perturbed, srg_solution
from ncpipe.study import Bound, Count, Index, Positive

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


def best_minus(classes: Classes, depth: Depth, per_class: Count, decay: Positive) -> float:
    """Return the least loss of the graph's solutions with up to r/2 minus signs, over that with two."""
    model = dufm.equal_decays(classes, per_class, depth, decay)
    two, most = dufm.srg_loss(model), largest_points(classes) // 2
    return min(dufm.srg_loss(model, minus) for minus in range(2, most + 1)) / two


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


def within_class(
    classes: Classes,
    depth: Depth,
    per_class: Count,
    width: Count,
    decay: Positive,
    starts: Count,
    seed: Index,
) -> float:
    """Return tr Sigma_W/tr Sigma_B of H_L at the best of descents from random starts.

    The n columns of a class are free.
    """
    model = dufm.equal_decays(classes, per_class, depth, decay)
    best = minimise(model, width, starts=starts, seed=seed, collapsed=False).solutions[0]
    features = layers(best.features, best.weights)[-2].clamp(min=0)
    labels = torch.arange(classes).repeat_interleave(per_class)
    return functional.nc1_trace_ratio(features, labels)


def relaxed_over_bound(
    classes: Classes,
    depth: Depth,
    per_class: Count,
    width: Count,
    decay: Positive,
    epsilon: Positive,
    starts: Count,
    seed: Index,
) -> float:
    """Return the largest distance of two features of a class, in any layer, over Theorem 8's bound.

    At the best of descents from random starts of the model with the smoothed ReLU; n free columns a class.
    """
    model = dufm.equal_decays(classes, per_class, depth, decay)
    apart, _ = dufm_relaxed.apart_within_classes(model, width, epsilon, starts=starts, seed=seed)
    return apart / dufm_relaxed.within_class_bound(model, width, epsilon)


CALLS = {
    "dufm.srg_over_dnc": (srg_over_dnc,),
    "dufm.small_decay_ratio": (small_decay_ratio,),
    "dufm.ratio_slope": (ratio_slope,),
    "dufm.best_minus": (best_minus,),
    "dufm.built_over_closed": (built_over_closed,),
    "dufm.descended_over_srg": (descended_over_srg,),
    "dufm.within_class": (within_class,),
    "dufm.relaxed_over_bound": (relaxed_over_bound,),
}
