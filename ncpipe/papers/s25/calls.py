"""Compute numbers of S25's Lemma 4.1 and App. C, for claims [docs/theory.md].

K  classes    n  samples of a class    N = K n    d  width    all float64
"""

import math
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from scipy import special
from scipy.optimize import minimize

from ncpipe.papers.s25.constructions.networks import Choices, optimum_of
from ncpipe.papers.s25.counterexample import collapse_price, kept_share, motionless, near_collapsed_data
from ncpipe.papers.s25.shifts import shifts
from ncpipe.papers.s25.study_rows import measured
from ncpipe.study import Bound, Count, Index, InputError, Positive, Prepared, Run, frames, gufm, make_run

Classes = Annotated[int, Bound(low=2)]
Loss = Literal["ce", "mse"]
Array = np.ndarray
CHOICES = Choices("sharp", draws=32, detours=0, attention_exponent=1.0)
MET = 1e-6  # of the distance asked for, by which a solver may miss it


def excess_at_distance(
    loss: Loss,
    classes: Classes,
    width: Count,
    strength: Positive,
    distance: Positive,
    starts: Count,
    seed: Index,
) -> float:
    """Return the least loss found above the optimum, of pairs (W, X) at a distance, or more, from all optima.

    Lemma 4.1 says that it is above 0 for every distance; n = 1. By SLSQP from as many starts near an optimum
    as elsewhere; the distance of pairs is that of their Frobenius norms.
    """
    pairs, draw = Pairs(loss, classes, width, strength), np.random.default_rng(seed)
    noise = [draw.standard_normal(pairs.optimum.size) for _ in range(starts)]
    near = [pairs.optimum + 2 * distance * one / np.linalg.norm(one) for one in noise]
    ends = [_least_beyond(pairs, start, distance) for start in (*near, *noise)]
    values = [value for value, reached in ends if reached > distance * (1 - MET)]
    if not values:
        raise InputError(f"distance: {distance:g}; no descent ended there; give more starts")
    return min(values) - gufm.optimal_value(loss, classes, width, strength, bias=False)


class Pairs:
    """Holds W (K, d) and a feature (d,) a class as free numbers, with loss, distance and their slopes.

    In coordinates of `zero_sum_basis`; W's last column is its part along 1, which features do not have.
    """

    def __init__(self, loss: Loss, classes: int, width: int, strength: float) -> None:
        solved, basis = gufm.optimum(loss, classes, width, strength, bias=False), frames.zero_sum_basis(width)
        self.loss, self.classes, self.strength, self.radius = loss, classes, strength, math.sqrt(width)
        self.weight, self.features = (solved.weight @ basis.T).numpy(), (solved.features @ basis.T).numpy()
        self.optimum = np.concatenate([np.pad(self.weight, ((0, 0), (0, 1))).ravel(), self.features.ravel()])

    def parts(self, flat: Array) -> tuple[Array, Array, Array]:
        """Return W (K, d), features (K, d - 1) of length sqrt(d), lengths (K, 1) of their free numbers."""
        weight, free = np.split(flat, [self.classes * (self.features.shape[1] + 1)])
        free = free.reshape(self.features.shape)
        lengths = np.linalg.norm(free, axis=1, keepdims=True)
        return weight.reshape(self.classes, -1), self.radius * free / lengths, lengths

    def value(self, flat: Array) -> tuple[float, Array]:
        """Return the regularised loss with its slopes."""
        weight, features, lengths = self.parts(flat)
        logits, targets = features @ weight[:, :-1].T, np.eye(self.classes)
        if self.loss == "ce":
            shares = special.softmax(logits, axis=1)
            fit = float((special.logsumexp(logits, axis=1) - np.diag(logits)).mean())
        else:
            shares, fit = logits, float(((logits - targets) ** 2).sum()) / (2 * self.classes)
        errors = (shares - targets) / self.classes
        slopes = self.strength * weight
        slopes[:, :-1] += errors.T @ features
        value = fit + self.strength / 2 * float((weight**2).sum())
        return value, self._flat(slopes, errors @ weight[:, :-1], features, lengths)

    def squared_distance(self, flat: Array) -> tuple[float, Array]:
        """Return the least |W - W* Q|^2 + |X - X* Q|^2 over rotations Q, with its slopes.

        All optima are one up to Q [Lemma 4.2]; the products with the best Q sum to the nuclear norm of
        W^T W* + X^T X*.
        """
        weight, features, lengths = self.parts(flat)
        left, sizes, right = np.linalg.svd(weight[:, :-1].T @ self.weight + features.T @ self.features)
        squares = sum(float((part**2).sum()) for part in (weight, features, self.weight, self.features))
        turned = left @ right
        slopes = 2 * weight
        slopes[:, :-1] -= 2 * self.weight @ turned.T
        to_features = 2 * (features - self.features @ turned.T)
        return squares - 2 * float(sizes.sum()), self._flat(slopes, to_features, features, lengths)

    def _flat(self, to_weight: Array, to_features: Array, features: Array, lengths: Array) -> Array:
        """Return slopes by the free numbers, whose length features do not have."""
        unit = features / self.radius
        along = (to_features * unit).sum(1, keepdims=True) * unit
        return np.concatenate([to_weight.ravel(), ((to_features - along) * self.radius / lengths).ravel()])


def _least_beyond(pairs: Pairs, start: Array, distance: float) -> tuple[float, float]:
    """Return the least loss found at a distance or more from the optima, and its distance."""
    beyond = {
        "type": "ineq",
        "fun": lambda flat: pairs.squared_distance(flat)[0] / distance**2 - 1,
        "jac": lambda flat: pairs.squared_distance(flat)[1] / distance**2,
    }
    options = {"maxiter": 200, "ftol": 1e-12}
    minimum = minimize(pairs.value, start, jac=True, method="SLSQP", constraints=[beyond], options=options)
    return float(minimum.fun), math.sqrt(max(pairs.squared_distance(minimum.x)[0], 0.0))


def least_kept_share(
    classes: Classes, per_class: Count, size: Positive, strength: Positive, seed: Index
) -> float:
    """Return the least share of the spread within classes that an optimum of App. C's example keeps.

    Two-layer blocks without biases behind a given first layer, under a constant lambda, at any depth; MSE, X
    = I_K (x) 1_n^T + E with columns of E of length `size`.
    """
    run, data = example(classes, per_class, size, strength, 2, seed)
    features, still = motionless(run, data)
    gap = still.value - optimum_of(run, data).value
    return kept_share(gap, collapse_price(features, data.train.labels, strength))


def biases_excess(
    classes: Classes, per_class: Count, size: Positive, strength: Positive, depth: Count, seed: Index
) -> float:
    """Return the loss of a network of free biases alone over the least that any network can have, less 1.

    On App. C's example, as `least_kept_share`; `shifts` builds the network, which is collapsed.
    """
    run, data = example(classes, per_class, size, strength, depth, seed)
    row = measured(run, data, shifts(run, data, CHOICES))
    return float(row["loss_gap"]) / optimum_of(run, data).value


def penalised_biases_over_still(
    classes: Classes, per_class: Count, size: Positive, strength: Positive, depth: Count, seed: Index
) -> float:
    """Return the loss of that network with a penalty on its biases, over that of one that moves nothing.

    The latter's inner matrices and biases are 0, and its last matrix is the best for its features.
    """
    run, data = example(classes, per_class, size, strength, depth, seed)
    _, still = motionless(run, data)
    penalty = replace(run.spec.penalty, biases=True)
    penalised = replace(run, spec=replace(run.spec, penalty=penalty))
    return float(measured(penalised, data, shifts(run, data, CHOICES))["loss"]) / still.value


def example(
    classes: int, per_class: int, size: float, strength: float, depth: int, seed: int
) -> tuple[Run, Prepared]:
    """Return an L-RN2 of width K + 2 under a constant lambda, and App. C's data."""
    data = near_collapsed_data(classes, per_class, size, "within", seed)
    width = classes + 2
    keys = {
        "data": {
            "source": "gaussian_mixture", "classes": classes, "dimension": classes, "separation": 1.0,
            "noise": 1.0, "per_class": per_class, "test_per_class": per_class, "seed": seed,
        },
        "model": {
            "architecture": "L-RN2", "norm": "post", "width": width, "mlp_width": width, "last_bias": False,
            "layer_norm_eps": 0.0, "initialisation": "normal", "gain": 1.0,
        },
        "loss": "mse",
        "penalty": {"rule": "constant", "value": strength, "last_layer": None},
        "optimizer": {"name": "sgd", "learning_rate": 1.0, "momentum": 0.0},
        "schedule": {"name": "constant"},
        "epochs": 1, "batch_size": "full", "log_every": 1,
    }  # fmt: skip
    return make_run("App. C's example", depth, seed, keys), data


CALLS = {
    "gufm.excess_at_distance": (excess_at_distance,),
    "two_layer_blocks.kept_share": (least_kept_share,),
    "two_layer_blocks.biases_excess": (biases_excess,),
    "two_layer_blocks.penalised_biases_over_still": (penalised_biases_over_still,),
}
