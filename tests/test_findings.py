"""Certificates of docs/results/corrections.md, and numbers of claims about theorems in another way.

Certificates hold for the exact numbers, not only when rounded: the losses of explicit networks are computed
in exact fractions or in intervals of 60 digits, so that no rounding can hide behind them.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch
from conftest import vector_data
from constructions import SHARP, inner_square, small_run
from mpmath import iv, mp
from torch.nn.functional import cross_entropy, normalize

from ncpipe.papers.s24 import calls as low_rank
from ncpipe.papers.s24 import dufm, dufm_relaxed
from ncpipe.papers.s24.dufm import dnc_loss, equal_decays
from ncpipe.papers.s24.dufm_numerical import minimise
from ncpipe.papers.s24.dufm_solutions import srg_solution
from ncpipe.papers.s25 import calls as deep
from ncpipe.papers.s25.counterexample import near_collapsed_data
from ncpipe.papers.s25.shifts import shifts
from ncpipe.theory import gufm
from ncpipe.theory.gufm import optimal_value

DIGITS = 60


def exact_loss(model, features, weights):
    """The objective of the two-layer features model, n = 1, of float matrices in exact arithmetic."""
    first, second, h = ([[Fraction(x) for x in row] for row in m.tolist()] for m in (*weights, features))
    classes = len(h)
    error = Fraction(0)
    for k, row in enumerate(h):
        hidden = [max(sum((a * b for a, b in zip(w, row, strict=True)), Fraction(0)), 0) for w in first]
        output = [sum((a * b for a, b in zip(w, hidden, strict=True)), Fraction(0)) for w in second]
        error += sum((y - (j == k)) ** 2 for j, y in enumerate(output))
    square = sum(x * x for matrix in (first, second, h) for row in matrix for x in row)
    return error / (2 * classes) + Fraction(model.features) / 2 * square


def lies_below_every_collapsed_loss(bound, classes, decay):
    """Whether K d/(2 (q^2 + K d)) + K d q > bound for all q >= 0, in exact arithmetic.

    Every solution with deep neural collapse, M_2 = q Q with orthonormal columns Q >= 0, costs at least that:
    the first term is the least loss of W_2 on these features. The second is the least cost of W_1 H_1, which
    is q Q where Q is positive, so that its nuclear norm is at least <Q, W_1 H_1> = q K.
    Multiplied by q^2 + K d > 0 it is a cubic in q with K d > 0 in front, whose only local minimum is at the
    larger root of its derivative. Halving brackets this root; right of its vertex the cubic is convex.
    """
    c = classes * Fraction(decay)

    def cubic(q):
        return c / 2 + (c * q - bound) * (q * q + c)

    def slope(q):
        return c * (q * q + c) + 2 * q * (c * q - bound)

    vertex = bound / (3 * c)  # where the slope is least
    if slope(vertex) >= 0:
        return cubic(Fraction(0)) > 0
    low, high = vertex, bound / c
    while slope(high) <= 0:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    # Between low and high the slope rises from below 0, so the cubic lies above its tangent at low.
    return cubic(low) + slope(low) * (high - low) > 0 and cubic(Fraction(0)) > 0


@pytest.mark.parametrize(("classes", "decay", "minus", "share"), [(10, 0.035, 2, 0.99), (15, 0.02, 3, 0.97)])
def test_two_layers_have_a_lower_loss_than_every_deep_neural_collapse(classes, decay, minus, share):
    """Red: a loss that is lower by rounding only."""
    model = equal_decays(classes, 1, 2, decay)
    solution = srg_solution(model, minus)
    loss = exact_loss(model, solution.features, solution.weights)
    assert loss < Fraction(share) * Fraction(dnc_loss(model))
    assert lies_below_every_collapsed_loss(loss / Fraction(share), classes, decay)
    above = Fraction(dnc_loss(model)) * Fraction(1001, 1000)
    assert not lies_below_every_collapsed_loss(above, classes, decay)


def interval_layer_norm(x):
    mean = sum(x) / len(x)
    centred = [value - mean for value in x]
    root = iv.sqrt(sum(value * value for value in centred) / len(x))
    return [value / root for value in centred]


def test_biases_alone_reach_the_least_loss_that_any_network_has():
    """Red: samples that merge only up to rounding, whose exact loss is larger."""
    data = vector_data(3, 6, 4)
    run = small_run("L-RN1", 24, penalty={"rule": "constant", "value": 0.5, "last_layer": 0.005})
    state = shifts(run, data, SHARP)
    assert inner_square(state) == 0  # so the inner layers cost nothing, whatever lambda
    iv.dps = mp.dps = DIGITS
    try:
        matrix = [[iv.mpf(x) for x in row] for row in state["lin0.weight"].tolist()]
        last = [[iv.mpf(x) for x in row] for row in state["last.weight"].tolist()]
        offset = [iv.mpf(x) for x in state["lin0.bias"].tolist()]
        biases = [state[name] for name in state if name.endswith("lin.bias")]
        shift = [[iv.mpf(x) for x in bias.clamp(min=0).tolist()] for bias in biases]
        total = iv.mpf(0)
        samples, labels = data.train.inputs.double().tolist(), data.train.labels.tolist()
        for sample, label in zip(samples, labels, strict=True):
            x = [sum(w * v for w, v in zip(row, sample, strict=True)) for row in matrix]
            x = interval_layer_norm([a + b for a, b in zip(x, offset, strict=True)])
            for bias in shift:
                x = interval_layer_norm([a + b for a, b in zip(x, bias, strict=True)])
            logits = [sum(w * v for w, v in zip(row, x, strict=True)) for row in last]
            total += iv.log(sum(iv.exp(other - logits[label]) for other in logits))
        penalty = iv.mpf(0.005) / 2 * sum(w * w for row in last for w in row)
        loss = total / len(data.train) + penalty
        assert float(loss.delta) < 1e-30
        assert abs(float(loss.mid) - optimal_value("ce", 3, 8, 0.005, False)) < 1e-12
    finally:
        iv.dps = mp.dps = 15
    assert torch.isfinite(state["lin0.weight"]).all()


# Numbers of claims about S24's Theorems 6 and 8 and S25's Lemma 4.1 and App. C, each in another way


def test_free_columns_end_at_the_closed_optimum_and_collapse() -> None:
    """Red: columns that the model ties, another layer than L, a descent that ends above the optimum."""
    model = dufm.equal_decays(3, 2, 3, 0.01)
    result = minimise(model, 6, starts=2, seed=0, collapsed=False)
    assert result.value == pytest.approx(dufm.dnc_loss(model), rel=1e-9)
    best = result.solutions[0]
    features = best.features.numpy()
    assert len(features) == 6
    for weight in best.weights[:-1]:
        features = np.maximum(features @ weight.numpy().T, 0)
    means = features.reshape(3, 2, -1).mean(1)
    within = np.square(features.reshape(3, 2, -1) - means[:, None]).sum(2).mean()
    between = np.square(means - means.mean(0)).sum(1).mean()
    assert low_rank.within_class(3, 3, 2, 6, 0.01, 2, 0) == pytest.approx(within / between, abs=1e-14)
    assert within / between < 1e-12


def test_a_smoothed_relu_keeps_the_optimum_and_its_bound_says_something() -> None:
    """Red: another activation, decays of other matrices, features of the output."""
    model = dufm.equal_decays(2, 2, 2, 0.1)
    apart, value = dufm_relaxed.apart_within_classes(model, 4, 1e-4, starts=6, seed=0)
    assert value == pytest.approx(dufm.dnc_loss(model), abs=1e-9)
    bound = 6e-4 * np.sqrt(4 * 3) / (27 * 0.1**3 * np.sqrt(2))
    assert low_rank.relaxed_over_bound(2, 2, 2, 4, 0.1, 1e-4, 6, 0) == pytest.approx(apart / bound)
    assert apart < bound < 0.06


@pytest.mark.parametrize("loss", ["ce", "mse"])
def test_the_excess_near_the_optima_is_that_of_the_least_curvature(loss: str) -> None:
    """Red: a distance from one optimum, not from all; a slope with an error, which ends too high."""
    classes, width, strength, distance = 2, 4, 0.01, 0.01
    solved = gufm.optimum(loss, classes, width, strength, False)

    def value(flat: torch.Tensor) -> torch.Tensor:
        weight, free = flat.view(2, classes, width)
        outputs = width**0.5 * normalize(free - free.mean(1, keepdim=True)) @ weight.T
        targets = torch.eye(classes).double()
        fit = (outputs - targets).square().sum() / (2 * classes)
        fit = cross_entropy(outputs, targets) if loss == "ce" else fit
        return fit + strength / 2 * weight.square().sum()

    at = torch.cat([solved.weight.flatten(), solved.features.flatten()])
    curvatures = torch.linalg.eigvalsh(torch.autograd.functional.hessian(value, at))
    assert curvatures[0] > -1e-12  # the rest at 0: lengths and means of features, rotations
    least = curvatures[curvatures > 1e-9][0].item()
    excess = deep.excess_at_distance(loss, classes, width, strength, distance, 4, 0)
    assert excess / distance**2 == pytest.approx(least / 2, rel=0.02)
    assert deep.excess_at_distance(loss, classes, width, strength, 10 * distance, 4, 0) > 50 * excess


def test_the_kept_share_is_that_of_a_ridge_regression() -> None:
    data = near_collapsed_data(3, 4, 0.002, "within", 0)
    inputs, targets = data.train.inputs.numpy(), np.eye(3)[data.train.labels.numpy()]
    solved = gufm.optimum("mse", 3, 5, 0.005, False)
    x = inputs @ solved.features.numpy()
    x = x - x.mean(1, keepdims=True)
    x *= np.sqrt(5) / np.linalg.norm(x, axis=1, keepdims=True)
    weight = np.linalg.solve(x.T @ x / 12 + 0.005 * np.eye(5), x.T @ targets / 12).T
    loss = np.square(x @ weight.T - targets).sum() / 24 + 0.0025 * np.square(weight).sum()
    means = x.reshape(3, 4, 5).mean(1).repeat(4, 0)
    price = 0.0025 * np.sqrt(np.square(x - means).sum() / 12 / 5)
    share = 1 - (loss - solved.value) / price
    assert deep.least_kept_share(3, 4, 0.002, 0.005, 0) == pytest.approx(share, rel=1e-6)
    penalised = deep.penalised_biases_over_still(3, 4, 0.002, 0.005, 18, 0) * loss - solved.value
    run, _ = deep.example(3, 4, 0.002, 0.005, 18, 0)
    state = shifts(run, data, deep.CHOICES)
    squares = sum(float(part.square().sum()) for name, part in state.items() if name.endswith("lin2.bias"))
    assert penalised == pytest.approx(0.0025 * squares, rel=1e-9)
    assert abs(deep.biases_excess(3, 4, 0.002, 0.005, 18, 0)) < 1e-12
