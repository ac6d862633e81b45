"""Optima of the GUFM: the closed forms against direct minimisation, the metrics, and each other."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from ncpipe.metrics.collapse import nc1_trace_ratio
from ncpipe.metrics.geometry import nc2_etf, nc2_identity, nc3_duality
from ncpipe.metrics.loss_functions import LOSSES
from ncpipe.metrics.statistics import class_statistics
from ncpipe.system.errors import InputError
from ncpipe.theory.gufm import optimal_value, optimum
from ncpipe.theory.numerical import minimise_gufm
from ncpipe.theory.ufm import Decay
from ncpipe.theory.ufm import optimum as ufm_optimum

CASES = [("ce", False), ("ce", True), ("mse", False), ("mse", True)]
SIZES = [(2, 3, 0.1), (3, 4, 0.02), (4, 8, 0.005), (4, 6, 2.0), (6, 7, 1e-3)]


def objective(loss, weight, features, labels, strength, bias=None):
    """The regularised loss in plain NumPy; features (N, d)."""
    weight, features = np.asarray(weight), np.asarray(features)
    logits = features @ weight.T + (0 if bias is None else np.asarray(bias))
    targets = np.eye(len(weight))[labels]
    if loss == "ce":
        fit = np.mean([math.log(np.exp(row - row[k]).sum()) for row, k in zip(logits, labels, strict=True)])
    else:
        fit = ((logits - targets) ** 2).sum() / (2 * len(labels))
    return fit + strength / 2 * (weight**2).sum()


def minimise(loss, bias, targets, counts, width, strength, starts=6):
    return minimise_gufm(LOSSES[loss], targets, counts, width, strength, bias, starts=starts, seed=0)


def balanced(loss, bias, classes, width, strength, starts=6):
    return minimise(loss, bias, torch.eye(classes), torch.ones(classes), width, strength, starts)


def test_the_paper_sized_cross_entropy_optimum():
    assert optimal_value("ce", 10, 64, 0.005, False) == pytest.approx(0.0227594, abs=5e-8)


@pytest.mark.parametrize(("loss", "bias"), CASES)
@pytest.mark.parametrize(("classes", "width", "strength"), SIZES)
def test_no_start_goes_below_the_closed_form_and_the_best_reaches_it(loss, bias, classes, width, strength):
    value = optimal_value(loss, classes, width, strength, bias)
    found = balanced(loss, bias, classes, width, strength, starts=10 if classes < 4 else 4)
    assert found.values[0] >= value - 1e-9
    assert found.value == pytest.approx(value, abs=1e-6)
    assert found.slope < 1e-6


@pytest.mark.parametrize(("loss", "bias", "starts"), [("ce", False, 4), ("ce", True, 4), ("mse", False, 1)])
def test_the_same_at_the_size_of_the_experiments(loss, bias, starts):
    found = balanced(loss, bias, 10, 64, 0.005, starts)
    assert found.value == pytest.approx(optimal_value(loss, 10, 64, 0.005, bias), abs=1e-8)


@pytest.mark.parametrize(("loss", "bias"), CASES)
def test_samples_of_their_own_features_gain_nothing(loss, bias):
    """Three samples a class, each free: the minimum is that of one feature a class."""
    targets = torch.eye(3).repeat_interleave(3, 0)
    found = minimise(loss, bias, targets, torch.ones(9), 5, 0.02, starts=3)
    value = optimal_value(loss, 3, 5, 0.02, bias)
    assert value - 1e-9 <= found.value <= value + 1e-6


@pytest.mark.parametrize(("loss", "bias"), CASES)
@pytest.mark.parametrize(("classes", "width", "strength"), [*SIZES, (10, 64, 0.005), (2, 64, 1e-6)])
def test_the_optimum_is_feasible_has_its_value_and_is_collapsed(loss, bias, classes, width, strength):
    found = optimum(loss, classes, width, strength, bias)
    assert found.value == optimal_value(loss, classes, width, strength, bias)
    assert found.features.norm(dim=1) == pytest.approx([width**0.5] * classes, rel=1e-14)
    assert found.features.sum(1) == pytest.approx([0.0] * classes, abs=1e-12)
    assert (found.bias is not None) == bias
    labels = np.repeat(np.arange(classes), 3)
    features = found.features.repeat_interleave(3, 0)
    assert objective(loss, found.weight, features, labels, strength, found.bias) == pytest.approx(
        found.value, rel=1e-12
    )
    assert strength / 2 * found.weight.square().sum() == pytest.approx(found.penalty, rel=1e-12)
    statistics = class_statistics(features, torch.from_numpy(labels), classes)
    nc2 = nc2_identity if (loss, bias) == ("mse", False) else nc2_etf
    assert nc1_trace_ratio(statistics) == pytest.approx(0, abs=1e-28)
    assert nc2(found.weight) == pytest.approx(0, abs=1e-14)
    assert nc3_duality(statistics, found.weight) == pytest.approx(0, abs=1e-13)
    assert torch.cosine_similarity(found.weight, found.features) == pytest.approx([1.0] * classes, abs=1e-14)


@settings(max_examples=200, deadline=None)
@given(
    case=st.sampled_from(CASES),
    classes=st.integers(2, 6),
    room=st.integers(1, 4),
    strength=st.floats(1e-4, 10),
    scale=st.floats(0, 5),
    shortest=st.floats(0, 1),
    seed=st.integers(0, 10**6),
)
def test_no_pair_is_below_the_optimum_even_with_shorter_features_off_the_plane(
    case, classes, room, strength, scale, shortest, seed
):
    """Near the optimum and far from it; |x| <= sqrt(d) is all that the bound asks for."""
    loss, bias = case
    width = classes + room
    found = optimum(loss, classes, width, strength, bias)
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), 2)
    features = found.features.numpy()[labels] + scale * generator.standard_normal((2 * classes, width))
    lengths = generator.uniform(shortest, 1, (len(labels), 1)) * width**0.5
    features *= lengths / np.linalg.norm(features, axis=1, keepdims=True)
    weight = found.weight.numpy() + 0.1 * scale * generator.standard_normal((classes, width))
    offset = (
        None if found.bias is None else found.bias.numpy() + 0.1 * scale * generator.standard_normal(classes)
    )
    assert objective(loss, weight, features, labels, strength, offset) >= found.value - 1e-12


@pytest.mark.parametrize(
    ("loss", "bias", "least"), [(*CASES[0], 4), (*CASES[1], 4), (*CASES[2], 5), (*CASES[3], 4)]
)
def test_narrower_features_have_no_room_and_are_refused(loss, bias, least):
    """One dimension less and the minimum lies above what the formula would give."""
    wide, tight = (optimal_value(loss, 4, width, 0.05, bias) for width in (least + 1, least))
    assert tight > wide
    with pytest.raises(InputError, match=f"width: {least - 1} is below {least}"):
        optimal_value(loss, 4, least - 1, 0.05, bias)
    found = balanced(loss, bias, 4, least - 1, 0.05)
    # The formula is smooth in d; on to d = least - 1 it would give less than 2 tight - wide + curvature.
    assert found.value > tight + 2 * (tight - wide)


@pytest.mark.parametrize("strength", [0.0, -0.1, math.inf, math.nan])
def test_a_last_layer_without_penalty_has_no_optimum(strength):
    with pytest.raises(InputError, match="lambda_L"):
        optimum("ce", 3, 8, strength, False)


def test_one_class_is_refused():
    with pytest.raises(InputError, match="classes: 1"):
        optimal_value("ce", 1, 8, 0.1, False)


def test_unbalanced_classes_fall_below_the_balanced_value():
    counts = torch.tensor([8.0, 1.0, 1.0])
    found = minimise("ce", False, torch.eye(3), counts, 4, 0.05)
    assert found.value < optimal_value("ce", 3, 4, 0.05, False) - 0.01


def test_the_printed_norm_of_the_mse_weights_is_not_optimal():
    """S25's proof prints |w_k| = 1/(sqrt(d) (1 + lambda K)); lambda K wants a 1/d there."""
    classes, width, strength = 3, 8, 0.5
    found = optimum("mse", classes, width, strength, False)
    printed = 1 / (width**0.5 * (1 + strength * classes))
    weight = found.weight * printed / found.weight.norm(dim=1, keepdim=True)
    assert objective("mse", weight, found.features, range(3), strength) > found.value + 0.01
    mended = 1 / (width**0.5 * (1 + strength * classes / width))
    assert found.weight.norm(dim=1) == pytest.approx([mended] * 3, rel=1e-14)


@pytest.mark.parametrize("loss", ["ce", "mse"])
def test_the_decayed_model_with_features_of_that_length_has_the_same_optimum(loss):
    """Lemma 4.2's proof: pick lambda_F so that the features of the UFM get norm sqrt(d)."""
    classes, width, strength = 4, 16, 0.02

    def excess(log_decay):
        found = ufm_optimum(loss, classes, 1, width, Decay(strength, math.exp(log_decay), None))
        return found.features.norm(dim=1)[0].item() - width**0.5

    decay = math.exp(brentq(excess, -20, math.log(0.99 / classes**2 / strength), xtol=1e-14))
    decayed = ufm_optimum(loss, classes, 1, width, Decay(strength, decay, None))
    found = optimum(loss, classes, width, strength, False)
    assert decayed.weight.norm().item() == pytest.approx(found.weight.norm().item(), rel=1e-9)
    assert decayed.value - decay / 2 * classes * width == pytest.approx(found.value, rel=1e-9)
