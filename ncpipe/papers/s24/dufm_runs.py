"""Compare trained deep features models with closed-form losses.

K  classes    n  samples of a class    d  width
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from ncpipe.papers.s24.dufm import LEAST_CLASSES, Dufm, dnc_loss, srg_loss
from ncpipe.papers.s24.dufm_solutions import dnc_solution, losses, srg_solution
from ncpipe.study import Run


@dataclass(frozen=True)
class Levels:
    """L_DNC and L_SRG of a run's problem.

    NaN for K < 6 (SRG), where a lambda is 0, and in layers of fewer than K units, which Theorem 5 leaves out.
    """

    dnc: float
    srg: float


def model_of(run: Run) -> Dufm:
    """Return the features model that a run of dufm trains; raise InputError where a lambda is 0."""
    data: Any = run.spec.data
    penalty = run.spec.penalty
    strength = penalty.feature_strength(run.depth)
    return Dufm(data.classes, data.per_class, strength, penalty.layer_strengths(run.depth))


def levels_of(run: Run) -> Levels:
    """Return L_DNC and L_SRG of a run."""
    if 0 in (run.spec.penalty.feature_strength(run.depth), *run.spec.penalty.layer_strengths(run.depth)):
        return Levels(math.nan, math.nan)
    return _levels(model_of(run), run.spec.model.feature_width)


def head_levels(run: Run, labels: Tensor) -> Levels:
    """Return the levels of the features model that a network with a head trains; labels (N,) of its samples.

    In that model the head's input features are free: a network that can produce any features has the same
    least loss, any other a higher one. NaN unless features and head alone are penalised (`scope: head`),
    each with some lambda, under the squared error, W_L is learned, and the classes are of one size.
    """
    penalty, head = run.spec.penalty, run.spec.model.head(run.depth)
    sizes = set(labels.bincount().tolist())
    fixed = run.spec.model.has_fixed_classifier
    if head is None or penalty.scope != "head" or run.spec.loss != "mse" or fixed or len(sizes) > 1:
        return Levels(math.nan, math.nan)
    inner, last = penalty.inner_strength(run.depth), penalty.last_strength(run.depth)
    features = penalty.feature_strength(run.depth)
    if 0 in (inner, last, features):
        return Levels(math.nan, math.nan)
    weights = (inner,) * (head.depth - 1) + (last,)
    return _levels(Dufm(int(labels.max()) + 1, sizes.pop(), features, weights), head.width)


def _levels(model: Dufm, width: int | None) -> Levels:
    if width is not None and width < model.classes:
        return Levels(math.nan, math.nan)
    return Levels(dnc_loss(model), srg_loss(model) if model.classes >= LEAST_CLASSES else math.nan)


def solution_split(run: Run, kind: Literal["dnc", "srg"]) -> tuple[float, float, float]:
    """Return error, W_L's penalty and all other penalties of the best DNC or SRG solution of a run."""
    model = model_of(run)
    best = dnc_solution(model) if kind == "dnc" else srg_solution(model)
    error, *rest = losses(model, best.features, best.weights)
    return error, rest[model.depth - 1], sum(rest) - rest[model.depth - 1]
