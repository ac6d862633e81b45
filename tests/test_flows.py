"""Gradient flows and the locally elastic equations, integrated and in closed form."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
import pytest
import torch

from ncpipe.papers.k23 import curves
from ncpipe.papers.k23.figures import PANELS
from ncpipe.papers.k23.flow_models import etf_rate_numerical
from ncpipe.papers.k23.flows import central_path, features_model, locally_elastic
from ncpipe.papers.k23.flows.features_model import Flow, aligned_start, integrate, random_start
from ncpipe.system.errors import InputError
from ncpipe.theory.ufm import Decay, optimum

SE, MSE = Flow("se", 3, 4, 0.0, 0.0, True), Flow("mse", 3, 4, 0.0, 0.0, True)
CE = Flow("ce", 3, 4, 0.0, 0.0, False)


@pytest.mark.parametrize("loss", ["se", "mse", "ce"])
def test_velocities_are_minus_the_gradient_of_the_risk(loss):
    flow = Flow(loss, 3, 2, 0.3, 0.2, True)
    start = random_start(flow, 5, 2.0, seed=1)
    free = [torch.from_numpy(part).requires_grad_() for part in vars(start).values()]
    logits = free[1] @ free[0].T + free[2]
    targets = torch.from_numpy(flow.targets)
    fits = {
        "se": (logits - targets).square().sum() / 2,
        "mse": (logits - targets).square().sum() / 12,
        "ce": torch.nn.functional.cross_entropy(logits, targets),
    }
    value = fits[loss] + 0.15 * free[0].square().sum() + 0.1 * free[1].square().sum()
    assert features_model.risk(flow, start) == pytest.approx(value.item(), rel=1e-14)
    moved = vars(features_model.velocity(flow, start)).values()
    for expected, actual in zip(torch.autograd.grad(value, free), moved, strict=True):
        assert -expected.numpy() == pytest.approx(actual, abs=1e-14)


@pytest.mark.parametrize("flow", [SE, MSE])
def test_on_the_subspace_one_number_moves_to_strong_collapse(flow):
    """Eq. 17-20: A A^T, b and features as in closed form, to 1e-8, and SNC at the end."""
    slow = flow.samples if flow.loss == "mse" else 1
    times = [slow * time for time in (0.1, 0.5, 1.0, 2.0, 12.0)]
    states = integrate(flow, aligned_start(flow, 5, 0.02), times)
    centred = np.eye(3) - 1 / 3
    for time, state in zip(times, states, strict=True):
        scale = features_model.squared_error_scale(flow, 0.02, time)
        assert state.weight @ state.weight.T == pytest.approx(scale * centred, abs=1e-8)
        assert state.features == pytest.approx(features_model.spread_rows(flow, state.weight), abs=1e-8)
        level = (1 - math.exp(-flow.samples * time / slow)) / 3
        assert state.bias == pytest.approx(np.full(3, level), abs=1e-8)
    assert max(features_model.snc_errors(flow, states[-1])) < 1e-6
    means = states[-1].features.reshape(3, 4, -1).mean(1)
    assert ((means - means.mean(0)) ** 2).sum(1) == pytest.approx(np.full(3, (1 - 1 / 3) / math.sqrt(4)))


def test_cross_entropy_on_the_subspace_is_its_gap_s_equation():
    times = [1.0, 1e2, 1e4, 1e8]
    gaps = features_model.cross_entropy_gap(CE, 0.1, times)
    states = integrate(CE, aligned_start(CE, 5, 2 * 0.1), times)
    products = []
    for time, gap, state in zip(times, gaps, states, strict=True):
        logits = state.logits
        assert logits[0, 0] - logits[0, 1] == pytest.approx(gap, rel=1e-8)
        assert features_model.margin_share(CE, state) == pytest.approx(1, rel=1e-9)
        products.append(features_model.risk(CE, state) * time * gap)
    assert products[-1] == pytest.approx((3 - 1) * math.sqrt(4) / 2, rel=0.06)
    assert products[-1] < products[-2]


@pytest.mark.parametrize(("loss", "bias"), [("ce", False), ("mse", False), ("mse", True)])
def test_decay_repairs_both(loss, bias):
    """A^T A - F F^T dies as exp(-2 lambda t), and the flow ends at the optimum of `ufm`."""
    flow = Flow(loss, 3, 4, 0.02, 0.02, bias)
    start = random_start(flow, 6, 1.0, seed=0)
    times = [1.0, 10.0, 100.0, 3000.0]
    states = integrate(flow, start, times)
    for time, state in zip(times[:3], states, strict=False):
        expected = features_model.imbalance(start) * math.exp(-2 * 0.02 * time)
        assert features_model.imbalance(state) == pytest.approx(expected, rel=1e-8)
    best = optimum(loss, 3, 4, 6, Decay(0.02, 0.02, 0.0 if bias else None))
    assert features_model.risk(flow, states[-1]) == pytest.approx(best.value, rel=1e-9)
    within, between = features_model.traces(flow, states[-1])
    assert within < 1e-12 * between


# The central path


def whitened(features: np.ndarray) -> np.ndarray:
    """Centred features (3, n, m) times Sigma_W^(-1/2)."""
    features = features - features.mean((0, 1))
    within = (features - features.mean(1, keepdims=True)).reshape(-1, features.shape[2])
    values, vectors = np.linalg.eigh(within.T @ within / len(within))
    return features @ (vectors / np.sqrt(values)) @ vectors.T


def velocity(features: np.ndarray, kind: str) -> np.ndarray:
    """Minus the gradient of the least-squares classifier's loss, by autograd, kept on Sigma_W = I."""
    free = torch.from_numpy(features).requires_grad_()
    flat, means = free.flatten(0, 1), free.mean(1)
    scatter = flat.T @ flat / len(flat)
    (gradient,) = torch.autograd.grad(-torch.trace(means @ torch.linalg.solve(scatter, means.T)) / 18, free)
    step = -(gradient - gradient.mean((0, 1))).numpy()
    within = features - features.mean(1, keepdims=True)
    change = np.einsum("kni,knj->ij", step, within) / len(flat)
    moved = within if kind == "tangent" else features
    return step - moved @ (change + change.T) / 2


def signal(features: np.ndarray) -> np.ndarray:
    """Singular values of the class means of white, centred features."""
    return np.linalg.svd(features.mean(1), compute_uv=False)[:2]


@pytest.mark.parametrize("kind", ["tangent", "whitening"])
def test_singular_values_follow_their_clock_and_become_equal(kind):
    generator = np.random.default_rng(0)
    means = 0.7 * generator.normal(size=(3, 1, 4))
    here = whitened(means + generator.normal(size=(3, 8, 4)))
    omega = signal(here)
    for _ in range(400):  # the classical Runge-Kutta method
        first = velocity(here, kind)
        second = velocity(here + first / 8, kind)
        third = velocity(here + second / 8, kind)
        here = here + (first + 2 * second + 2 * third + velocity(here + third / 4, kind)) / 24
    within = (here - here.mean(1, keepdims=True)).reshape(-1, 4)
    assert within.T @ within / 24 == pytest.approx(np.eye(4), abs=1e-6)
    expected = [central_path.signal_at(value, 100.0, 3, 8, kind) for value in omega]
    assert signal(here) == pytest.approx(np.array(expected), rel=1e-6)
    assert omega[0] / omega[1] > expected[0] / expected[1] > 1


# Locally elastic features


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_rates_and_their_multiplicities(classes):
    alpha, beta = 1.3, -0.4
    values = np.linalg.eigvals(locally_elastic.drift(classes, alpha, beta))
    assert np.abs(values.imag).max() < 1e-12
    first, second = (alpha - beta) / classes, (alpha + beta / (classes - 1)) / classes
    expected = [first] + [second] * (classes - 1) + [0.0] * classes * (classes - 1)
    assert np.sort(values.real) == pytest.approx(np.sort(expected), abs=1e-7)
    rows = locally_elastic.residuals(classes).ravel()
    moved = locally_elastic.drift(classes, alpha, beta) @ rows
    assert moved == pytest.approx(first * rows, abs=1e-12), "the simplex ETF is the single direction"


@pytest.mark.parametrize(("own", "slope"), [(1.0, -0.2), (0.1, -0.175), (-0.1, -0.125)])
def test_the_way_to_an_etf_is_as_fast_as_its_rates_allow(own, slope):
    """By hand from the rates. Red: beta/(K-1) also where that direction decays; a rate without an ETF."""
    assert locally_elastic.etf_slope(4, own, -0.6) == pytest.approx(slope, abs=1e-12)
    assert etf_rate_numerical(4, own, -0.6) == pytest.approx(slope, abs=2e-3)
    for other_than_etf in ((4, -2.0, -0.6), (4, 1.0, 0.3), (2, 1.0, -0.6)):
        with pytest.raises(InputError, match="need at least 3 classes"):
            locally_elastic.etf_slope(*other_than_etf)


def test_separability_needs_an_impact_above_one_over_t():
    """log |f_i - f_j|/sqrt(t), against the equation for the means with impacts that fall."""
    for power, strength, grows in ((0.5, 0.5, True), (1.0, 2.6, True), (1.0, 2.4, False), (1.5, 9.0, False)):
        late = [locally_elastic.log_separation(5, strength, power, time) for time in (1e6, 1e8)]
        assert (late[1] > late[0]) is grows
    difference, time = 1.0, 1.0
    for _ in range(20_000):
        step = time * 1e-4
        middle = difference * (1 + step / 2 * 2.6 / time / 5)
        difference += step * middle * 2.6 / (time + step / 2) / 5
        time += step
    separation = math.log(difference / math.sqrt(time))
    assert separation == pytest.approx(locally_elastic.log_separation(5, 2.6, 1.0, time), abs=1e-5)


# Curves of the models


QUICK = (curves.subspace, curves.two_layers, curves.balance)


@pytest.mark.parametrize("curve", QUICK, ids=lambda curve: curve.__name__)
def test_what_is_found_lies_on_the_formula(curve: Callable[[], Iterator[curves.Point]]) -> None:
    points = pd.DataFrame(curve())
    (panel,) = set(points["panel"])
    assert set(points["series"]) == set(PANELS[panel].series)
    for _, rows in points.groupby("series"):
        closed, numerical = (rows[rows["how"] == how] for how in ("closed", "found"))
        away = np.abs(numerical["x"].to_numpy()[:, None] - closed["x"].to_numpy()).min(1) > 0.01
        expected = np.interp(numerical["x"], closed["x"], closed["y"])
        assert numerical["y"].to_numpy()[~away] == pytest.approx(expected[~away], rel=0.02, abs=0.02)
        assert len(numerical) >= 3


def test_impacts_of_each_power_have_a_series() -> None:
    assert {point.series for point in curves.separability()} == set(PANELS["separability"].series)


def test_the_central_path_starts_at_one_and_ends_in_its_powers() -> None:
    """Red: another start, or omega in place of NC1. NC1 falls as t^-1/2 and as 1/t."""
    points = list(curves.along_central_path())
    for kind, power in (("tangent", -0.5), ("whitening", -1.0)):
        path = [point for point in points if point.series == kind]
        assert 0.9 < path[0].y < 1
        (x, y), (further, lower) = ((point.x, point.y) for point in (path[-5], path[-1]))
        assert np.log(lower / y) / np.log(further / x) == pytest.approx(power, abs=0.03)
