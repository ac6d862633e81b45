"""Numbers of claims about S24's Theorems 6 and 8 and S25's Lemma 4.1 and App. C, each in another way."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from ncpipe.papers.s24 import calls as low_rank
from ncpipe.papers.s24 import dufm, dufm_relaxed
from ncpipe.papers.s24.dufm_numerical import minimise
from ncpipe.papers.s25 import calls as deep
from ncpipe.papers.s25.counterexample import near_collapsed_data
from ncpipe.papers.s25.shifts import shifts
from ncpipe.system.errors import InputError
from ncpipe.theory import gufm


def test_free_columns_end_at_the_closed_optimum_and_collapse() -> None:
    """Red: columns that the model ties, another layer than L, a descent that ends above the optimum."""
    model = dufm.equal_decays(3, 2, 3, 0.01)
    found = minimise(model, 6, starts=2, seed=0, collapsed=False)
    assert found.value == pytest.approx(dufm.dnc_loss(model), rel=1e-9)
    best = found.solutions[0]
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
    found = deep.excess_at_distance(loss, classes, width, strength, distance, 4, 0)
    assert found / distance**2 == pytest.approx(least / 2, rel=0.02)
    assert deep.excess_at_distance(loss, classes, width, strength, 10 * distance, 4, 0) > 50 * found


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


def test_a_depth_without_room_is_one_line() -> None:
    with pytest.raises(InputError, match="deepen it"):
        deep.biases_excess(3, 4, 0.002, 0.005, 5, 0)
