"""Compute numbers of gradient flows and stochastic models, for claims [K23 sec. 3.1, 3.2].

Each function takes plain numbers and returns one. The function with `_numerical` behind its name computes the
same number by integration or from matrices.
"""

import math
from itertools import combinations, pairwise
from typing import Annotated, Literal, get_args

import numpy as np

from ncpipe.papers.k23.flows import central_path, features_model, locally_elastic
from ncpipe.papers.k23.flows.features_model import Flow, aligned_start, integrate, random_start
from ncpipe.study import Bound, Count, Index, InputError, NonNegative, Positive

Classes = Annotated[int, Bound(low=2)]
Part = Literal["weight", "features", "bias"]
Plain = Literal["se", "mse"]  # losses whose flow needs no decay
MOVES = 2000  # steps of a simulation
RESTED = 2000.0  # times 1/sqrt(n): the squared error's flow has come to rest


def scale(loss: Plain, classes: Classes, per_class: Count, start: Positive, time: Positive) -> float:
    """Return s(t) of A A^T = s E_K on S by its closed form."""
    return features_model.squared_error_scale(_plain(loss, classes, per_class), start, time)


def scale_numerical(
    loss: Plain, classes: Classes, per_class: Count, start: Positive, time: Positive
) -> float:
    """Return it from the integrated flow of all matrices."""
    flow = _plain(loss, classes, per_class)
    (end,) = integrate(flow, aligned_start(flow, classes + 2, start), [time])
    return float(np.trace(end.weight @ end.weight.T) / (classes - 1))


def error_slope(part: Part, classes: Classes, per_class: Count, width: Count, seed: Index) -> float:
    """Return the slope on log size of the log distance from strong collapse, for the squared error at rest.

    Starts of sizes 0.1 and 0.01; the parts are those of eq. 17.
    """
    flow = _plain("se", classes, per_class)
    place = ("weight", "features", "bias").index(part)
    errors = [
        features_model.snc_errors(flow, rest_point(flow, width, size, seed))[place] for size in (0.1, 0.01)
    ]
    return math.log10(errors[0] / errors[1])


def loss_at_rest(classes: Classes, per_class: Count, width: Count, size: Positive, seed: Index) -> float:
    """Return the squared error's loss at rest, from a start of this size: 0 is a global minimum."""
    flow = _plain("se", classes, per_class)
    return features_model.risk(flow, rest_point(flow, width, size, seed))


def mse_over_se(classes: Classes, per_class: Count, width: Count, time: Positive, seed: Index) -> float:
    """Return the distance of MSE's flow at N t from the squared error's at t, over the latter's length."""
    ends = []
    for loss in get_args(Plain):
        flow = _plain(loss, classes, per_class)
        duration = time * (flow.samples if loss == "mse" else 1)
        (end,) = integrate(flow, random_start(flow, width, 1.0, seed), [duration])
        ends.append(np.concatenate([end.weight.ravel(), end.features.ravel(), end.bias]))
    return float(np.linalg.norm(ends[1] - ends[0]) / np.linalg.norm(ends[0]))


def margin_share(classes: Classes, per_class: Count, width: Count, time: Positive, seed: Index) -> float:
    """Return the least margin over its bound under cross-entropy's flow without decay [below eq. 15]."""
    flow = Flow("ce", classes, per_class, 0.0, 0.0, bias=False)
    (end,) = integrate(flow, random_start(flow, width, 1.0, seed), [time])
    return features_model.margin_share(flow, end)


def margin_rate(classes: Classes, per_class: Count, time: Positive) -> float:
    """Return risk * t * gap over its limit (K-1) sqrt(n)/2, on S."""
    flow = Flow("ce", classes, per_class, 0.0, 0.0, bias=False)
    gap = float(features_model.cross_entropy_gap(flow, 0.1, [time])[-1])
    risk = math.log1p((classes - 1) * math.exp(-gap))
    return risk * time * gap * 2 / ((classes - 1) * math.sqrt(per_class))


def within_left(classes: Classes, per_class: Count, width: Count, time: Positive, seed: Index) -> float:
    """Return tr Sigma_W at t over that at sqrt(t), under cross-entropy's flow without decay."""
    flow = Flow("ce", classes, per_class, 0.0, 0.0, bias=False)
    ends = integrate(flow, random_start(flow, width, 1.0, seed), [math.sqrt(time), time])
    first, last = (features_model.traces(flow, end)[0] for end in ends)
    return last / first


def balance_left(
    loss: Literal["mse", "ce"],
    decay: NonNegative,
    classes: Classes,
    per_class: Count,
    width: Count,
    time: Positive,
) -> float:
    """Return |A^T A - F F^T| at time t over its start: exp(-2 lambda t)."""
    return math.exp(-2 * decay * time)


def balance_left_numerical(
    loss: Literal["mse", "ce"],
    decay: NonNegative,
    classes: Classes,
    per_class: Count,
    width: Count,
    time: Positive,
) -> float:
    """Return it from the integrated flow; InputError for a width of 1, where the start is balanced."""
    if width < 2:
        raise InputError(f"width: {width}; both starts are of one length, so 1 has no difference to follow")
    flow = Flow(loss, classes, per_class, decay, decay, bias=False)
    start = random_start(flow, width, 1.0, 0)
    (end,) = integrate(flow, start, [time])
    return features_model.imbalance(end) / features_model.imbalance(start)


def central_path_rate(kind: central_path.Kind, classes: Classes, per_class: Count, time: Positive) -> float:
    """Return the slope of log10 NC1 = -2 log10 omega on log10 t over the decade before t, from omega = 1."""
    late = [
        central_path.signal_at(1.0, moment, classes, per_class, kind) ** -2 for moment in (time / 10, time)
    ]
    return math.log10(late[1] / late[0])


def central_path_spread(kind: central_path.Kind, classes: Classes, per_class: Count, time: Positive) -> float:
    """Return largest over smallest singular value at time t, relative to the start, where it is 2."""
    ends = [central_path.signal_at(omega, time, classes, per_class, kind) for omega in (1.0, 2.0)]
    return ends[1] / ends[0] / 2


def etf_rate(classes: Classes, own: float, other: float) -> float:
    """Return the slope in t of log NC2 of locally elastic class means, beta/(K-1) for large alpha.

    See `locally_elastic.etf_slope`.
    """
    return locally_elastic.etf_slope(classes, own, other)


def etf_rate_numerical(classes: Classes, own: float, other: float) -> float:
    """Return the slope between t = 80 and 120, by the matrix exponential from a random start."""
    early, late = (etf_error(classes, own, other, time) for time in (80.0, 120.0))
    return math.log(late / early) / 40


def etf_error(classes: Classes, own: float, other: float, time: Positive) -> float:
    """Return NC2 of locally elastic class means at a time, from a random start."""
    matrix = locally_elastic.drift(classes, own, other)
    start = np.random.default_rng(0).normal(size=(classes, classes))
    return locally_elastic.etf_error(locally_elastic.means_at(start, matrix, time))


def separation(classes: Classes, strength: Positive, power: Positive, time: Positive) -> float:
    """Return the growth of log(|f_i - f_j|/sqrt(t)) from sqrt(t) to t, impact strength/t^power."""
    late = [
        locally_elastic.log_separation(classes, strength, power, moment) for moment in (math.sqrt(time), time)
    ]
    return late[1] - late[0]


def separable_pairs(
    classes: Classes, strength: Positive, power: Positive, time: Positive, per_class: Count, seed: Index
) -> float:
    """Return the share of class pairs that eq. 44 separates at a time, of eq. 42's samples from t = 1.

    By Euler and Maruyama, in steps of equal ratio. The impact is strength/t^power on the own class and 0 on
    the others, T = I, Sigma = I, and the class means start as a simplex of side sqrt(2). A pair is tried
    along the line between its samples' means, the best direction where the noise has none.
    """
    generator = np.random.default_rng(seed)
    means = locally_elastic.residuals(classes)
    samples = np.repeat(means[:, np.newaxis], per_class, axis=1)
    for now, later in pairwise(np.geomspace(1, time, MOVES + 1)):
        step = (later - now) * strength / (now * later) ** (power / 2) / classes * means
        noise = math.sqrt(later - now) * generator.standard_normal(samples.shape)
        means, samples = means + step, samples + step[:, np.newaxis] + noise
    apart = []
    for one, other in combinations(samples, 2):
        direction = one.mean(0) - other.mean(0)
        apart.append((one @ direction).min() > (other @ direction).max())
    return float(np.mean(apart))


def _plain(loss: Plain, classes: int, per_class: int) -> Flow:
    return Flow(loss, classes, per_class, 0.0, 0.0, bias=True)


def rest_point(flow: Flow, width: int, size: float, seed: int) -> features_model.State:
    """Return the rest point of the squared error's flow from a random start of this size."""
    time = (RESTED + 2 * abs(math.log(size))) / math.sqrt(flow.per_class)
    return integrate(flow, random_start(flow, width, size, seed), [time])[0]
