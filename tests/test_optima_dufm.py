"""DNC and SRG solutions of the deep features model, and S24's lemmas, against built matrices."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ncpipe.system.errors import InputError
from ncpipe.theory import dufm, dufm_shapes
from ncpipe.theory.dufm import Dufm, equal_decays
from ncpipe.theory.dufm_shapes import Constants, Shape
from ncpipe.theory.dufm_solutions import (
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

BINOMIALS = (6, 10, 15, 21)


def measured_constants(shape: Shape) -> Constants:
    """Compute the constants of any shape by singular values; B not negative, C in the row space of B."""
    singular = torch.linalg.svdvals(shape.inner)
    matrix = torch.linalg.pinv(shape.inner) @ shape.last  # W^T
    after = shape.last.clamp(min=0)
    return Constants(
        singular.sum().item(),
        int(torch.linalg.matrix_rank(shape.inner)),
        matrix.square().sum().item(),
        torch.linalg.svdvals(shape.last).sum().item(),
        tuple(torch.linalg.eigvalsh(after @ after.T).flip(0).clamp(min=0).tolist()),
        (1,) * len(after),
    )


def small_decay_loss(constants: Constants, model: Dufm) -> float:
    """Return (L+1)/2 (S G Lambda)^(1/(L+1)), S = sum_i 1/m_i, the least loss as Lambda -> 0."""
    pairs = zip(constants.eigenvalues, constants.multiplicities, strict=True)
    log_sum = math.log(sum(count / value for value, count in pairs))
    log_power = log_sum + constants.log_price(model.depth) + model.log_product
    return (model.depth + 1) / 2 * math.exp(log_power / (model.depth + 1))


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


@settings(max_examples=60, deadline=None)
@given(models())
def test_built_dnc_has_the_closed_loss(model):
    assert naive_loss(model, dnc_solution(model)) == pytest.approx(dufm.dnc_loss(model), abs=1e-12, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(models(fewest=6), st.booleans())
def test_built_srg_has_the_closed_loss(model, half):
    """Both constructions, S24's two -1 a row and floor(r/2) of them."""
    minus = dufm_shapes.largest_points(model.classes) // 2 if half else 2
    for build, value in (
        (srg_solution, dufm.srg_loss),
        (srg_with_dnc_solution, dufm.srg_with_dnc_loss),
        (srg_cut_solution, dufm.srg_cut_loss),
    ):
        built = naive_loss(model, build(model, minus))
        assert built == pytest.approx(value(model, minus), abs=1e-12, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(models(fewest=6), st.randoms(use_true_random=False))
def test_least_losses_depend_on_the_product_of_the_decays_only(model, random):
    parts = [random.uniform(-1.5, 1.5) for _ in model.weights]
    other = Dufm(
        model.classes,
        model.per_class + 2,
        model.features * math.exp(-sum(parts)) * model.per_class / (model.per_class + 2),
        tuple(decay * math.exp(part) for decay, part in zip(model.weights, parts, strict=True)),
    )
    for value in (dufm.dnc_loss, dufm.srg_loss):
        assert value(other) == pytest.approx(value(model), rel=1e-10)
    strength = dufm.equal_strength(model)
    assert dufm.dnc_loss(equal_decays(model.classes, 1, model.depth, strength)) == pytest.approx(
        dufm.dnc_loss(model), rel=1e-10
    )


def test_the_objective_is_the_naive_one_for_any_matrices():
    generator = torch.Generator().manual_seed(0)
    model = Dufm(4, 3, 0.2, (0.1, 0.3, 0.05))
    draw = lambda *size: torch.randn(*size, generator=generator, dtype=torch.float64)  # noqa: E731
    solution = Solution(draw(4, 5), (draw(6, 5), draw(7, 6), draw(4, 7)))
    assert objective(model, solution.features, solution.weights) == pytest.approx(naive_loss(model, solution))
    copies = solution.features.repeat_interleave(3, 0)
    assert objective(model, copies, solution.weights) == pytest.approx(naive_loss(model, solution))


@pytest.mark.parametrize("build", [dnc_solution, srg_solution, srg_with_dnc_solution, srg_cut_solution])
@pytest.mark.parametrize("classes", [6, 8, 10, 13])
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


def paper_loss(model: Dufm) -> float:
    """Least value on a grid of S24's L_SRG(q), with n and with Lemma 16 corrected; see docs/low_rank.md."""
    r = round((1 + math.sqrt(1 + 8 * model.classes)) / 2)
    decays, depth = (None, *model.weights), model.depth
    p = math.sqrt(model.per_class * model.features * decays[1])
    p *= math.sqrt(2) + math.sqrt((r - 1) * (r - 2))
    c = (r - 2) * (r - 3) + 2
    q = np.concatenate([[0.0], np.geomspace(1e-6, 1 / (depth * p), 200_001)])
    size = p ** (depth - 2) * 4 * c * q**depth
    size /= r ** (depth - 1) * (r - 1) ** 2 * math.prod(decays[2:depth])
    ridge = model.classes * decays[depth]
    fit = 1 / ((r - 2) ** 2 * (r - 3) ** 2 / (2 * c) * size + ridge)
    fit += (r - 1) / (2 * (r - 3) ** 2 / c * size + ridge)
    fit += r * (r - 3) / 2 / (2 / c * size + ridge)
    return (decays[depth] / 2 * fit + depth / 2 * p * q).min()


@pytest.mark.parametrize("classes", BINOMIALS)
@pytest.mark.parametrize(
    "decays", [(0.004,) * 5, (0.01, 0.002, 0.003, 0.006, 0.001), (0.02, 0.01, 0.004, 0.03)]
)
def test_the_paper_s_function_of_q_has_the_same_minimum(classes, decays):
    model = Dufm(classes, 3, decays[0], decays[1:])
    assert dufm.srg_loss(model) == pytest.approx(paper_loss(model), rel=1e-8)


def test_numbers_known_from_elsewhere():
    model = equal_decays(10, 50, 4, 0.004)
    assert dufm.dnc_loss(model) == pytest.approx(0.214623, abs=5e-7)
    assert dufm.srg_loss(model) == pytest.approx(0.174826, abs=5e-7)
    assert dufm.equal_strength(model) == pytest.approx(0.00875, abs=5e-6)
    assert dufm.srg_loss(equal_decays(15, 50, 4, 0.004), 3) == pytest.approx(0.236664, abs=5e-7)
    assert dufm.srg_loss(equal_decays(21, 50, 4, 0.002), 3) == pytest.approx(0.154401, abs=5e-7)
    assert dufm.srg_loss(equal_decays(21, 50, 4, 0.002), 2) == pytest.approx(0.171417, abs=5e-7)


# Shapes and lemmas


@pytest.mark.parametrize("points", range(4, 12))
def test_constants_of_a_shape_are_those_of_its_matrices(points):
    for minus in {2, points // 2, points - 2}:
        exact = dufm_shapes.srg_constants(points, minus)
        measured = measured_constants(dufm_shapes.srg_shape(points, minus))
        for name in ("inner_nuclear", "inner_rank", "lift", "last_nuclear"):
            assert getattr(measured, name) == pytest.approx(getattr(exact, name), rel=1e-12)
        eigenvalues = np.repeat(exact.eigenvalues, exact.multiplicities)
        assert np.sort(measured.eigenvalues) == pytest.approx(np.sort(eigenvalues), abs=1e-12)


def test_lemma_16_s_first_eigenvalue_is_as_printed_for_two_r_only():
    for r in range(4, 12):
        c = (r - 2) * (r - 3) + 2
        first, second, third = dufm_shapes.srg_constants(r).eigenvalues
        assert second == pytest.approx(2 * (r - 3) ** 2 / c)
        assert third == pytest.approx(2 / c)
        assert first == pytest.approx((r - 2) ** 2 * (r - 3) ** 2 / (2 * c))
        assert (first == pytest.approx((r - 2) * (5 * r - 19) / c)) == (r in (4, 5))


def spread_rows(rows: np.ndarray, size: float, generator: np.random.Generator) -> np.ndarray:
    """Multiples of the rows, any number of each in any order; squares sum to `size` for each row."""
    found = []
    for row in rows:
        shares = generator.uniform(0.1, 1, generator.integers(1, 4))
        found += [math.sqrt(size * share / shares.sum()) * row for share in shares]
    return np.array(found)[generator.permutation(len(found))]


@pytest.mark.parametrize("r", range(4, 9))
def test_lemmas_12_to_16_for_any_multiples_of_the_rows(r):
    generator = np.random.default_rng(r)
    incidence = dufm_shapes.incidence(r).numpy().T  # T_r (r, K)
    before, after = 0.7, 1.9  # alpha_l, alpha_{l+1}
    chosen = spread_rows(np.eye(r), before, generator)  # A_l
    means = chosen @ incidence
    least = np.linalg.pinv(means)
    z = incidence.T @ generator.normal(size=r)
    matrix = np.eye(r) - (3 * r - 4) / (4 * (r - 1) ** 2) * np.ones((r, r))
    printed = (r - 1) ** 2 / (before * (r - 2) ** 2) * (incidence @ z) @ matrix @ (incidence @ z)
    assert np.sum((z @ least) ** 2) == pytest.approx(printed), "Lemma 12"
    following = spread_rows(np.eye(r), after, generator) @ incidence
    assert np.sum((following @ least) ** 2) == pytest.approx(r * after / before), "Lemma 13"
    c = (r - 2) * (r - 3) + 2
    unit = dufm_shapes.srg_shape(r).last.numpy().T
    last = spread_rows(unit, after, generator)
    lemma_14 = after / before * r**2 * (r - 1) ** 2 / (4 * c)
    assert np.sum((last @ least) ** 2) == pytest.approx(lemma_14), "Lemma 14"
    eigenvalues = np.linalg.eigvalsh(means.T @ means)[::-1]
    expected = [2 * before] + [(r - 2) / (r - 1) * before] * (r - 1) + [0] * (r * (r - 3) // 2)
    assert eigenvalues == pytest.approx(np.array(expected), abs=1e-12), "Lemma 15"
    positive = np.maximum(last, 0)
    m1, m2, m3 = (r - 2) ** 2 * (r - 3) ** 2 / (2 * c), 2 * (r - 3) ** 2 / c, 2 / c
    expected = sorted([m1] + [m2] * (r - 1) + [m3] * (r * (r - 3) // 2))
    assert np.linalg.eigvalsh(positive.T @ positive) == pytest.approx(after * np.array(expected)), "Lemma 16"


def test_lemma_17_counts_the_zeros_too():
    generator = np.random.default_rng(0)
    decay, classes = 0.03, 5
    means = generator.normal(size=(8, 3)) @ generator.normal(size=(3, classes))  # rank 3
    ridge = means @ means.T + classes * decay * np.eye(8)
    weight = means.T @ np.linalg.inv(ridge)
    value = np.sum((weight @ means - np.eye(classes)) ** 2) / (2 * classes) + decay / 2 * np.sum(weight**2)
    singular = np.linalg.svd(means, compute_uv=False)
    assert value == pytest.approx(decay / 2 * np.sum(1 / (singular**2 + classes * decay)))
    for _ in range(20):
        moved = weight + 1e-3 * generator.normal(size=weight.shape)
        error = np.sum((moved @ means - np.eye(classes)) ** 2) / (2 * classes)
        assert error + decay / 2 * np.sum(moved**2) > value


def test_lemma_18_is_a_lower_bound_that_the_first_layer_attains():
    model = Dufm(10, 4, 0.01, (0.003, 0.002, 0.004))
    solution = srg_solution(model)
    _, first, *_, features = losses(model, solution.features, solution.weights)
    product = layers(solution.features, solution.weights)[0]
    nuclear = torch.linalg.matrix_norm(product, "nuc").item()
    bound = math.sqrt(4 * 0.01 * 0.003) * nuclear
    assert first + features == pytest.approx(bound, rel=1e-12)
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        turn = torch.randn(5, 5, generator=generator, dtype=torch.float64)
        a, b = solution.weights[0] @ turn, torch.linalg.solve(turn, solution.features.T)
        assert torch.allclose((a @ b).T, product)
        assert 0.003 / 2 * a.square().sum() + 4 * 0.01 / 2 * b.square().sum() > bound


# Theorems


@pytest.mark.parametrize("depth", [3, 4, 5, 7])
def test_theorem_5_on_a_grid_and_where_it_fails(depth):
    """SRG is lower from K = 10 on for L = 3, from K = 6 on for more layers; at L = 3 not for K = 6, 7."""
    for classes in (*range(6, 20), 28, 40):
        for share in (1e-9, 1e-4, 0.1, 0.5, 0.9, 0.999):
            strength = (share * dufm.dnc_threshold(classes, depth)) ** (1 / (depth + 1))
            ratio = dufm.srg_over_dnc(equal_decays(classes, 1, depth, strength))
            if depth > 3 or classes >= 9:
                assert ratio < 1
            elif classes <= 7:
                assert ratio > 1
    assert dufm.small_decay_ratio(4, 3) == pytest.approx(1.0561, abs=5e-5)


def test_theorem_5_s_ratio_is_1_where_decay_leaves_only_zeros():
    assert dufm.srg_over_dnc(equal_decays(10, 1, 4, 0.5)) == 1.0


def test_with_two_layers_dnc_is_not_always_the_optimum():
    """S24 says it is, for L = 2. |C|_* = 7 < 8 = |max(C, 0)|_* at r = 5: ReLU can raise the nuclear norm."""
    constants = dufm_shapes.srg_constants(5)
    after = zip(constants.eigenvalues, constants.multiplicities, strict=True)
    assert constants.last_nuclear == pytest.approx(7)
    assert sum(count * math.sqrt(value) for value, count in after) == pytest.approx(8)
    model = equal_decays(10, 3, 2, (0.95 * dufm.dnc_threshold(10, 2) / 3) ** (1 / 3))
    assert naive_loss(model, srg_solution(model)) == pytest.approx(0.4821, abs=1e-4)
    assert naive_loss(model, dnc_solution(model)) == pytest.approx(0.4936, abs=1e-4)
    weak = equal_decays(15, 3, 2, 1e-4)
    assert naive_loss(weak, srg_solution(weak, 3)) < 0.99 * naive_loss(weak, dnc_solution(weak))
    assert dufm.small_decay_ratio(6, 2, 3) == pytest.approx(0.9875, abs=5e-5)
    assert dufm.small_decay_ratio(5, 2) > 1.06, "SRG itself only for strong decay"


@pytest.mark.parametrize("depth", [3, 4, 5, 8])
def test_the_ratio_for_small_decay_and_its_slope_in_the_classes(depth):
    for points in (4, 6):
        classes = points * (points - 1) // 2
        ratios = []
        for share in (1e-6, 1e-9, 1e-12):
            strength = (share * dufm.dnc_threshold(classes, depth)) ** (1 / (depth + 1))
            model = equal_decays(classes, 1, depth, strength)
            ratios.append(dufm.srg_over_dnc(model))
            limit = small_decay_loss(dufm_shapes.dnc_constants(classes), model)
            assert limit == pytest.approx((depth + 1) / 2 * classes * strength)
        errors = np.abs(np.array(ratios) - dufm.small_decay_ratio(points, depth))
        assert errors[2] < 2e-3
        assert errors[2] <= errors[1] <= errors[0]
    points = np.array([1000, 4000])
    rho = [dufm.small_decay_ratio(int(r), depth) for r in points]
    slope = np.diff(np.log(rho)) / np.diff(np.log(points * (points - 1) / 2))
    assert slope[0] == pytest.approx((3 - depth) / (2 * (depth + 1)), abs=2e-3)


def test_three_layers_gain_nothing_for_many_classes():
    """rho at L = 3 is least at K = 10 and then rises to 1: no large gap for large K."""
    rho = [dufm.small_decay_ratio(r, 3) for r in range(5, 200)]
    assert rho[0] == pytest.approx(0.9234, abs=5e-5)
    assert rho == sorted(rho)
    assert 0.99 < rho[-1] < 1


@pytest.mark.parametrize("depth", [2, 3, 4, 6])
def test_the_threshold_of_decay(depth):
    """Just below it DNC beats zeros, just above it does not."""
    for share, expected in ((1 - 1e-6, True), (1 + 1e-6, False)):
        strength = (share * dufm.dnc_threshold(7, depth)) ** (1 / (depth + 1))
        found = dufm.least_loss(dufm_shapes.dnc_constants(7), equal_decays(7, 1, depth, strength))
        assert (found.scale > 0) is expected


def test_srg_can_stand_where_dnc_has_collapsed_to_zero():
    strength = (2 * dufm.dnc_threshold(10, 4)) ** 0.2
    model = equal_decays(10, 1, 4, strength)
    assert dufm.dnc_loss(model) == 0.5
    assert dufm.srg_loss(model) < 0.47


def test_the_smaller_problem_s_second_construction_is_below_the_larger_one_and_may_exceed_dnc():
    for classes in (7, 8, 9, 11, 14, 20):
        model = equal_decays(classes, 50, 4, 0.003)
        larger, _ = dufm.larger_model(model)
        assert dufm.srg_cut_loss(model) < dufm.srg_loss(larger)
        assert dufm.srg_with_dnc_loss(model) < dufm.dnc_loss(model)
    model = equal_decays(7, 50, 4, 0.004)
    assert dufm.srg_cut_loss(model) > dufm.dnc_loss(model) > dufm.srg_loss(model)


@pytest.mark.parametrize("depth", [2, 3, 4, 6])
def test_half_of_the_signs_pay_most_from_15_classes_on(depth):
    for points in (6, 7, 8, 9, 12):
        model = equal_decays(points * (points - 1) // 2, 50, depth, 1e-4)
        values = {minus: dufm.srg_loss(model, minus) for minus in range(2, points - 1)}
        assert min(values, key=values.__getitem__) == points // 2


@pytest.mark.parametrize("depth", [2, 3, 4, 5, 8])
def test_half_of_the_signs_gain_a_further_power_of_the_classes(depth):
    """Slope of log rho on log K: (1 - L)/(2(L + 1)), S24's less 1/(L + 1). So L = 3 gains too, and L = 2."""
    rho = np.array([dufm.small_decay_ratio(r, depth, r // 2) for r in (256, 512)])
    exact = (1 - depth) / (2 * (depth + 1))
    slope = np.diff(np.log(rho)) / math.log(512 * 511 / (256 * 255))
    assert slope[0] == pytest.approx(exact, abs=4e-3)


def test_with_two_layers_opposite_pairs_are_as_good_as_orthogonal_class_means():
    """DNC is not the only optimum before the ReLU at L = 2: |C|_* = K for blocks (1, -1; -1, 1), rank K/2."""
    pair = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).double()
    shape = dufm_shapes.Shape(torch.eye(6).double(), torch.block_diag(pair, pair, pair))
    model = equal_decays(6, 4, 2, 0.01)
    found = dufm.least_loss(measured_constants(shape), model)
    assert found.value == pytest.approx(dufm.dnc_loss(model), rel=1e-12)
    assert torch.linalg.matrix_rank(shape.last) == 3
    deeper = equal_decays(6, 4, 3, 0.01)
    assert dufm.least_loss(measured_constants(shape), deeper).value > dufm.dnc_loss(deeper)


# Input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Dufm(1, 5, 0.1, (0.1, 0.1)), "1 classes of 5"),
        (lambda: Dufm(3, 0, 0.1, (0.1, 0.1)), "3 classes of 0"),
        (lambda: Dufm(3, 5, 0.1, (0.1,)), "weights: 1 decays"),
        (lambda: Dufm(3, 5, 0.0, (0.1, 0.1)), "must be positive"),
        (lambda: Dufm(3, 5, 0.1, (0.1, math.nan)), "must be positive"),
        (lambda: dufm.srg_loss(equal_decays(5, 5, 4, 0.1)), "from 6 classes on"),
        (lambda: dufm_shapes.srg_constants(3), "r: 3"),
        (lambda: dufm_shapes.srg_shape(5, 4), "minus: 4; expected 2 to r - 2 = 3"),
        (lambda: dnc_solution(equal_decays(6, 5, 4, 1e-3), width=5), "width: 5 is below 6"),
        (lambda: objective(equal_decays(2, 3, 2, 0.1), torch.ones(4, 2), []), "features of 4 samples"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_perturbed_solutions_are_reproducible_and_near():
    solution = dnc_solution(equal_decays(6, 5, 3, 1e-3))
    first, again, other = (perturbed(solution, 0.1, seed) for seed in (1, 1, 2))
    assert torch.equal(first.features, again.features)
    assert not torch.equal(first.features, other.features)
    distance = (first.weights[0] - solution.weights[0]).norm() / solution.weights[0].norm()
    assert 0.05 < distance < 0.2
