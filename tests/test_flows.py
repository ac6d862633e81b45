"""Gradient flows and the locally elastic equations, integrated and in closed form."""

import math

import numpy as np
import pytest
import torch

from ncpipe.papers.k23.flows import central_path, features_model, locally_elastic
from ncpipe.papers.k23.flows.features_model import Flow, State, aligned_start, integrate, random_start
from ncpipe.system.errors import InputError
from ncpipe.theory.ufm import Decay, optimum

SE, MSE = Flow("se", 3, 4, 0.0, 0.0, True), Flow("mse", 3, 4, 0.0, 0.0, True)
CE = Flow("ce", 3, 4, 0.0, 0.0, False)


def linear_solution(flow: Flow, start: State, time: float) -> State:
    """Return the flow linearised at 0, without b [before eq. 19], for `se` and `mse`.

    The part of the start in T = {F = A's rows/sqrt(n), sum 0} grows as exp(sqrt(n) t), its mirror
    image falls at that rate, the common parts change by a factor of at most exp(1/(K sqrt(n))), and the rest
    stays.
    """
    root, own = math.sqrt(flow.per_class), time / flow.samples if flow.loss == "mse" else time
    common = (1 - math.exp(-flow.samples * own)) / (root * flow.classes)
    means = start.features.reshape(flow.classes, flow.per_class, -1).mean(1)
    weight, features = np.zeros_like(start.weight), start.features - np.repeat(means, flow.per_class, axis=0)
    centre = np.eye(flow.classes) - 1 / flow.classes
    for projector, exponent in ((centre, root * own), (np.eye(flow.classes) - centre, common)):
        for sign in (1, -1):
            part = projector @ (start.weight + sign * root * means) / 2  # sign (F) = A's rows/sqrt(n)
            grown = math.exp(sign * exponent) * part
            weight = weight + grown
            features = features + sign * features_model.spread_rows(flow, grown)
    bias = np.full(flow.classes, (1 - math.exp(-flow.samples * own)) / flow.classes)
    return State(weight, features, bias)


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
    for expected, found in zip(torch.autograd.grad(value, free), moved, strict=True):
        assert -expected.numpy() == pytest.approx(found, abs=1e-14)


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


def test_mse_is_se_in_another_time():
    start = random_start(SE, 5, 0.3, seed=0)
    times = [0.2, 1.0, 3.0]
    slow = integrate(MSE, start, [SE.samples * time for time in times])
    for first, second in zip(integrate(SE, start, times), slow, strict=True):
        for one, other in zip(vars(first).values(), vars(second).values(), strict=True):
            assert one == pytest.approx(other, abs=1e-9)


def test_errors_of_strong_collapse_grow_with_the_start_though_the_loss_is_zero():
    """K23's Figure 3: slopes 2, 1, 1 on log axes. No saddle: A^T A - F F^T is conserved, the risk is 0."""
    flow = Flow("se", 3, 3, 0.0, 0.0, True)
    sizes = [1e-3, 1e-2, 1e-1]
    errors = []
    for size in sizes:
        start = random_start(flow, 15, size, seed=0)
        state = integrate(flow, start, [200.0])[-1]
        errors.append(features_model.snc_errors(flow, state))
        assert features_model.risk(flow, state) < 1e-6
        assert features_model.imbalance(state) == pytest.approx(features_model.imbalance(start), rel=1e-6)
    slopes = np.diff(np.log(errors), axis=0) / np.diff(np.log(sizes))[:, None]
    assert slopes == pytest.approx(np.array([[2, 1, 1]] * 2), abs=0.02)


@pytest.mark.parametrize("flow", [SE, MSE])
def test_a_small_start_follows_the_linear_flow(flow):
    slow = flow.samples if flow.loss == "mse" else 1
    start = random_start(flow, 5, 1e-5, seed=2)
    for time in (0.1, 1.0, 3.0):
        linear = linear_solution(flow, start, slow * time)
        exact = integrate(flow, start, [slow * time])[0]
        for one, other in zip(vars(linear).values(), vars(exact).values(), strict=True):
            assert one == pytest.approx(other, abs=1e-8)
    # eq. 19's bound, and that nothing smaller than exp(1/(K sqrt n)) would do
    away, aligned = np.ones((3, 5)), aligned_start(flow, 5, 1.0)
    common = State(2 * away, np.repeat(away, 4, axis=0), np.zeros(3))  # A = sqrt(n) 1 z^T, F = 1 z^T
    grown = linear_solution(flow, common, 5.0 * slow)
    assert np.linalg.norm(grown.weight) / np.linalg.norm(common.weight) == pytest.approx(math.exp(1 / 6))
    assert linear_solution(flow, aligned, slow).weight == pytest.approx(math.exp(2) * aligned.weight)


def test_cross_entropy_goes_to_the_margin_bound_but_not_to_collapse():
    """Below eq. 15. tr Sigma_W freezes, so that NC1 falls only as 1/log t."""
    times = [1e2, 1e4, 1e6, 1e8]
    start = random_start(CE, 6, 1.0, seed=0)
    states = integrate(CE, start, times)
    shares = [features_model.margin_share(CE, state) for state in states]
    assert shares == sorted(shares)
    assert 0.99 < shares[-1] < 1
    within, between = np.array([features_model.traces(CE, state) for state in states]).T
    assert within[-1] == pytest.approx(within[1], rel=0.02)
    products = within / between * np.log(times)
    assert products[2:] == pytest.approx(np.full(2, products[-1]), rel=0.05)
    assert features_model.imbalance(states[-1]) == pytest.approx(features_model.imbalance(start), rel=1e-8)


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


def white_start(classes, per_class, width, seed=0):
    """Return features (N, m) with centre 0 and Sigma_W = I."""
    generator = np.random.default_rng(seed)
    means = 0.7 * generator.normal(size=(classes, width))
    features = np.repeat(means, per_class, axis=0) + generator.normal(size=(classes * per_class, width))
    return whitened(features - features.mean(0), classes)


def parts(features, classes):
    """Return class means for every sample (N, m), deviations from them (N, m), and the means (K, m)."""
    means = features.reshape(classes, -1, features.shape[1]).mean(1)
    spread = np.repeat(means, len(features) // classes, axis=0)
    return spread, features - spread, means


def whitened(features, classes):
    """Return features times Sigma_W^(-1/2)."""
    _, within, _ = parts(features, classes)
    values, vectors = np.linalg.eigh(within.T @ within / len(features))
    return features @ (vectors / np.sqrt(values)) @ vectors.T


def signal(features, classes):
    """Return omega_j (K-1,), descending, of white features."""
    _, _, means = parts(features, classes)
    return np.linalg.svd(means - means.mean(0), compute_uv=False)[: classes - 1]


def downhill(features, classes):
    """Return the loss at the best A and b, by least squares, and minus its gradient, centred."""
    free = torch.from_numpy(features).requires_grad_()
    targets = torch.eye(classes).double().repeat_interleave(len(features) // classes, 0)
    design = torch.cat([free, torch.ones(len(features), 1)], 1)
    left = targets - design @ torch.linalg.lstsq(design, targets).solution
    loss = left.square().sum() / (2 * len(features))
    (gradient,) = torch.autograd.grad(loss, free)
    return loss.item(), -(gradient - gradient.mean(0)).numpy()


def velocity(features, classes, kind):
    """Return the flow of white, centred features (N, m): downhill, projected to Sigma_W = I."""
    spread, within, _ = parts(features, classes)
    _, step = downhill(features, classes)
    change = (step.T @ within + within.T @ step) / len(features)  # of Sigma_W
    return step - (within if kind == "tangent" else within + spread) @ change / 2


def follow(here, classes, kind, time, steps):
    """Integrate the flow of white features (N, m) by the classical Runge-Kutta method."""
    size = time / steps
    for _ in range(steps):
        first = velocity(here, classes, kind)
        second = velocity(here + size / 2 * first, classes, kind)
        third = velocity(here + size / 2 * second, classes, kind)
        fourth = velocity(here + size * third, classes, kind)
        here = here + size / 6 * (first + 2 * second + 2 * third + fourth)
    return here


@pytest.mark.parametrize("kind", ["tangent", "whitening"])
def test_singular_values_follow_their_clock_and_become_equal(kind):
    features = white_start(3, 8, 4)
    omega = signal(features, 3)
    assert downhill(features, 3)[0] == pytest.approx((1 / (3 + omega**2)).sum() / 2, rel=1e-12)
    spreads = [omega[0] / omega[1]]
    for time in (100.0, 1000.0):
        moved = follow(features, 3, kind, time, steps=400)
        _, within, _ = parts(moved, 3)
        assert within.T @ within / 24 == pytest.approx(np.eye(4), abs=1e-6)
        found = signal(moved, 3)
        expected = [central_path.signal_at(value, time, 3, 8, kind) for value in omega]
        assert found == pytest.approx(np.array(expected), rel=1e-6)
        spreads.append(found[0] / found[1])
    assert spreads[0] > spreads[1] > spreads[2] > 1


def test_renormalising_every_step_is_the_whitening_flow():
    """Plain steps along the gradient, each followed by Sigma_W^(-1/2): first order in the step."""
    features = white_start(3, 8, 4)
    exact = signal(follow(features, 3, "whitening", 200.0, steps=400), 3)
    errors = []
    for steps in (50, 100):
        here = features
        for _ in range(steps):
            here = whitened(here + 200.0 / steps * downhill(here, 3)[1], 3)
        errors.append(np.abs(signal(here, 3) - exact).max())
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.3)


@pytest.mark.parametrize(("kind", "slope"), [("tangent", -0.5), ("whitening", -1.0)])
def test_rates_of_collapse_along_the_central_path(kind, slope):
    """NC1 ~ 1/omega^2."""
    late = [central_path.signal_at(1.0, time, 10, 5, kind) ** -2 for time in (1e9, 1e10)]
    assert math.log10(late[1] / late[0]) == pytest.approx(slope, abs=0.01)


# Locally elastic features


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_rates_and_their_multiplicities(classes):
    own, other = 1.3, -0.4
    values = np.linalg.eigvals(locally_elastic.drift(classes, own, other))
    assert np.abs(values.imag).max() < 1e-12
    first, second = (own - other) / classes, (own + other / (classes - 1)) / classes
    expected = [first] + [second] * (classes - 1) + [0.0] * classes * (classes - 1)
    assert np.sort(values.real) == pytest.approx(np.sort(expected), abs=1e-7)
    rows = locally_elastic.residuals(classes).ravel()
    moved = locally_elastic.drift(classes, own, other) @ rows
    assert moved == pytest.approx(first * rows, abs=1e-12), "the simplex ETF is the single direction"


def test_class_means_become_an_etf_for_repulsion_only():
    classes, start = 4, np.random.default_rng(0).normal(size=(4, 4))
    for other in (-0.6, 0.3):
        matrix = locally_elastic.drift(classes, 1.0, other)
        errors = [locally_elastic.etf_error(locally_elastic.means_at(start, matrix, t)) for t in (30.0, 40.0)]
        slope = math.log(errors[1] / errors[0]) / 10
        if other < 0:
            assert slope == pytest.approx(locally_elastic.etf_slope(classes, other), rel=0.02)
        else:
            assert min(1 - other, 1 + 3 * other) > 0, "the condition for separation holds"
            assert errors[1] > 0.5


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
    found = math.log(difference / math.sqrt(time))
    assert found == pytest.approx(locally_elastic.log_separation(5, 2.6, 1.0, time), abs=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Flow("se", 1, 3, 0, 0, True), "1 classes of 3"),
        (lambda: Flow("se", 3, 3, -1, 0, True), "decays -1"),
        (lambda: integrate(SE, aligned_start(SE, 3, 1), []), "rising"),
        (lambda: integrate(SE, aligned_start(SE, 3, 1), [2, 1]), "rising"),
        (lambda: aligned_start(SE, 2, 1), "width: 2 is below 3"),
        (lambda: locally_elastic.drift(1, 1, 0), "classes: 1"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(InputError, match=message):
        call()
