"""DNC and SRG solutions of the deep features model, and S24's lemmas, against built matrices."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ncpipe.papers.s24 import dufm, dufm_shapes
from ncpipe.papers.s24.dufm import Dufm, equal_decays
from ncpipe.papers.s24.dufm_numerical import descend, gradient_into, minimise
from ncpipe.papers.s24.dufm_relaxed import relaxed_relu, within_class_bound
from ncpipe.papers.s24.dufm_solutions import (
    Solution,
    dnc_solution,
    layers,
    losses,
    objective,
    perturbed,
    srg_cut_solution,
    srg_solution,
    srg_with_dnc_solution,
)
from ncpipe.papers.s24.structure import dnc_found, structure
from ncpipe.system.errors import InputError


def naive_loss(model: Dufm, solution: Solution) -> float:
    """S24's eq. 1 as it is printed, with n columns a class, in NumPy."""
    hidden = np.repeat(solution.features.numpy().T, model.per_class, axis=1)
    value = model.features / 2 * (hidden**2).sum()
    for layer, (decay, weight) in enumerate(zip(model.weights, solution.weights, strict=True), 1):
        value += decay / 2 * (weight.numpy() ** 2).sum()
        hidden = weight.numpy() @ (hidden if layer == 1 else np.maximum(hidden, 0))
    targets = np.kron(np.eye(model.classes), np.ones((1, model.per_class)))
    return value + ((hidden - targets) ** 2).sum() / (2 * model.classes * model.per_class)


@st.composite
def models(draw, fewest=2):
    """Any sizes and unequal decays; Lambda from far below the threshold of DNC to above it."""
    count, depth, per_class = (draw(st.integers(*ends)) for ends in ((fewest, 23), (2, 7), (1, 6)))
    parts = [draw(st.floats(-2, 2)) for _ in range(depth + 1)]
    share = draw(st.floats(-9, 1.0))
    goal = math.log(dufm.dnc_threshold(count, depth) / per_class) + share * math.log(10)
    decays = [math.exp(part - sum(parts) / len(parts) + goal / len(parts)) for part in parts]
    return Dufm(count, per_class, decays[0], tuple(decays[1:]))


@settings(max_examples=30, deadline=None)
@given(models())
def test_built_dnc_has_the_closed_loss(model):
    assert naive_loss(model, dnc_solution(model)) == pytest.approx(dufm.dnc_loss(model), abs=1e-12, rel=1e-12)


@settings(max_examples=30, deadline=None)
@given(models(fewest=6), st.integers(0, 4))
def test_built_srg_has_the_closed_loss(model, more):
    """Both constructions, with any number of -1 a row that both have room for."""
    minus = 2 + more % (dufm_shapes.largest_points(model.classes) - 3)
    for build, value in (
        (srg_solution, dufm.srg_loss),
        (srg_with_dnc_solution, dufm.srg_with_dnc_loss),
        (srg_cut_solution, dufm.srg_cut_loss),
    ):
        built = naive_loss(model, build(model, minus))
        assert built == pytest.approx(value(model, minus), abs=1e-12, rel=1e-12)


def test_the_objective_is_the_naive_one_for_any_matrices():
    generator = torch.Generator().manual_seed(0)
    model = Dufm(4, 3, 0.2, (0.1, 0.3, 0.05))
    draw = lambda *size: torch.randn(*size, generator=generator, dtype=torch.float64)  # noqa: E731
    solution = Solution(draw(4, 5), (draw(6, 5), draw(7, 6), draw(4, 7)))
    assert objective(model, solution.features, solution.weights) == pytest.approx(naive_loss(model, solution))
    copies = solution.features.repeat_interleave(3, 0)
    assert objective(model, copies, solution.weights) == pytest.approx(naive_loss(model, solution))


@pytest.mark.parametrize("build", [dnc_solution, srg_solution, srg_with_dnc_solution, srg_cut_solution])
@pytest.mark.parametrize("classes", [8, 10])
def test_solutions_are_stationary_in_scale_and_wider_layers_change_nothing(build, classes):
    model = Dufm(classes, 5, 0.003, (0.001, 0.006, 0.002, 0.004))
    solution = build(model)
    wide = build(model, width=20)
    assert wide.features.shape == (classes, 20)
    assert [tuple(weight.shape) for weight in wide.weights] == [(20, 20)] * 3 + [(classes, 20)]
    assert naive_loss(model, wide) == pytest.approx(naive_loss(model, solution), rel=1e-14)
    for before, after in zip(layers(wide.features, wide.weights)[:-2], solution.weights[1:], strict=False):
        assert (before >= -1e-14).all(), "the inner layers are not negative"
        assert after.norm() > 0


def test_all_penalties_are_equal_and_zero_is_a_solution_for_strong_decay():
    model = Dufm(10, 50, 0.004, (0.002, 0.003, 0.009, 0.004))
    for build in (dnc_solution, srg_solution):
        _, *penalties = losses(model, *vars(build(model)).values())
        assert penalties == pytest.approx([penalties[0]] * 5, rel=1e-12)
    for value, build in ((dufm.dnc_loss, dnc_solution), (dufm.srg_loss, srg_solution)):
        strong = equal_decays(10, 50, 4, 0.1)
        assert value(strong) == 0.5
        assert not any(bool(matrix.any()) for matrix in (build(strong).features, *build(strong).weights))


# Theorems


@pytest.mark.parametrize("depth", [3, 4, 7])
def test_theorem_5_on_a_grid_and_where_it_fails(depth):
    """SRG is lower from K = 10 on for L = 3, from K = 6 on for more layers; at L = 3 not for K = 6, 7."""
    for classes in (6, 7, 9, 10, 12, 15, 28):
        for share in (1e-9, 1e-4, 0.1, 0.5, 0.9, 0.999):
            strength = (share * dufm.dnc_threshold(classes, depth)) ** (1 / (depth + 1))
            ratio = dufm.srg_over_dnc(equal_decays(classes, 1, depth, strength))
            if depth > 3 or classes >= 9:
                assert ratio < 1
            elif classes <= 7:
                assert ratio > 1
    assert dufm.small_decay_ratio(4, 3) == pytest.approx(1.0561, abs=5e-5)


@pytest.mark.parametrize("depth", [3, 4, 5, 8])
def test_the_ratio_for_small_decay_and_its_slope_in_the_classes(depth):
    for points in (4, 6):
        classes = points * (points - 1) // 2
        ratios = []
        for share in (1e-6, 1e-9, 1e-12):
            strength = (share * dufm.dnc_threshold(classes, depth)) ** (1 / (depth + 1))
            model = equal_decays(classes, 1, depth, strength)
            ratios.append(dufm.srg_over_dnc(model))
        errors = np.abs(np.array(ratios) - dufm.small_decay_ratio(points, depth))
        assert errors[2] < 2e-3
        assert errors[2] <= errors[1] <= errors[0]
    points = np.array([1000, 4000])
    rho = [dufm.small_decay_ratio(int(r), depth) for r in points]
    slope = np.diff(np.log(rho)) / np.diff(np.log(points * (points - 1) / 2))
    assert slope[0] == pytest.approx((3 - depth) / (2 * (depth + 1)), abs=2e-3)


@pytest.mark.parametrize("depth", [2, 3, 4, 6])
def test_the_threshold_of_decay(depth):
    """Just below it deep neural collapse beats zeros, just above it does not."""
    for share, expected in ((1 - 1e-6, True), (1 + 1e-6, False)):
        strength = (share * dufm.dnc_threshold(7, depth)) ** (1 / (depth + 1))
        found = dufm.least_loss(dufm_shapes.dnc_constants(7), equal_decays(7, 1, depth, strength))
        assert (found.scale > 0) is expected


# Smoothed ReLU


def test_the_smoothed_relu_is_one_of_definition_7():
    inputs = torch.linspace(-1, 2, 3001, dtype=torch.float64, requires_grad=True)
    outputs = relaxed_relu(inputs, 0.5)
    inside = (inputs > 0) & (inputs < 0.5)
    assert torch.equal(outputs[~inside], inputs[~inside].clamp(min=0))
    assert (outputs[inside] > 0).all()
    assert (outputs[inside] < inputs[inside]).all()
    (slopes,) = torch.autograd.grad(outputs.sum(), inputs)
    assert (slopes[inside] > 0).all()
    assert slopes.max() == pytest.approx(4 / 3, abs=1e-5)
    assert slopes.diff().abs().max() < 0.01, "continuously differentiable"


def test_theorem_8_s_bound_as_printed():
    model = equal_decays(10, 50, 4, 0.004)
    expected = 6 * math.sqrt(30 * 5) / (5**5 * 0.004**5 * math.sqrt(50))
    assert within_class_bound(model, 30, 1.0) == pytest.approx(expected, rel=1e-12)
    assert within_class_bound(model, 30, 1e-9) > 3, "no information at any practical epsilon"
    with pytest.raises(InputError, match=r"at most 1/\(L \+ 1\) = 0.2"):
        within_class_bound(equal_decays(10, 50, 4, 0.3), 30, 1.0)


# Direct minimisation


def hidden(solution):
    return layers(solution.features, solution.weights)


def name(solution):
    *_, inner, last, _ = hidden(solution)
    return structure(inner.clamp(min=0), last).name


def test_the_gradient_is_autograd_s():
    model = equal_decays(4, 3, 4, 0.02)
    found = minimise(model, 5, starts=3, seed=0, steps=1, collapsed=False)
    assert [tuple(end.features.shape) for end in found.solutions] == [(12, 5)] * 3
    matrices = [
        torch.stack(parts)
        for parts in zip(*((end.features, *end.weights) for end in found.solutions), strict=True)
    ]
    targets = torch.eye(4).double().repeat_interleave(3, 0)
    written = [torch.zeros_like(matrix) for matrix in matrices]
    gradient_into(matrices, written, targets)
    for start in range(3):
        free = [matrix[start].clone().requires_grad_() for matrix in matrices]
        error = (layers(free[0], free[1:])[-1] - targets).square().sum() / (2 * 12)
        for expected, slopes in zip(torch.autograd.grad(error, free), written, strict=True):
            assert torch.allclose(expected, slopes[start], rtol=1e-12, atol=1e-15)


def test_unequal_decays_give_the_same_losses_in_the_model_s_own_scale():
    """Start j does not depend on the others, nor the losses on how Lambda is made up."""
    equal = equal_decays(4, 2, 3, 0.01)
    unequal = Dufm(4, 4, 0.02, (0.0025, 0.05, 0.002))
    assert unequal.log_product == pytest.approx(equal.log_product)
    first = minimise(equal, 6, starts=3, seed=5, steps=200)
    second = minimise(unequal, 6, starts=3, seed=5, steps=200)
    assert torch.allclose(first.values, second.values, rtol=1e-9)
    assert first.values[0] == min(first.values)
    for end, value in zip(second.solutions, second.values, strict=True):
        assert objective(unequal, end.features, end.weights) == value
    alone = minimise(equal, 6, starts=1, seed=6, steps=200)
    assert (first.values - alone.values).abs().min() < 1e-12
    again = minimise(equal, 6, starts=3, seed=5, steps=200)
    assert torch.equal(first.values, again.values)
    assert torch.equal(first.solutions[0].features, again.solutions[0].features)


def test_two_classes_end_at_dnc_and_never_below():
    """The one case in which DNC is the optimum for every depth."""
    for depth in (2, 3, 4):
        model = equal_decays(2, 10, depth, 0.003)
        found = minimise(model, 6, starts=6, seed=0, steps=3000)
        assert found.value > dufm.dnc_loss(model) - 1e-12
        means = [matrix.clamp(min=0) for matrix in hidden(found.solutions[0])[:-1]]
        assert dnc_found(means, found.value, dufm.dnc_loss(model))


def test_srg_is_where_descent_returns_to_for_10_classes_and_not_for_6_or_15():
    for classes, width in ((10, 12), (6, 10), (15, 18)):
        model = equal_decays(classes, 50, 4, 0.004)
        level, srg = dufm.srg_loss(model), srg_solution(model, width=width)
        starts = [perturbed(srg, 0.05, seed) for seed in range(3)]
        assert min(objective(model, start.features, start.weights) for start in starts) > level + 1e-4
        found = descend(model, starts, steps=600, rate=0.005)
        names = [name(end) for end in found.solutions]
        if classes == 10:
            assert found.values.numpy() == pytest.approx([level] * 3, abs=3e-6)
            assert (found.values > level).all()
            assert names == ["SRG"] * 3
        else:
            assert (found.values < level - 3e-4).all()
            assert "SRG" not in names
