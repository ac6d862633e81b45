"""Certificates of docs/results/corrections.md: they hold for the exact numbers, not only when rounded.

The losses of explicit networks are computed in exact fractions or in intervals of 60 digits, so that no
rounding can hide behind them.
"""

from fractions import Fraction

import pytest
import torch
from conftest import vector_data
from constructions import SHARP, inner_square, small_run
from mpmath import iv, mp

from ncpipe.papers.s24.dufm import dnc_loss, equal_decays
from ncpipe.papers.s24.dufm_solutions import srg_solution
from ncpipe.papers.s25.shifts import shifts
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
    found = srg_solution(model, minus)
    loss = exact_loss(model, found.features, found.weights)
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
