"""Direct minimisation of the deep features model, against closed losses and autograd."""

import numpy as np
import pytest
import torch

from ncpipe.metrics.collapse import nc1_trace_ratio
from ncpipe.metrics.statistics import class_statistics
from ncpipe.metrics.structure import classes_given_up, dnc_found, ranks, structure
from ncpipe.papers.s24 import dufm_numerical
from ncpipe.papers.s24.dufm_numerical import descend, minimise
from ncpipe.system.errors import InputError
from ncpipe.theory import dufm
from ncpipe.theory.dufm import Dufm, equal_decays
from ncpipe.theory.dufm_solutions import dnc_solution, layers, objective, perturbed, srg_solution


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
    dufm_numerical.gradient_into(matrices, written, targets)
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


def test_four_classes_find_the_square():
    model = equal_decays(4, 50, 4, 0.004)
    found = minimise(model, 10, starts=2, seed=88, steps=3000)
    assert found.value == pytest.approx(0.08437, abs=5e-6)
    *_, inner, last, outputs = hidden(found.solutions[0])
    assert structure(inner.clamp(min=0), last).name == "C_4"
    assert ranks([inner, last, last.clamp(min=0)]) == [3, 3, 4]
    assert classes_given_up(outputs) == 0


def test_three_layers_and_six_classes_end_at_dnc_whose_first_layer_is_free_before_its_relu():
    """M_2 is orthogonal, and pre-activations below 0 cost nothing: (1, -t; -t, 1) has one nuclear norm."""
    model = equal_decays(6, 50, 3, 0.004)
    found = minimise(model, 10, starts=3, seed=0, steps=3000)
    assert found.value == pytest.approx(dufm.dnc_loss(model), abs=1e-5)
    assert name(found.solutions[0]) == "DNC"
    before = hidden(found.solutions[0])[0]
    assert before.clamp(max=0).norm() > 0.1 * before.norm()


def test_two_layers_and_many_classes_go_below_dnc():
    model = equal_decays(10, 1, 2, (0.95 * dufm.dnc_threshold(10, 2)) ** (1 / 3))
    found = minimise(model, 24, starts=4, seed=0, steps=1000)
    assert found.value < dufm.dnc_loss(model) - 0.002


def test_free_samples_of_a_class_collapse_in_the_last_layer():
    """Theorem 6, on the best of several starts with 3 free columns a class."""
    model = equal_decays(3, 3, 3, 0.01)
    found = minimise(model, 8, starts=8, seed=0, steps=2000, collapsed=False)
    end = found.solutions[0]
    labels = torch.arange(3).repeat_interleave(3)
    for features in hidden(end)[:-1]:
        assert nc1_trace_ratio(class_statistics(features.clamp(min=0), labels, 3)) < 1e-12
    assert found.value == pytest.approx(dufm.dnc_loss(model), abs=1e-8)
    assert found.values[-1] > found.value + 0.01, "there are local minima that have not collapsed"


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


def test_dnc_is_a_local_minimum_too():
    model = equal_decays(10, 50, 4, 0.004)
    dnc = dnc_solution(model, width=16)
    found = descend(model, [perturbed(dnc, 0.2, seed) for seed in range(2)], steps=600, rate=0.005)
    assert found.values.numpy() == pytest.approx([dufm.dnc_loss(model)] * 2, abs=1e-6)


def test_mistakes_are_one_line():
    model = equal_decays(4, 2, 3, 0.01)
    with pytest.raises(InputError, match="starts 0, width 5"):
        minimise(model, 5, starts=0, seed=0)
    with pytest.raises(InputError, match="width 0"):
        minimise(model, 0, starts=1, seed=0)
    starts = [dnc_solution(model, width=5), dnc_solution(model, width=6)]
    with pytest.raises(InputError, match="widen solutions to one width"):
        descend(model, starts)
    assert np.isfinite(descend(model, starts[:1], steps=3).value)
