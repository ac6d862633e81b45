"""Direct minimisation of features models, where an independent answer is known."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from ncpipe.metrics.loss_functions import LOSSES, cross_entropy
from ncpipe.system.errors import InputError
from ncpipe.theory.gufm import optimal_value
from ncpipe.theory.numerical import minimise_gufm, minimise_ufm
from ncpipe.theory.ufm import Decay


def test_two_unbalanced_classes_on_a_line():
    """K = 2, d = 2: features are +-(1, -1), so W has one number that matters; with a bias, two."""
    counts = torch.tensor([3.0, 1.0])
    found = minimise_gufm(LOSSES["ce"], torch.eye(2), counts, 2, 0.2, False, starts=4, seed=0)
    share = 0.75
    # w = (c, -c) along (1, -1)/sqrt(2) and x = +-(1, -1): the classes' logit gap is 2 sqrt(2) c on both.
    line = minimize_scalar(lambda c: math.log1p(math.exp(-2 * 2**0.5 * c)) + 0.2 * c * c)
    assert found.value == pytest.approx(line.fun, abs=1e-9)
    biased = minimise_gufm(LOSSES["ce"], torch.eye(2), counts, 2, 0.2, True, starts=4, seed=0)

    def value(c, b):
        first, second = 2 * 2**0.5 * c + b, 2 * 2**0.5 * c - b
        return share * np.logaddexp(0, -first) + (1 - share) * np.logaddexp(0, -second) + 0.2 * c * c

    grid = value(*np.meshgrid(np.linspace(0, 3, 1501), np.linspace(-3, 3, 1501)))
    assert biased.value == pytest.approx(grid.min(), abs=1e-6)
    assert biased.value < found.value - 1e-3


def test_three_classes_on_a_line():
    """d = 2 leaves two features: two of three classes share one, with W by ridge regression (MSE)."""
    found = minimise_gufm(LOSSES["mse"], torch.eye(3), torch.ones(3), 2, 0.1, False, starts=6, seed=0)
    values = []
    for signs in ((1, 1, -1), (1, 1, 1)):
        x = np.outer(signs, [1, -1])
        weight = np.eye(3) @ x @ np.linalg.inv(x.T @ x + 3 * 0.1 * np.eye(2))
        values.append(((x @ weight.T - np.eye(3)) ** 2).sum() / 6 + 0.05 * (weight**2).sum())
    assert found.value == pytest.approx(min(values), abs=1e-9)


@pytest.mark.parametrize("smoothing", [0.1, 0.3])
def test_label_smoothing_keeps_the_simplex_and_scales_it(smoothing):
    """Soft labels (1 - s) e_k + s/K: an ETF by symmetry, of the length that a scalar search gives."""
    classes, width, strength = 4, 6, 0.02
    soft = (1 - smoothing) * torch.eye(classes).double() + smoothing / classes
    found = minimise_gufm(LOSSES["ce"], soft, torch.ones(classes), width, strength, False, starts=4, seed=0)

    def value(norm):
        gap = norm * width**0.5 * classes / (classes - 1)
        wrong = smoothing / classes * (classes - 1)
        return math.log1p((classes - 1) * math.exp(-gap)) + wrong * gap + strength / 2 * classes * norm**2

    assert found.value == pytest.approx(minimize_scalar(value).fun, abs=1e-9)


def test_any_loss_of_logits_can_be_given():
    """A multiclass hinge, squared: the ETF gets a margin of at most 1 on every pair."""

    def hinge(logits, targets):
        margins = 1 - (logits * targets).sum(1, keepdim=True) + logits
        return ((1 - targets) * margins.clamp(min=0).square()).sum(1)

    found = minimise_gufm(hinge, torch.eye(3), torch.ones(3), 4, 1e-3, False, starts=4, seed=0)
    value = minimize_scalar(lambda w: 2 * max(1 - 3 * w, 0) ** 2 + 1e-3 / 2 * 3 * w * w).fun
    assert found.value == pytest.approx(value, abs=1e-8)


def test_the_result_is_what_it_says_and_the_seed_decides_it():
    arguments = (LOSSES["ce"], torch.eye(3), torch.tensor([5, 2, 1]), 3, 0.05, True)
    found, again = (minimise_gufm(*arguments, starts=5, seed=3) for _ in range(2))
    assert torch.equal(found.values, again.values)
    assert torch.equal(found.features, again.features)
    assert found.features.norm(dim=1) == pytest.approx([3**0.5] * 3)
    assert found.features.sum(1) == pytest.approx([0.0] * 3, abs=1e-14)
    assert found.value == found.values[0] == found.values.min()
    assert len(found.values) == 5
    assert 1 <= found.agreeing(1e-7) <= found.agreeing(math.inf) == 5
    logits = found.features @ found.weight.T + found.bias
    fit = (cross_entropy(logits, torch.eye(3).double()) * torch.tensor([5, 2, 1]) / 8).sum()
    assert fit + 0.025 * found.weight.square().sum() == pytest.approx(found.value, rel=1e-14)


def test_narrow_features_can_have_local_minima_and_the_starts_say_so():
    """Six classes on a circle: orders of the classes around it are not all alike."""
    found = minimise_gufm(LOSSES["ce"], torch.eye(6), torch.ones(6), 3, 1e-3, False, starts=12, seed=0)
    assert found.value > optimal_value("ce", 6, 6, 1e-3, False)
    assert found.agreeing(1e-6) >= 1
    assert found.slope < 1e-6


def test_mistakes_are_one_line():
    ones = torch.ones(3)
    with pytest.raises(InputError, match="width 1"):
        minimise_gufm(LOSSES["ce"], torch.eye(3), ones, 1, 0.1, False, starts=1, seed=0)
    with pytest.raises(InputError, match="lambda_L 0"):
        minimise_gufm(LOSSES["ce"], torch.eye(3), ones, 4, 0.0, False, starts=1, seed=0)
    with pytest.raises(InputError, match="positive numbers"):
        minimise_ufm(LOSSES["ce"], torch.eye(3), torch.zeros(3), 4, Decay(1, 1, None), starts=1, seed=0)
    with pytest.raises(InputError, match="starts: 0"):
        minimise_gufm(LOSSES["ce"], torch.eye(3), ones, 4, 0.1, False, starts=0, seed=0)
