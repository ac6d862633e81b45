"""Optima of K23's other features models, in closed form against direct minimisation."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from ncpipe.metrics.geometry import nc2_etf
from ncpipe.metrics.loss_functions import LOSSES
from ncpipe.papers.k23 import batch_norm, imbalance, orthoplex, supcon, two_linear
from ncpipe.papers.k23.imbalance import Classes
from ncpipe.system.errors import InputError
from ncpipe.theory import smoothing
from ncpipe.theory.numerical import minimise_gufm, minimise_ufm
from ncpipe.theory.ufm import Decay, kappa
from ncpipe.theory.ufm import optimum as ufm_optimum


def least(objective, size, starts, scale=1.0):
    """Lowest end of L-BFGS from normal starts, and its point; `objective` takes and gives tensors."""

    def evaluate(values):
        flat = torch.from_numpy(values).requires_grad_()
        value = objective(flat)
        (gradient,) = torch.autograd.grad(value, flat)
        return value.item(), gradient.numpy()

    generator = np.random.default_rng(0)
    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 0.0, "gtol": 1e-9}
    ends = [
        minimize(evaluate, scale * generator.normal(size=size), jac=True, method="L-BFGS-B", options=options)
        for _ in range(starts)
    ]
    best = min(ends, key=lambda end: end.fun)
    return best.fun, torch.from_numpy(best.x)


# Imbalance


def minority_contrast(loss, classes, decay):
    sizes = [classes.ratio * classes.minority] * classes.majorities + [classes.minority] * classes.minorities
    count = len(sizes)
    found = minimise_ufm(
        LOSSES[loss],
        torch.eye(count),
        torch.tensor(sizes, dtype=torch.float64),
        count,
        Decay(decay, decay, None if loss == "ce" else 0.0),
        starts=2,
        seed=0,
    )
    rows = found.weight[classes.majorities :]
    return ((rows - rows.mean(0)).norm() / found.weight.norm()).item()


@pytest.mark.parametrize("loss", ["ce", "mse"])
def test_minorities_collapse_exactly_from_the_threshold_on(loss):
    classes = Classes(2, 3, minority=4, ratio=5.0)
    edge = imbalance.minority_threshold(classes)
    assert imbalance.largest_ratio(2, 3, 4, edge) == pytest.approx(5.0)
    assert minority_contrast(loss, classes, 0.9 * edge) > 0.05
    assert minority_contrast(loss, classes, 1.05 * edge) < 1e-5


def test_the_ratio_rises_with_weaker_decay_and_with_fewer_minorities():
    decays = [imbalance.largest_ratio(5, 5, 5, decay) for decay in (0.001, 0.003, 0.01)]
    assert decays == sorted(decays, reverse=True)
    counts = [imbalance.largest_ratio(10 - k, k, 5, 0.001) for k in (2, 5, 8)]
    assert counts == sorted(counts), "K fixed: more minorities, fewer majorities to outweigh them"


# Contrast


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_the_contrastive_optimum_is_a_collapsed_simplex(include_self, temperature):
    classes, per_class = 3, 3

    def objective(flat):
        rows = flat.view(9, 4)
        unit = rows / rows.norm(dim=1, keepdim=True)
        return supcon.supcon_loss(unit, classes, temperature, include_self=include_self)

    value, flat = least(objective, 36, starts=2)
    exact = supcon.supcon_optimum(classes, per_class, temperature, include_self=include_self)
    assert value == pytest.approx(exact, abs=1e-9)
    unit = flat.view(9, 4) / flat.view(9, 4).norm(dim=1, keepdim=True)
    assert (unit.view(3, 3, 4) - unit.view(3, 3, 4)[:, :1]).abs().max() < 1e-4
    assert nc2_etf(unit[::3]) < 1e-4


@pytest.mark.parametrize("include_self", [True, False])
def test_the_contrastive_loss_is_its_sums(include_self):
    features = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    total = 0.0
    for i in range(6):
        others = [j for j in range(6) if include_self or j != i]
        norm = sum(math.exp(features[i] @ features[j] / 0.7) for j in others)
        mates = [j for j in others if j // 2 == i // 2]
        total -= (
            sum(math.log(math.exp(features[i] @ features[j] / 0.7) / norm) for j in mates) / len(mates) / 6
        )
    assert supcon.supcon_loss(features, 3, 0.7, include_self=include_self) == pytest.approx(total)


# Two linear layers


@pytest.mark.parametrize("factor", [0.3, 0.95, 1.05])
def test_two_linear_layers_have_an_orthogonal_frame_or_nothing(factor):
    classes, per_class, width = 3, 4, 3
    decays = {"second": 0.02, "first": 0.05, "features": 0.01}
    c = two_linear.strength(classes, per_class, *decays.values())
    decays = {name: decay * factor * two_linear.JUMP / c for name, decay in decays.items()}
    found = two_linear.optimum(classes, per_class, width, **decays)

    def parts(second, first, features):
        fit = (features @ first.T @ second.T - torch.eye(3).double()).square().sum() / 6
        penalty = decays["second"] * second.square().sum() + decays["first"] * first.square().sum()
        return fit + (penalty + per_class * decays["features"] * features.square().sum()) / 2

    assert parts(found.second, found.first, found.features).item() == pytest.approx(found.value, rel=1e-13)
    value, _ = least(lambda flat: parts(*flat.view(3, 3, 3)), 27, starts=6)
    assert value >= found.value - 1e-10
    assert value == pytest.approx(found.value, abs=1e-8)
    assert (found.logit > 0.5) == (factor < 1)
    assert (found.logit == 0) == (factor > 1)


def test_the_logit_of_two_linear_layers_jumps_from_a_half_to_zero():
    assert two_linear.best_logit(two_linear.JUMP * (1 - 1e-9)) == pytest.approx(0.5, abs=1e-3)
    assert two_linear.best_logit(two_linear.JUMP) == 0
    for c in (0.1, 0.3, 0.39, 0.4, 0.5):
        z = np.linspace(0, 1, 100_001)
        values = (z - 1) ** 2 / 2 + 1.5 * c * z ** (2 / 3)
        assert z[values.argmin()] == pytest.approx(two_linear.best_logit(c), abs=2e-5)


# Batch normalisation


@pytest.mark.parametrize("decay", [0.2, 1.0, 3.0])
def test_batch_normalised_features_are_the_targets(decay):
    classes, per_class = 3, 4
    exact, point = batch_norm.optimum(classes, per_class, decay)
    assert batch_norm.objective(classes, decay, point).item() == pytest.approx(exact, rel=1e-14)
    if decay < 2:
        whole = batch_norm.normalised(point.features, point.scale, point.shift)
        share = math.sqrt(math.sqrt(per_class) - decay) / math.sqrt(per_class)
        assert torch.allclose(whole, share * point.features, rtol=1e-13)
        assert exact == pytest.approx(classes * (decay * math.sqrt(per_class) - decay**2 / 2))
        printed = batch_norm.Normalised(
            point.features,
            torch.full((3,), math.sqrt(2 / 3)).double(),
            torch.full((3,), 3**-0.5).double(),
            torch.eye(3).double(),
        )
        excess = batch_norm.objective(classes, decay, printed).item() - exact
        assert excess > 0.1 or decay == 1, "eq. 62 as printed minimises at lambda = sqrt(n) - 1 only"

    def objective(flat):
        features, scale, shift, weight = flat.split([36, 3, 3, 9])
        free = batch_norm.Normalised(features.view(12, 3), scale, shift, weight.view(3, 3))
        return batch_norm.objective(classes, decay, free)

    value, _ = least(objective, 51, starts=4)
    assert value >= exact - 1e-9
    assert value == pytest.approx(exact, abs=1e-6)


# Narrow features


@pytest.mark.parametrize("classes", [4, 6])
def test_half_the_width_ends_at_an_orthoplex(classes):
    decay = Decay(0.01, 0.01, None)
    counts = torch.full((classes,), 2)
    found = minimise_ufm(LOSSES["ce"], torch.eye(classes), counts, classes // 2, decay, starts=4, seed=0)
    assert found.value == pytest.approx(orthoplex.orthoplex_value(classes, 2, decay), abs=1e-8)
    rows = found.features / found.features.norm(dim=1, keepdim=True)
    cosines = (rows @ rows.T)[~torch.eye(classes, dtype=torch.bool)]
    assert torch.minimum(cosines.abs(), (cosines + 1).abs()).max() < 1e-3
    assert found.value > ufm_optimum("ce", classes, 2, classes, decay).value


def test_eight_classes_in_three_dimensions_are_no_cube():
    decay = Decay(0.003, 0.003, None)
    found = minimise_ufm(LOSSES["ce"], torch.eye(8), torch.ones(8), 3, decay, starts=6, seed=0)
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).double()] * 3)

    def cube(size):
        logits = size * corners @ corners.T
        fit = LOSSES["ce"](logits, torch.eye(8).double()).mean().item()
        return fit + decay.nuclear * size * 24  # singular values 8 of corners corners^T, three times

    assert found.value < min(cube(size) for size in np.linspace(0, 5, 2001)) - 1e-3


# Label smoothing


@pytest.mark.parametrize("delta", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("loss", ["ce", "mse"])
def test_smoothing_in_the_features_model_with_decay(loss, delta):
    classes, per_class = 4, 3
    decay = Decay(0.02, 0.05, 0.0)
    targets = (1 - delta) * torch.eye(classes).double() + delta / classes
    found = minimise_ufm(LOSSES[loss], targets, torch.full((classes,), per_class), 5, decay, starts=3, seed=0)
    strength = kappa(classes, per_class, decay)
    assert found.value == pytest.approx(smoothing.ufm_value(loss, classes, strength, delta), abs=1e-8)
    logits = found.features @ found.weight.T
    contrast = (logits.diagonal().mean() - logits[0, 1]).item()
    assert contrast == pytest.approx(smoothing.ufm_contrast(loss, classes, strength, delta), abs=1e-3)
    if not delta:
        best = ufm_optimum(loss, classes, per_class, 5, decay)
        assert smoothing.ufm_value(loss, classes, strength, 0.0) == pytest.approx(best.value, rel=1e-13)
    assert smoothing.ufm_contrast(loss, classes, strength, 1 - strength) == 0


@pytest.mark.parametrize("delta", [0.0, 0.1, 0.3])
def test_smoothing_with_normalised_features(delta):
    targets = (1 - delta) * torch.eye(4).double() + delta / 4
    found = minimise_gufm(LOSSES["ce"], targets, torch.ones(4), 6, 0.02, False, starts=3, seed=0)
    assert found.value == pytest.approx(smoothing.gufm_value(4, 6, 0.02, delta), abs=1e-8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Classes(0, 2, 1, 2.0), "at least 1 each"),
        (lambda: Classes(1, 2, 1, 0.5), "ratio: 0.5"),
        (lambda: supcon.supcon_optimum(3, 2, 0.0, include_self=True), "temperature: 0"),
        (lambda: supcon.supcon_optimum(3, 1, 1.0, include_self=False), "2 or more samples"),
        (lambda: supcon.supcon_loss(torch.ones(1, 2), 1, 1.0, include_self=True), "1 classes"),
        (lambda: two_linear.strength(3, 1, 0, 1, 1), "three positive decays"),
        (lambda: two_linear.optimum(3, 1, 2, second=1, first=1, features=1), "width: 2"),
        (lambda: batch_norm.optimum(1, 1, 1.0), "2 classes"),
        (lambda: orthoplex.orthoplex(5), "classes: 5"),
        (lambda: smoothing.ufm_value("ce", 3, 0.1, 1.0), "smoothing: 1"),
        (lambda: smoothing.ufm_contrast("ce", 3, 0.1, -0.1), "smoothing: -0.1"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(InputError, match=message):
        call()
