"""Integrate the gradient flow of the unconstrained features model, with and without decay [K23 eq. 13-20].

    A' = -dR/dA, F' = -dR/dF, b' = -dR/db    R = loss(A F + b) + lambda_A/2 |A|^2 + lambda_F/2 |F|^2

for K classes of n samples, N = K n, ordered by class; float64. Features are rows here, K23's F transposed.
On the subspace S, where F is A's rows over sqrt(n), A's rows sum to 0 and so does b but for one number
[eq. 20], the flow is one number's: `squared_error_scale`, `cross_entropy_gap`.

K  classes    n  samples of a class    N  samples    m  width    T  times    E_K = I - 11^T/K
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import logsumexp, softmax

from ncpipe.study import InputError, gufm

Loss = Literal["se", "mse", "ce"]
RTOL, ATOL = 1e-11, 1e-14


@dataclass(frozen=True)
class State:
    """weight A (K, m), features (N, m), bias b (K,)."""

    weight: np.ndarray
    features: np.ndarray
    bias: np.ndarray

    @property
    def logits(self) -> np.ndarray:
        """Return A F + b, (N, K)."""
        logits: np.ndarray = self.features @ self.weight.T + self.bias
        return logits


@dataclass(frozen=True)
class Flow:
    """What is descended: `se` 1/2 |A F + b - Y|^2 [eq. 16], `mse` that over N [eq. 56], `ce` mean [eq. 13].

    bias: whether b moves; it is not penalised.
    """

    loss: Loss
    classes: int
    per_class: int
    weight_decay: float
    feature_decay: float
    bias: bool

    def __post_init__(self) -> None:
        gufm.check_loss(self.loss, get_args(Loss))

    @property
    def samples(self) -> int:
        return self.classes * self.per_class

    @property
    def targets(self) -> np.ndarray:
        """Return Y^T (N, K), one-hot."""
        targets: np.ndarray = np.repeat(np.eye(self.classes), self.per_class, axis=0)
        return targets


def risk(flow: Flow, state: State) -> float:
    """Return R, the loss with its penalties."""
    logits, targets = state.logits, flow.targets
    if flow.loss == "ce":
        fit = (logsumexp(logits, axis=1) - (logits * targets).sum(1)).mean()
    else:
        fit = ((logits - targets) ** 2).sum() / 2
        if flow.loss == "mse":
            fit /= flow.samples
    penalty = flow.weight_decay * (state.weight**2).sum() + flow.feature_decay * (state.features**2).sum()
    return float(fit + penalty / 2)


def velocity(flow: Flow, state: State) -> State:
    """Return (A', F', b')."""
    outputs = softmax(state.logits, axis=1) if flow.loss == "ce" else state.logits
    residual = flow.targets - outputs
    if flow.loss != "se":
        residual = residual / flow.samples
    return State(
        residual.T @ state.features - flow.weight_decay * state.weight,
        residual @ state.weight - flow.feature_decay * state.features,
        residual.sum(0) if flow.bias else np.zeros_like(state.bias),
    )


def integrate(flow: Flow, start: State, times: Sequence[float]) -> list[State]:
    """Integrate the flow from t = 0 to rising times (T,), in log(1 + t), so that t = 10^8 costs little."""
    places = np.log1p(np.asarray(times, dtype=float))
    if len(places) == 0 or places[0] < 0 or (np.diff(places) <= 0).any():
        raise InputError("times must be rising, the first of them at least 0")
    shapes = [start.weight.shape, start.features.shape, start.bias.shape]
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1]

    def state_of(flat: np.ndarray) -> State:
        parts = (part.reshape(shape) for part, shape in zip(np.split(flat, ends), shapes, strict=True))
        return State(*parts)

    def flat_of(state: State) -> np.ndarray:
        return np.concatenate([state.weight.ravel(), state.features.ravel(), state.bias.ravel()])

    solution = solve_ivp(
        lambda place, flat: math.exp(place) * flat_of(velocity(flow, state_of(flat))),
        (0.0, float(places[-1])),
        flat_of(start),
        method="LSODA",
        t_eval=places,
        rtol=RTOL,
        atol=ATOL,
    )
    if not solution.success:
        raise RuntimeError(f"the flow could not be integrated: {solution.message}")
    return [state_of(column) for column in solution.y.T]


def random_start(flow: Flow, width: int, size: float, seed: int) -> State:
    """Draw normal A and F of norm `size` each, b = 0 [K23 Fig. 3]."""
    generator = np.random.default_rng(seed)
    weight = generator.normal(size=(flow.classes, width))
    features = generator.normal(size=(flow.samples, width))
    norms = np.linalg.norm(weight) / size, np.linalg.norm(features) / size
    return State(weight / norms[0], features / norms[1], np.zeros(flow.classes))


def aligned_start(flow: Flow, width: int, scale: float) -> State:
    """Return a point of S with A A^T = scale E_K and b = 0 [eq. 20]; width >= K."""
    centred = np.eye(flow.classes) - 1 / flow.classes
    weight = math.sqrt(scale) * np.pad(centred, ((0, 0), (0, width - flow.classes)))
    return State(weight, spread_rows(flow, weight), np.zeros(flow.classes))


def spread_rows(flow: Flow, weight: np.ndarray) -> np.ndarray:
    """Return features (N, m) equal to the class's row of A over sqrt(n) [SNC2 in eq. 17]."""
    features: np.ndarray = np.repeat(weight, flow.per_class, axis=0) / math.sqrt(flow.per_class)
    return features


# One number's flow


def squared_error_scale(flow: Flow, scale: float, time: float) -> float:
    """Return s(t) of A A^T = s E_K on S, without decay.

    s(t) = sqrt(n)/(1 + (sqrt(n)/s(0) - 1) exp(-2 sqrt(n) t)).

    For `mse` time runs N times slower [A.3]. b = (1 - exp(-N t))/K, or 1 - exp(-t) over K, beside it [eq.
    19].
    """
    root = math.sqrt(flow.per_class)
    se_time = time / flow.samples if flow.loss == "mse" else time
    return root / (1 + (root / scale - 1) * math.exp(-2 * root * se_time))


def cross_entropy_gap(flow: Flow, gap: float, times: Sequence[float]) -> np.ndarray:
    """Return the logit gap alpha (T,) on S under `ce` without bias or decay.

    There A A^T = sqrt(n) alpha E_K and

        alpha' = (2 alpha/sqrt(n)) exp(-alpha)/(1 + (K-1) exp(-alpha)),

    so that risk t alpha -> (K-1) sqrt(n)/2, and alpha grows like log t.
    """

    def slope(log_time: float, gap: np.ndarray) -> np.ndarray:
        odds = np.exp(-gap)
        rate = 2 * gap / math.sqrt(flow.per_class) * odds / (1 + (flow.classes - 1) * odds)
        derivative: np.ndarray = math.exp(log_time) * rate
        return derivative

    log_times = np.log1p(np.asarray(times, dtype=float))
    span = (0.0, float(log_times[-1]))
    solution = solve_ivp(slope, span, [gap], method="LSODA", t_eval=log_times, rtol=RTOL, atol=ATOL)
    values: np.ndarray = solution.y[0]
    return values


# Measures


def snc_errors(flow: Flow, state: State) -> tuple[float, float, float]:
    """Return distances [eq. 17] of A A^T from sqrt(n) E_K, of F from A's rows over sqrt(n), of b from 1/K."""
    centred = np.eye(flow.classes) - 1 / flow.classes
    return (
        float(np.linalg.norm(state.weight @ state.weight.T - math.sqrt(flow.per_class) * centred)),
        float(np.linalg.norm(state.features - spread_rows(flow, state.weight))),
        float(np.linalg.norm(state.bias - 1 / flow.classes)),
    )


def imbalance(state: State) -> float:
    """Return |A^T A - F F^T|_F: constant without decay, else its start times exp(-2 lambda t)."""
    return float(np.linalg.norm(state.weight.T @ state.weight - state.features.T @ state.features))


def margin_share(flow: Flow, state: State) -> float:
    """Return the least margin over its bound (|A|^2 + |F|^2)/(2 (K-1) sqrt(n)) [below eq. 15]."""
    logits, right = state.features @ state.weight.T, flow.targets.astype(bool)
    margins = logits[right] - np.where(right, -np.inf, logits).max(1)
    size = (state.weight**2).sum() + (state.features**2).sum()
    return float(margins.min() * 2 * (flow.classes - 1) * math.sqrt(flow.per_class) / size)


def traces(flow: Flow, state: State) -> tuple[float, float]:
    """Return tr Sigma_W and tr Sigma_B of the features."""
    grouped = state.features.reshape(flow.classes, flow.per_class, -1)
    means = grouped.mean(1)
    within = ((grouped - means[:, None]) ** 2).sum() / flow.samples
    return float(within), float(((means - means.mean(0)) ** 2).sum() / flow.classes)
