"""Optima of the UFM with feature decay: closed forms, the convex program, and the review's printed claims."""

import math

import pytest
import torch
from torch import Tensor

from ncpipe.metrics.geometry import nc2_etf, nc2_identity
from ncpipe.metrics.loss_functions import LOSSES
from ncpipe.system.errors import InputError
from ncpipe.theory.numerical import minimise_ufm
from ncpipe.theory.ufm import Decay, Loss, kappa, optimum

BIASES = [None, 0.0, 0.01, 0.3, 5.0]
# K, n, m, lambda_A, lambda_F: kappa 0.28, 0.05, 0.89, 1 + 1e-6 and 1.8
SIZES = [
    (2, 1, 3, 0.1, 0.2),
    (3, 5, 3, 0.02, 0.003),
    (4, 5, 8, 0.1, 0.1),
    (2, 4, 3, (1 + 1e-6) / 4, 0.25),
    (4, 5, 8, 0.1, 0.4),
]
PAIRS = [(size, BIASES[(i + shift) % 5]) for i, size in enumerate(SIZES) for shift in (0, 2)]


def nuclear_norm_loss(loss: Loss, logits: Tensor, bias: Tensor, targets: Tensor, decay: Decay) -> float:
    """Return the convex program's loss of logits Z = A F (N, K); same minimum if m >= min(K, N) [eq. 23].

    mean loss(Z + b) + sqrt(lambda_A lambda_F) |Z|_* + lambda_b/2 |b|^2; targets (N, K), bias (K,).
    """
    fit = LOSSES[loss](logits + bias, targets).mean()
    norm = torch.linalg.matrix_norm(logits, "nuc")
    return (fit + decay.nuclear * norm + (decay.bias or 0.0) / 2 * bias.square().sum()).item()


def gradient_norm(loss: Loss, logits: Tensor, targets: Tensor) -> float:
    """Return the spectral norm of the mean loss's gradient with respect to the logits A F + b (N, K).

    A critical point is a global minimiser if this is at most sqrt(lambda_A lambda_F) [eq. 25].
    """
    outputs = logits.softmax(1) if loss == "ce" else logits
    return torch.linalg.matrix_norm((outputs - targets) / len(logits), 2).item()


def full(found, per_class):
    """A point per sample: features (N, m), targets (N, K), bias (K,)."""
    classes = len(found.weight)
    offset = torch.zeros(classes).double() if found.bias is None else found.bias
    features = found.features.repeat_interleave(per_class, 0)
    return features, torch.eye(classes).double().repeat_interleave(per_class, 0), offset


def objective(loss, found, per_class, decay):
    features, targets, offset = full(found, per_class)
    fit = LOSSES[loss](features @ found.weight.T + offset, targets).mean()
    penalty = decay.weight * found.weight.square().sum() + decay.features * features.square().sum()
    return (fit + (penalty + (decay.bias or 0) * offset.square().sum()) / 2).item()


@pytest.mark.parametrize("loss", ["ce", "mse"])
@pytest.mark.parametrize(("size", "bias"), PAIRS)
def test_no_start_goes_below_the_closed_form_and_the_best_reaches_it(loss, size, bias):
    classes, per_class, width, weight, features = size
    decay = Decay(weight, features, bias)
    found = optimum(loss, classes, per_class, width, decay)
    assert objective(loss, found, per_class, decay) == pytest.approx(found.value, rel=1e-13)
    counts = torch.full((classes,), per_class)
    brute = minimise_ufm(LOSSES[loss], torch.eye(classes), counts, width, decay, starts=4, seed=1)
    assert brute.values[0] >= found.value - 1e-9
    assert brute.value == pytest.approx(found.value, abs=1e-6)


@pytest.mark.parametrize("loss", ["ce", "mse"])
def test_samples_of_their_own_features_gain_nothing(loss):
    decay = Decay(0.02, 0.01, 0.1)
    targets = torch.eye(3).repeat_interleave(4, 0)
    brute = minimise_ufm(LOSSES[loss], targets, torch.ones(12), 4, decay, starts=5, seed=1)
    value = optimum(loss, 3, 4, 4, decay).value
    assert value - 1e-9 <= brute.value <= value + 1e-6


@pytest.mark.parametrize("loss", ["ce", "mse"])
@pytest.mark.parametrize(("size", "bias"), PAIRS)
def test_the_convex_program_has_the_same_minimum(loss, size, bias):
    """Eq. 23: same value at the optimum's logits, none lower nearby, and the certificate of eq. 25 holds."""
    classes, per_class, width, weight, features = size
    decay = Decay(weight, features, bias)
    found = optimum(loss, classes, per_class, width, decay)
    h, targets, offset = full(found, per_class)
    logits = h @ found.weight.T
    assert nuclear_norm_loss(loss, logits, offset, targets, decay) == pytest.approx(found.value, rel=1e-12)
    assert gradient_norm(loss, logits + offset, targets) <= decay.nuclear * (1 + 1e-9)
    generator = torch.Generator().manual_seed(0)
    for size_of_step in (1e-4, 1e-2, 1.0):
        for _ in range(20):
            step = size_of_step * torch.randn(logits.shape, generator=generator, dtype=torch.float64)
            shift = 0.0 if bias is None else size_of_step * torch.randn(classes, generator=generator).double()
            moved = nuclear_norm_loss(loss, logits + step, offset + shift, targets, decay)
            assert moved >= found.value - 1e-12


def test_the_factors_attain_the_nuclear_norm():
    """Eq. 24: the two decays of the best factors amount to sqrt(lambda_A lambda_F) |A F|_*."""
    decay = Decay(0.03, 0.002, None)
    found = optimum("mse", 3, 5, 6, decay)
    h, _, _ = full(found, 5)
    norm = torch.linalg.matrix_norm(h @ found.weight.T, "nuc")
    assert found.penalty == pytest.approx(decay.nuclear * norm.item(), rel=1e-13)


@pytest.mark.parametrize("loss", ["ce", "mse"])
@pytest.mark.parametrize("bias", BIASES)
def test_from_kappa_one_on_everything_collapses_to_zero(loss, bias):
    below, above = (Decay((1 + e) / 3, (1 + e) / 15, bias) for e in (-1e-3, 1e-3))
    assert kappa(3, 5, below) < 1 < kappa(3, 5, above)
    assert optimum(loss, 3, 5, 4, below).weight.norm() > 0
    found = optimum(loss, 3, 5, 1, above)
    assert not found.weight.any()
    assert not found.features.any()
    share = 1 if bias is None else bias / (1 + bias)
    assert found.value == pytest.approx(math.log(3) if loss == "ce" else (2 + share) / 6)


def test_geometry_of_the_minimisers():
    """An ETF; an orthogonal frame without bias, whose centred features are an ETF [K23 sec. 3.1.4]."""
    for loss, bias in (("ce", None), ("ce", 0.0), ("ce", 0.3), ("mse", 0.0)):
        assert nc2_etf(optimum(loss, 4, 5, 6, Decay(0.02, 0.01, bias)).weight) < 1e-14
    found = optimum("mse", 4, 5, 6, Decay(0.02, 0.01, None))
    assert nc2_identity(found.weight) < 1e-14
    assert nc2_etf(found.features - found.features.mean(0)) < 1e-14


def test_the_review_s_closed_forms_of_weight_and_bias():
    """A = F^T (F F^T + K lambda_A I)^-1 of the class features, no bias; with one, b_k = 1/K - a_k mu_G."""
    found = optimum("mse", 3, 5, 4, Decay(0.02, 0.01, None))
    h = found.features.T
    inverse = torch.linalg.inv(h @ h.T + 3 * 0.02 * torch.eye(4).double())
    assert torch.allclose(found.weight, h.T @ inverse, rtol=1e-12)
    free = minimise_ufm(
        LOSSES["mse"], torch.eye(3), torch.full((3,), 5), 4, Decay(0.02, 0.01, 0.0), starts=1, seed=0
    )
    assert free.bias is not None
    assert torch.allclose(free.bias, 1 / 3 - free.weight @ free.features.mean(0), atol=1e-8)


def lower_bound(classes, per_class, decay, square, c1):
    """Right side of eq. 22."""
    c2 = math.log((1 + c1) * (classes - 1)) / (1 + c1) + c1 / (1 + c1) * math.log((1 + c1) / c1)
    slope = (decay.weight / (per_class * decay.features)) ** 0.5 / ((1 + c1) * (classes - 1))
    return -slope * square + c2 + decay.weight * square


def test_the_cross_entropy_bound_of_eq_22_holds_with_equality_where_c1_fits_the_logits():
    classes, per_class, decay = 4, 5, Decay(0.01, 0.02, None)
    found = optimum("ce", classes, per_class, 6, decay)
    square = found.weight.square().sum().item()
    gap = found.weight @ found.features.T
    fitting = math.exp((gap[0, 0] - gap[0, 1]).item()) / (classes - 1)
    assert lower_bound(classes, per_class, decay, square, fitting) == pytest.approx(found.value, rel=1e-12)
    for factor in (0.1, 0.9, 1.1, 10):
        assert lower_bound(classes, per_class, decay, square, fitting * factor) < found.value


def test_eq_22_fails_away_from_critical_points():
    """Printed for all F, A, b; with F = 0 and a penalty on A the left side is below the right."""
    classes, per_class, decay = 3, 20, Decay(0.5, 0.5, None)
    square = 4.0
    left = math.log(classes) + decay.weight / 2 * square
    assert left < lower_bound(classes, per_class, decay, square, 1 / (classes - 1)) - 0.1


def test_the_direction_of_eq_27_needs_its_second_exponent_inverted():
    """At the critical point A = 0, F = 0 with kappa < 1: as printed the curvature can be positive."""
    weight, features = 1.5, 0.02
    targets = torch.eye(3).double()
    gradient = (torch.full((3, 3), 1 / 3).double() - targets) / 3  # (N, K) of the mean cross-entropy at 0
    assert (weight * features) ** 0.5 < gradient_norm("ce", torch.zeros(3, 3).double(), targets)
    left, singular, right = torch.linalg.svd(gradient.T)
    u, v, w = left[:, :1], right[:1], torch.ones(1, 1).double()

    def curvature(exponent):
        step_a = (weight / features) ** exponent * u @ w.T
        step_f = -((weight / features) ** 0.25) * w @ v
        value = lambda t: (  # noqa: E731
            LOSSES["ce"]((t * step_a @ (t * step_f)).T, targets).mean()
            + t**2 * (weight * step_a.square().sum() + features * step_f.square().sum()) / 2
        )
        return ((value(1e-3) - value(0.0)) / 1e-6).item()

    assert curvature(-0.25) == pytest.approx((weight * features) ** 0.5 - singular[0].item(), abs=1e-5)
    assert curvature(-0.25) < 0 < curvature(0.25)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ce", 1, 1, 4, 0.1, 0.1, None), "1 classes"),
        (("ce", 3, 0, 4, 0.1, 0.1, None), "3 classes of 0"),
        (("ce", 4, 1, 2, 0.01, 0.1, None), "width: 2 is below 3"),
        (("mse", 4, 1, 3, 0.01, 0.1, None), "width: 3 is below 4"),
        (("mse", 4, 1, 2, 0.01, 0.1, 0.0), "width: 2 is below 3"),
        (("ce", 3, 1, 4, 0.0, 0.1, None), "both must be positive"),
        (("ce", 3, 1, 4, 0.1, math.nan, None), "both must be positive"),
        (("ce", 3, 1, 4, 0.1, 0.1, -1.0), "lambda_b: -1"),
    ],
)
def test_bad_input_is_one_line(arguments, message):
    with pytest.raises(InputError, match=message):
        optimum(*arguments[:4], Decay(*arguments[4:]))
