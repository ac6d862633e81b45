"""Optima of K23's other features models, in closed form against direct minimisation."""

import math

import numpy as np
import pytest
import torch

from ncpipe.metrics.loss_functions import LOSSES
from ncpipe.papers.k23 import batch_norm, feature_models, imbalance, orthoplex, supcon, two_linear
from ncpipe.papers.k23.imbalance import Classes
from ncpipe.system.errors import InputError
from ncpipe.theory import smoothing
from ncpipe.theory.frames import simplex_frame
from ncpipe.theory.numerical import least, minimise_gufm, minimise_ufm
from ncpipe.theory.ufm import Decay, kappa
from ncpipe.theory.ufm import optimum as ufm_optimum

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


# Contrast


@pytest.mark.parametrize("include_self", [True, False])
def test_the_contrastive_optimum_is_that_of_a_collapsed_simplex(include_self):
    features = simplex_frame(4).repeat_interleave(3, 0)
    loss = supcon.supcon_loss(features, 4, 0.3, include_self=include_self).item()
    assert supcon.supcon_optimum(4, 3, 0.3, include_self=include_self) == pytest.approx(loss, rel=1e-13)


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


@pytest.mark.parametrize("strength", [0.12, 0.37, 0.51])
def test_the_least_value_under_two_linear_layers_is_that_of_one_logit(strength):
    """Unequal decays, in the ratios 2 : 5 : 1 and n = 4, of which c takes the product alone."""
    unit = strength / (3 * (4 * 2 * 5 * 1) ** (1 / 3))

    def objective(flat):
        second, first, features = flat.view(3, 3, 3)
        fit = (features @ first.T @ second.T - torch.eye(3).double()).square().sum() / 6
        penalty = 2 * second.square().sum() + 5 * first.square().sum() + 4 * features.square().sum()
        return fit + unit / 2 * penalty

    z = two_linear.best_logit(strength)
    expected = (z - 1) ** 2 / 2 + 1.5 * strength * z ** (2 / 3)
    assert least(objective, 27, starts=6, seed=0).value == pytest.approx(expected, abs=1e-8)


def test_the_logit_of_two_linear_layers_jumps_from_a_half_to_zero():
    assert two_linear.best_logit(two_linear.JUMP * (1 - 1e-9)) == pytest.approx(0.5, abs=1e-3)
    assert two_linear.best_logit(two_linear.JUMP) == 0
    for c in (0.1, 0.3, 0.39, 0.4, 0.5):
        z = np.linspace(0, 1, 100_001)
        values = (z - 1) ** 2 / 2 + 1.5 * c * z ** (2 / 3)
        assert z[values.argmin()] == pytest.approx(two_linear.best_logit(c), abs=2e-5)


# Batch normalisation


@pytest.mark.parametrize("decay", [0.2, 1.0, 3.0])
def test_the_least_loss_behind_batch_normalisation(decay):
    """No descent comes below it, and the targets themselves, suitably scaled, reach it."""
    exact = batch_norm.least_value(3, 4, decay)
    scale = math.sqrt(max(2 - decay, 0.0)) * torch.ones(3).double()
    targets = torch.eye(3).double().repeat_interleave(4, 0)
    reached = batch_norm.objective(
        3, decay, targets, math.sqrt(2 / 3) * scale, scale / math.sqrt(3), torch.diag(scale)
    )
    assert reached.item() == pytest.approx(exact, rel=1e-14)
    found = feature_models.batch_norm_value_numerical(3, 4, decay)
    assert found == pytest.approx(exact, abs=1e-6)
    assert found >= exact - 1e-9


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
    assert found.value == pytest.approx(sum(smoothing.gufm_terms(4, 6, 0.02, delta)), abs=1e-8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Classes(0, 2, 1, 2.0), "at least 1 each"),
        (lambda: Classes(1, 2, 1, 0.5), "ratio: 0.5"),
        (lambda: supcon.supcon_optimum(3, 2, 0.0, include_self=True), "temperature: 0"),
        (lambda: supcon.supcon_optimum(3, 1, 1.0, include_self=False), "2 or more samples"),
        (lambda: supcon.supcon_loss(torch.ones(1, 2), 1, 1.0, include_self=True), "1 classes"),
        (lambda: batch_norm.least_value(1, 1, 1.0), "2 classes"),
        (lambda: orthoplex.orthoplex(5), "classes: 5"),
        (lambda: smoothing.ufm_value("ce", 3, 0.1, 1.0), "smoothing: 1"),
        (lambda: smoothing.ufm_contrast("ce", 3, 0.1, -0.1), "smoothing: -0.1"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(InputError, match=message):
        call()
