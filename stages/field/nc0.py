"""The sum of the classifier's rows under different optimizers, in the features model [2602.16642].

NC0 = |W^T 1|^2/K. Cross-entropy's gradient has rows of W that sum to 0, so only decay and the optimizer's own
nonlinearity move the sum. All free: W (K, d) and features H (N, d), full batch.

K  classes    n  samples of a class    N = K n    d  width
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Annotated, Literal, NamedTuple

import numpy as np

from ncpipe.study import Bound, Count, Fraction, Index, InputError, Positive

Classes = Annotated[int, Bound(low=3)]
Name = Literal["sgd", "sgdw", "adam", "adamw", "signum", "signumw"]
Array = np.ndarray
SQUARES = 0.999  # Adam's beta2
EPS = 1e-8


class Step(NamedTuple):
    """The state after a step: NC0, and the cross-entropy before it."""

    nc0: float
    loss: float


@dataclass
class _Descent:
    """One matrix under an optimizer; a name that ends in w has decoupled decay."""

    name: Name
    decay: float
    momentum: float
    mean: Array | float = 0.0
    square: Array | float = 0.0
    count: int = 0

    def moved(self, value: Array, gradient: Array, rate: float) -> Array:
        """Return the next value."""
        self.count += 1
        if not self.name.endswith("w"):
            gradient = gradient + self.decay * value
        else:
            value = (1 - rate * self.decay) * value
        return value - rate * self._direction(gradient)

    def _direction(self, gradient: Array) -> Array:
        if self.name.startswith("sgd"):
            self.mean = self.momentum * self.mean + gradient
            return self.mean
        self.mean = self.momentum * self.mean + (1 - self.momentum) * gradient
        if self.name.startswith("signum"):
            return np.sign(self.mean)
        self.square = SQUARES * self.square + (1 - SQUARES) * gradient**2
        mean = self.mean / (1 - self.momentum**self.count)
        root = np.sqrt(self.square / (1 - SQUARES**self.count))
        moved: Array = mean / (root + EPS)
        return moved


def nc0_left(
    optimizer: Name,
    classes: Classes,
    per_class: Count,
    width: Count,
    rate: Positive,
    decay: Positive,
    momentum: Fraction,
    steps: Count,
    seed: Index,
) -> float:
    """Return NC0 at the end over NC0 at the start; the rate falls tenfold after each third of the steps."""
    start = drawn(classes, per_class, width, seed)
    path = list(descend(optimizer, start, staircase(rate, steps), decay, momentum))
    return path[-1].nc0 / path[0].nc0


def nc0_sgd_left(
    classes: Classes,
    per_class: Count,
    width: Count,
    rate: Positive,
    decay: Positive,
    steps: Count,
    seed: Index,
) -> float:
    """Return NC0 after gradient descent with coupled decay, without momentum, over NC0 at the start."""
    path = list(descend("sgd", drawn(classes, per_class, width, seed), repeat(rate, steps), decay, 0.0))
    return path[-1].nc0 / path[0].nc0


def nc0_sgd_left_closed(
    classes: Classes,
    per_class: Count,
    width: Count,
    rate: Positive,
    decay: Positive,
    steps: Count,
    seed: Index,
) -> float:
    """Return (1 - rate decay)^(2 steps), which follows from the zero sum of cross-entropy's gradient."""
    return (1 - rate * decay) ** (2 * steps)


def nc0_over_limit(classes: Classes, rate: Positive, decay: Positive, steps: Count) -> float:
    """Return NC0 under SignGD with decoupled decay, from W = 0, features fixed to a simplex, over its limit.

    The limit is (K - 2)^2/decay^2 [2602.16642, Theorem 3.3]; the theorem leaves out the 1/K of NC0.
    """
    simplex = (np.eye(classes) - 1 / classes) / np.sqrt(classes - 1)
    start = Start(np.zeros((classes, classes)), simplex, np.arange(classes))
    *_, end = descend("signumw", start, repeat(rate, steps), decay, 0.0, fixed=True)
    return end.nc0 / ((classes - 2) / decay) ** 2


def nc0_momentum_gain(
    classes: Classes,
    per_class: Count,
    width: Count,
    rate: Positive,
    decay: Positive,
    momentum: Fraction,
    other: Fraction,
    steps: Count,
    seed: Index,
) -> float:
    """Return NC0 with one momentum over NC0 with the other, after the same steps of gradient descent."""
    start = drawn(classes, per_class, width, seed)
    ends = [list(descend("sgd", start, repeat(rate, steps), decay, own))[-1] for own in (momentum, other)]
    return ends[0].nc0 / ends[1].nc0


def nc0_momentum_gain_at_loss(
    classes: Classes,
    per_class: Count,
    width: Count,
    rate: Positive,
    decay: Positive,
    momentum: Fraction,
    loss: Positive,
    seed: Index,
) -> float:
    """Return NC0 with momentum over NC0 without, where cross-entropy reaches `loss`."""
    found = []
    for own in (momentum, 0.0):
        path = descend("sgd", drawn(classes, per_class, width, seed), repeat(rate, 1_000_000), decay, own)
        reached = next((step for step in path if step.loss <= loss), None)
        if reached is None:
            raise InputError(f"loss: {loss:g} is not reached; give a larger one or a smaller decay")
        found.append(reached.nc0)
    return found[0] / found[1]


def staircase(rate: float, steps: int) -> list[float]:
    """Return a rate for each step: all of it, a tenth and a hundredth, a third of the steps each."""
    return [rate / 10 ** (3 * step // steps) for step in range(steps)]


class Start(NamedTuple):
    """W (K, d), H (N, d) and labels (N,)."""

    weight: Array
    features: Array
    labels: Array


def drawn(classes: int, per_class: int, width: int, seed: int) -> Start:
    """Return normal weights and features of variance 1/d."""
    draw = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), per_class)
    weight, features = (draw.standard_normal((rows, width)) for rows in (classes, len(labels)))
    return Start(weight / np.sqrt(width), features / np.sqrt(width), labels)


def descend(
    name: Name, start: Start, rates: Iterable[float], decay: float, momentum: float, fixed: bool = False
) -> Iterator[Step]:
    """Yield the start, and the state after a step of each rate; fixed: whether the features stay."""
    weight, features, labels = start
    states = [_Descent(name, decay, momentum) for _ in range(2)]
    yield Step(_nc0(weight), np.inf)
    for rate in rates:
        by_weight, by_features, loss = _slopes(weight, features, labels)
        weight = states[0].moved(weight, by_weight, rate)
        if not fixed:
            features = states[1].moved(features, by_features, rate)
        yield Step(_nc0(weight), loss)


def _slopes(weight: Array, features: Array, labels: Array) -> tuple[Array, Array, float]:
    """Return the gradients of the mean cross-entropy by W and by H, and its value."""
    logits = features @ weight.T
    logits -= logits.max(1, keepdims=True)
    shares = np.exp(logits)
    shares /= shares.sum(1, keepdims=True)
    own = np.arange(len(labels)), labels
    loss = -float(np.log(shares[own]).mean())
    shares[own] -= 1
    shares /= len(labels)
    return shares.T @ features, shares @ weight, loss


def _nc0(weight: Array) -> float:
    return float((weight.sum(0) ** 2).sum() / len(weight))
