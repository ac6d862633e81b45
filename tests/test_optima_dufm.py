"""DNC and SRG solutions of the deep features model, S24's lemmas, and names of structures of class means."""

import math
from itertools import combinations

import networkx
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
from ncpipe.papers.s24.structure import classes_given_up, dnc_found, ranks, structure
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


@settings(max_examples=30)
@given(models())
def test_built_dnc_has_the_closed_loss(model):
    assert naive_loss(model, dnc_solution(model)) == pytest.approx(dufm.dnc_loss(model), abs=1e-12, rel=1e-12)


@settings(max_examples=30)
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
        level = dufm.least_loss(dufm_shapes.dnc_constants(7), equal_decays(7, 1, depth, strength))
        assert (level.scale > 0) is expected


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


def test_the_gradient_is_autograd_s():
    model = equal_decays(4, 3, 4, 0.02)
    ends = minimise(model, 5, starts=3, seed=0, steps=1, collapsed=False)
    assert [tuple(end.features.shape) for end in ends.solutions] == [(12, 5)] * 3
    matrices = [
        torch.stack(parts)
        for parts in zip(*((end.features, *end.weights) for end in ends.solutions), strict=True)
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
        ends = minimise(model, 6, starts=6, seed=0, steps=3000)
        assert ends.value > dufm.dnc_loss(model) - 1e-12
        means = [matrix.clamp(min=0) for matrix in hidden(ends.solutions[0])[:-1]]
        assert dnc_found(means, ends.value, dufm.dnc_loss(model))


def test_descent_begins_at_the_given_matrices_and_goes_down():
    """Red: matrices in another scale than that of the descent."""
    model = Dufm(6, 4, 0.02, (0.0025, 0.05, 0.002))
    starts = [perturbed(srg_solution(model, width=8), 0.05, seed) for seed in range(2)]
    values = sorted(objective(model, start.features, start.weights) for start in starts)
    assert descend(model, starts, steps=0).values.tolist() == pytest.approx(values, rel=1e-12)
    assert (descend(model, starts, steps=50).values < torch.tensor(values)).all()


# Names of the structures of class means: exact ones, noisy ones, and ones that only look alike


def incidence(graph: networkx.Graph) -> torch.Tensor:
    """Class means (edges, points) whose rows are the edges of a graph."""
    matrix = networkx.incidence_matrix(networkx.convert_node_labels_to_integers(graph)).toarray()
    return torch.from_numpy(matrix.T).double()


def factor(gram: torch.Tensor) -> torch.Tensor:
    """Class means with this Gram matrix."""
    values, vectors = torch.linalg.eigh(gram)
    assert values.min() > -1e-12
    return vectors * values.clamp(min=0).sqrt()


def adjacency(graph: networkx.Graph) -> torch.Tensor:
    return torch.from_numpy(networkx.to_numpy_array(graph))


def last_layer(points: int, minus: int) -> torch.Tensor:
    """Edges (K, R): 1 where both ends are 1, -1 where both are -1, else 0, for all rows of signs."""
    rows = []
    for negative in combinations(range(points), minus):
        sign = [-1 if point in negative else 1 for point in range(points)]
        rows.append([(sign[a] + sign[b]) / 2 for a, b in combinations(range(points), 2)])
    return torch.tensor(rows).double().T


def turned(means: torch.Tensor, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(means.shape[1], means.shape[1], generator=generator, dtype=torch.float64)
    return means @ torch.linalg.qr(draw).Q


def noisy(means: torch.Tensor, size: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    draw = torch.randn(means.shape, generator=generator, dtype=torch.float64)
    return means + size * means.square().mean().sqrt() * draw


@pytest.mark.parametrize("points", [4, 5, 6, 7])
def test_srg_of_any_order_of_classes_and_scale(points):
    order = torch.randperm(points * (points - 1) // 2, generator=torch.Generator().manual_seed(points))
    for minus in range(2, points - 1):
        inner = incidence(networkx.complete_graph(points))[order]
        last = last_layer(points, minus)[order]
        shape = structure(0.3 * inner, 7 * last)
        assert shape.inner == f"T({points})"
        assert shape.last == shape.name == ("SRG" if minus == 2 else f"SRG-{minus}")
        assert structure(noisy(inner, 0.001), noisy(last, 0.001)) == shape
        assert structure(turned(inner), last) == shape, "any axes, as the layer has no ReLU to mind"


def test_dnc():
    eye = torch.eye(7).double()
    shape = structure(2 * turned(eye), eye)
    assert (shape.name, shape.inner, shape.last) == ("DNC", "DNC", "DNC")
    assert structure(noisy(eye, 0.003), noisy(eye, 0.003)).name == "DNC"
    assert structure(eye, turned(eye)).name == "DNC, other last layer", "the ReLU sees the axes"


@pytest.mark.parametrize(
    ("graph", "name"),
    [
        (networkx.complete_bipartite_graph(2, 2), "C_4"),
        (networkx.complete_bipartite_graph(3, 3), "L(K_3,3)"),
        (networkx.complete_bipartite_graph(2, 5), "L(K_2,5)"),
        (networkx.complete_graph(4), "T(4)"),
        (networkx.star_graph(5), "other"),  # all edges meet: no two kinds of pairs
        (networkx.path_graph(6), "other"),
        (networkx.disjoint_union(networkx.complete_graph(4), networkx.complete_graph(4)), "other"),
        (networkx.petersen_graph(), "other"),
    ],
)
def test_incidence_structures(graph, name):
    means = incidence(graph)
    shape = structure(means, torch.eye(len(means)).double())
    assert shape.inner == name
    assert shape.name == (f"{name}, other last layer" if name.startswith("T(") else name)


def test_the_graph_alone_makes_no_srg():
    graph = adjacency(networkx.line_graph(networkx.complete_graph(5)))
    other = 0.1 + 0.9 * torch.eye(10).double() + 0.3 * graph  # 1, .4 and .1 in place of 1, .5 and 0
    edges = list(networkx.line_graph(networkx.complete_graph(5)))
    order = [list(combinations(range(5), 2)).index(tuple(sorted(edge))) for edge in edges]
    last = last_layer(5, 2)[order]
    shape = structure(factor(other), last)
    assert (shape.name, shape.last) == ("other", "other")
    inner = factor(torch.eye(10).double() + graph / 2)
    assert structure(inner, last).name == "SRG"
    for wrong in (turned(last), torch.eye(10).double(), last.flip(0), last.clamp(min=0)):
        assert structure(inner, wrong).name == "T(5), other last layer"
    claw = torch.eye(4).double() + adjacency(networkx.star_graph(3)) / 2  # no line graph
    assert structure(factor(claw), torch.eye(4).double()).name == "other"


def test_unequal_lengths_noise_and_missing_numbers_are_other():
    inner, last = incidence(networkx.complete_graph(5)), last_layer(5, 2)
    longer = inner.clone()
    longer[3] *= 1.01
    assert structure(longer, last).name == "other"
    assert structure(noisy(inner, 0.1), last).name == "other"
    assert structure(torch.zeros(10, 5).double(), torch.zeros(10, 5).double()).name == "other"
    assert structure(torch.full((10, 5), torch.nan), last).name == "other"
    one = torch.ones(4, 1).double()
    assert structure(one, one).name == "other"


def test_ranks_and_dnc_found():
    full, low = torch.eye(5).double(), incidence(networkx.complete_graph(4))[:5]
    assert ranks([full, low, 0 * full]) == [5, 4, 0]
    assert dnc_found([full, full], 0.2001, 0.2)
    assert not dnc_found([full, full], 0.2003, 0.2)
    assert not dnc_found([full, full], 0.1997, 0.2)
    assert not dnc_found([full, low], 0.2, 0.2)


def test_classes_given_up_are_outputs_that_are_zero_everywhere():
    outputs = 0.9 * torch.eye(6)
    assert classes_given_up(outputs) == 0
    outputs[:, 2] = 0
    outputs[:, 4] = 1e-5
    assert classes_given_up(outputs) == 2
    outputs[2, 0] = 0.1
    assert classes_given_up(outputs) == 2, "an output for no class, not a class without outputs"
    merged = torch.eye(6)
    merged[:2, :2] = 0.5
    assert classes_given_up(merged) == 0, "two classes with one output each of a half are not given up"
    assert classes_given_up(torch.zeros(3, 3)) == 3
