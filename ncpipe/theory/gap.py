"""Compute the gap of a network's regularised loss to the optimum of the GUFM, term by term.

N  samples    K  classes    d  feature width
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ncpipe.system.errors import InputError
from ncpipe.theory.gufm import Loss, check_range, optimum, smoothed_terms

HOLDS = "holds"
UNBOUNDED = "features not bounded"
NOT_FINITE = "loss not finite"
UNBALANCED = "classes not balanced"
TOO_LONG = "features too long"
NO_OPTIMUM = "no closed-form optimum"
ROUNDING = 1e-12  # relative, of lengths, losses and their differences in float64


@dataclass(frozen=True)
class Objective:
    """A network's regularised loss on its whole training set, by its terms, in float64.

    fit: the mean loss. last_penalty: lambda_L/2 |W_L|^2. inner_penalty: that of all other penalised matrices
    and, under `penalty.biases`, of the inner layers' biases.
    """

    fit: float
    last_penalty: float
    inner_penalty: float

    @property
    def loss(self) -> float:
        return self.fit + self.last_penalty + self.inner_penalty


@dataclass(frozen=True)
class Gap:
    """loss_gap = gap_gufm + inner_penalty and gap_gufm = gap_fit + gap_last_penalty; loss_optimum is L*_GUFM.

    gap_gufm: the GUFM's own loss of (W_L, h), which is feasible there, less its optimum. gap_fit,
    gap_last_penalty: its two terms, each less its value at the optimum; one of them may be negative. bound:
    HOLDS, or why this run has no L*_GUFM (UNBOUNDED to NO_OPTIMUM); the numbers are then NaN. bound_detail:
    more about the reason, for people.
    """

    bound: str
    bound_detail: str
    loss_optimum: float
    loss_gap: float
    gap_gufm: float
    gap_fit: float
    gap_last_penalty: float


@dataclass(frozen=True)
class TrainedState:
    """State of a trained network: its objective, and the input and weights of its last layer, float64.

    features (N, d), labels (N,), weight (K, d). bias: whether the last layer has one. strength: the run's
    lambda_L. bounded: whether |h| <= sqrt(d) whatever the weights. beyond: a setting that no GUFM has, or
    ''. smoothing: delta of the labels, for cross-entropy only.
    """

    loss: Loss
    objective: Objective
    features: Tensor
    labels: Tensor
    weight: Tensor
    bias: bool
    strength: float
    bounded: bool
    beyond: str = ""
    smoothing: float = 0.0


def gap_to_optimum(name: str, state: TrainedState) -> Gap:
    """Return the gap of a network; name: of its run, for errors.

    Conditions, all checked: finite numbers, balanced classes, the closed form's range (`gufm.check_range`)
    and |h| <= sqrt(d), which holds whatever the weights where the network is `bounded`, as by LN; its eps
    only shortens features, and the bound holds for shorter ones too. Raises InputError that names the run if
    gap_gufm is negative beyond rounding, which no network can reach.
    """
    if reason := _why_unbounded(state):
        return Gap(*reason, *[math.nan] * 5)
    classes, width = state.weight.shape
    objective = state.objective
    if state.smoothing:
        best_fit, best_penalty = smoothed_terms(classes, width, state.strength, state.smoothing)
    else:
        best = optimum(state.loss, classes, width, state.strength, state.bias)
        best_fit, best_penalty = best.fit, best.penalty
    least = best_fit + best_penalty
    gap_fit, gap_last = objective.fit - best_fit, objective.last_penalty - best_penalty
    gap_gufm = gap_fit + gap_last
    if gap_gufm < -ROUNDING * max(1.0, objective.loss):
        value = objective.fit + objective.last_penalty
        raise InputError(
            f"{name}: fit and last layer's penalty are {value:.12g}, {-gap_gufm:.3g} below the least that "
            f"is possible, {least:.12g}; an error in theory or code, or features of another network"
        )
    return Gap(HOLDS, "", least, gap_gufm + objective.inner_penalty, gap_gufm, gap_fit, gap_last)


def _why_unbounded(state: TrainedState) -> tuple[str, str] | None:
    """Return the first condition that fails and by how much; None if all hold."""
    if state.beyond:
        return NO_OPTIMUM, state.beyond
    if not state.bounded:
        return UNBOUNDED, "nothing limits the norm of this architecture's features"
    if not math.isfinite(state.objective.loss):
        return NOT_FINITE, ""
    classes, width = state.weight.shape
    counts = torch.bincount(state.labels, minlength=classes)
    if counts.min() != counts.max():
        return UNBALANCED, f"{int(counts.min())} to {int(counts.max())} samples"
    longest = state.features.norm(dim=1).max().item()
    if longest > width**0.5 * (1 + ROUNDING):
        return TOO_LONG, f"a feature has norm {longest:.9g}, above the sqrt(d) = {width**0.5:.9g} of LN"
    try:
        check_range(state.loss, classes, width, state.strength, state.bias)
    except InputError as error:
        return NO_OPTIMUM, str(error)
    return None
