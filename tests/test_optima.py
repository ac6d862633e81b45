"""Optima of features models: closed forms against numerical minima, their geometry, and printed claims."""

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ncpipe.claims.theory_calls import THEORY_CALLS
from ncpipe.metrics.collapse import nc1_trace_ratio
from ncpipe.metrics.geometry import nc2_etf, nc2_identity, nc3_duality
from ncpipe.metrics.statistics import class_statistics
from ncpipe.models.loss_functions import LOSSES
from ncpipe.papers.k23 import feature_models, orthoplex, smoothing, supcon, two_linear
from ncpipe.papers.k23.calls import CALLS as K23
from ncpipe.papers.k23.flows.features_model import Flow, aligned_start, integrate
from ncpipe.papers.s24 import dufm, dufm_shapes
from ncpipe.papers.s24.dufm import Dufm, equal_decays
from ncpipe.papers.s24.dufm_relaxed import relaxed_relu
from ncpipe.papers.s24.dufm_solutions import dnc_solution
from ncpipe.papers.s24.dufm_solutions import objective as dufm_objective
from ncpipe.system.errors import InputError
from ncpipe.theory import gufm, ufm
from ncpipe.theory.gufm import optimal_value
from ncpipe.theory.numerical import least, minimise_gufm, minimise_ufm
from ncpipe.theory.regression import regression_optimum
from ncpipe.theory.ufm import Decay, Loss, kappa

Pair = Callable[[], tuple[float, float]]  # the closed form and the numerical minimum
CASES = [("ce", False), ("ce", True), ("mse", False), ("mse", True)]
GUFM_SIZES = [(2, 3, 0.1), (4, 6, 0.02)]
# K, n, m, lambda_A, lambda_F, lambda_b: kappa 0.28, 0.05, 0.89, 1 + 1e-6 and 1.8
UFM_SIZES = [
    (2, 1, 3, 0.1, 0.2, None),
    (3, 5, 3, 0.02, 0.003, 0.01),
    (4, 5, 8, 0.1, 0.1, 0.0),
    (4, 5, 8, 0.1, 0.1, 5.0),
    (2, 4, 3, (1 + 1e-6) / 4, 0.25, 0.3),
    (4, 5, 8, 0.1, 0.4, None),
]


def of_call(name: str, **args: object) -> Pair:
    """A number of a claim, and its numerical check."""
    number, check = (THEORY_CALLS | K23)[name]
    return lambda: (number(**args), check(**args))


def of_batch_norm(decay: float) -> Pair:
    """From half of the check's starts, all of which end at the minimum."""

    def pair() -> tuple[float, float]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(feature_models, "STARTS", 2)
            return of_call("batch_norm.value", classes=3, per_class=4, decay=decay)()

    return pair


def of_ufm(loss: Loss, size: tuple) -> Pair:
    classes, per_class, width, *decays = size
    counts, decay = torch.full((classes,), per_class), Decay(*decays)

    def pair() -> tuple[float, float]:
        minimum = minimise_ufm(LOSSES[loss], torch.eye(classes), counts, width, decay, starts=4, seed=1)
        return ufm.optimum(loss, classes, per_class, width, decay).value, minimum.value

    return pair


def of_smoothing(delta: float) -> Pair:
    targets = (1 - delta) * torch.eye(4).double() + delta / 4

    def pair() -> tuple[float, float]:
        minimum = minimise_gufm(LOSSES["ce"], targets, torch.ones(4), 6, 0.02, False, starts=3, seed=0)
        return sum(gufm.smoothed_terms(4, 6, 0.02, delta)), minimum.value

    return pair


def of_two_linear() -> Pair:
    """Matrices under decays well before the jump, beyond which descents end in local minima."""
    c = 0.3 * two_linear.JUMP
    second, first, features = (c / 3 * share for share in (2.0, 5.0, 0.1))  # of product (c/3)^3, n = 1

    def objective_of(flat: Tensor) -> Tensor:
        parts = flat.view(3, 3, 3)
        fit = (parts[2] @ parts[1].T @ parts[0].T - torch.eye(3).double()).square().sum() / 6
        squares = parts.square().sum((1, 2))
        return fit + (second * squares[0] + first * squares[1] + features * squares[2]) / 2

    def pair() -> tuple[float, float]:
        z = two_linear.best_logit(c)
        value = (z - 1) ** 2 / 2 + 1.5 * c * z ** (2 / 3)
        return value, least(objective_of, 27, starts=6, seed=0).value

    return pair


PAIRS: dict[str, tuple[Pair, float]] = {
    **{
        f"gufm {loss} {bias} {classes} {width}": (
            of_call("gufm.value", loss=loss, classes=classes, width=width, strength=strength, bias=bias), 1e-6
        )
        for loss, bias in CASES for classes, width, strength in GUFM_SIZES
    },
    "gufm of the paper's size": (of_call("gufm.value", loss="ce", classes=10, width=64, strength=0.005),
     1e-8),
    **{f"ufm {loss} {size}": (of_ufm(loss, size), 1e-6) for loss in ("ce", "mse") for size in UFM_SIZES},
    **{
        f"smoothing {loss} {delta}": (
            of_call("smoothing.value", loss=loss, classes=4, per_class=3, decay=0.03, delta=delta), 1e-8
        )
        for loss in ("ce", "mse") for delta in (0.0, 0.4, 0.9)
    },
    "smoothing on the sphere": (of_smoothing(0.3), 1e-8),
    **{
        f"supcon {own} {temperature}": (
            of_call("supcon.value", classes=3, per_class=3, temperature=temperature, include_self=own), 1e-9
        )
        for own, temperature in ((True, 0.3), (False, 1.0))
    },
    "two linear layers": (of_two_linear(), 1e-8),
    **{f"batch norm {decay}": (of_batch_norm(decay), 1e-6) for decay in (0.2, 3.0)},
    "orthoplex": (of_call("orthoplex.value", classes=6, per_class=2, decay=0.01), 1e-8),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_no_start_goes_below_the_closed_form_and_the_best_reaches_it(name: str) -> None:
    pair, tolerance = PAIRS[name]
    closed, minimum = pair()
    assert minimum >= closed - 1e-9
    assert minimum == pytest.approx(closed, abs=tolerance)


def test_a_minimum_is_what_it_says_and_the_seed_decides_it() -> None:
    arguments = (LOSSES["ce"], torch.eye(3), torch.tensor([5, 2, 1]), 3, 0.05, True)
    minimum, again = (minimise_gufm(*arguments, starts=5, seed=3) for _ in range(2))
    assert torch.equal(minimum.values, again.values)
    assert torch.equal(minimum.features, again.features)
    assert minimum.features.norm(dim=1) == pytest.approx([3**0.5] * 3)
    assert minimum.features.sum(1) == pytest.approx([0.0] * 3, abs=1e-14)
    assert minimum.value == minimum.values[0] == minimum.values.min()
    assert len(minimum.values) == 5
    assert 1 <= minimum.agreeing(1e-7) <= minimum.agreeing(math.inf) == 5
    assert minimum.slope < 1e-6
    weights, features, labels = minimum.weight, minimum.features, [0] * 5 + [1] * 2 + [2]
    value = objective("ce", weights, features[labels], labels, 0.05, minimum.bias)
    assert value == pytest.approx(minimum.value, rel=1e-14)


# ---- Features of length sqrt(d) -------------------------------------------------------------------------


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


@pytest.mark.parametrize(("loss", "bias"), CASES)
@pytest.mark.parametrize(
    ("classes", "width", "strength"), [(4, 8, 0.005), (6, 7, 1e-3), (10, 64, 0.005), (2, 64, 1e-6)]
)
def test_the_optimum_is_feasible_has_its_value_and_is_collapsed(loss, bias, classes, width, strength):
    best = gufm.optimum(loss, classes, width, strength, bias)
    assert best.value == optimal_value(loss, classes, width, strength, bias)
    assert best.features.norm(dim=1) == pytest.approx([width**0.5] * classes, rel=1e-14)
    assert best.features.sum(1) == pytest.approx([0.0] * classes, abs=1e-12)
    assert (best.bias is not None) == bias
    labels = np.repeat(np.arange(classes), 3)
    features = best.features.repeat_interleave(3, 0)
    assert objective(loss, best.weight, features, labels, strength, best.bias) == pytest.approx(
        best.value, rel=1e-12
    )
    assert strength / 2 * best.weight.square().sum() == pytest.approx(best.penalty, rel=1e-12)
    statistics = class_statistics(features, torch.from_numpy(labels), classes)
    nc2 = nc2_identity if (loss, bias) == ("mse", False) else nc2_etf
    assert nc1_trace_ratio(statistics) == pytest.approx(0, abs=1e-28)
    assert nc2(best.weight) == pytest.approx(0, abs=1e-14)
    assert nc3_duality(statistics, best.weight) == pytest.approx(0, abs=1e-13)
    assert torch.cosine_similarity(best.weight, best.features) == pytest.approx([1.0] * classes, abs=1e-14)


@settings(max_examples=100)
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
    best = gufm.optimum(loss, classes, width, strength, bias)
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), 2)
    features = best.features.numpy()[labels] + scale * generator.standard_normal((2 * classes, width))
    lengths = generator.uniform(shortest, 1, (len(labels), 1)) * width**0.5
    features *= lengths / np.linalg.norm(features, axis=1, keepdims=True)
    weight = best.weight.numpy() + 0.1 * scale * generator.standard_normal((classes, width))
    offset = (
        None if best.bias is None else best.bias.numpy() + 0.1 * scale * generator.standard_normal(classes)
    )
    assert objective(loss, weight, features, labels, strength, offset) >= best.value - 1e-12


@pytest.mark.parametrize(
    ("loss", "bias", "least"), [(*CASES[0], 4), (*CASES[1], 4), (*CASES[2], 5), (*CASES[3], 4)]
)
def test_narrower_features_have_no_room_and_are_refused(loss, bias, least):
    """One dimension less and the minimum lies above what the formula would give."""
    wide, tight = (optimal_value(loss, 4, width, 0.05, bias) for width in (least + 1, least))
    assert tight > wide
    with pytest.raises(InputError, match=f"width: {least - 1} is below {least}"):
        optimal_value(loss, 4, least - 1, 0.05, bias)
    lowest = minimise_gufm(LOSSES[loss], torch.eye(4), torch.ones(4), least - 1, 0.05, bias, starts=2, seed=0)
    # The formula is smooth in d; on to d = least - 1 it would give less than 2 tight - wide + curvature.
    assert lowest.value > tight + 2 * (tight - wide)


# ---- Feature decay --------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["ce", "mse"])
@pytest.mark.parametrize("size", UFM_SIZES)
def test_the_convex_program_certifies_the_optimum(loss: Loss, size: tuple) -> None:
    """Logits Z = A F, a point per sample: loss(Z + b) + sqrt(lambda_A lambda_F) |Z|_* has the same minimum.

    Eq. 24: that is what the two decays of the best factors amount to. Eq. 25: a critical point is a global
    minimiser if the spectral norm of the loss's gradient is at most sqrt(lambda_A lambda_F).
    """
    classes, per_class, width, *decays = size
    decay = Decay(*decays)
    best = ufm.optimum(loss, classes, per_class, width, decay)
    offset = torch.zeros(classes).double() if best.bias is None else best.bias
    targets = torch.eye(classes).double().repeat_interleave(per_class, 0)
    logits = best.features.repeat_interleave(per_class, 0) @ best.weight.T
    of_bias = (decay.bias or 0) / 2 * offset.square().sum().item()
    penalty = decay.nuclear * torch.linalg.matrix_norm(logits, "nuc").item() + of_bias
    assert best.penalty == pytest.approx(penalty, rel=1e-12)
    squares = decay.weight * best.weight.square().sum()
    squares += per_class * decay.features * best.features.square().sum()
    assert squares.item() / 2 + of_bias == pytest.approx(penalty, rel=1e-12)
    fit = LOSSES[loss](logits + offset, targets).mean().item()
    assert best.value == pytest.approx(fit + penalty, rel=1e-12)
    outputs = (logits + offset).softmax(1) if loss == "ce" else logits + offset
    slope = (outputs - targets) / len(logits)
    assert torch.linalg.matrix_norm(slope, 2) <= decay.nuclear * (1 + 1e-9)


@pytest.mark.parametrize("loss", ["ce", "mse"])
@pytest.mark.parametrize("bias", [None, 0.0, 0.3])
def test_from_kappa_one_on_everything_collapses_to_zero(loss, bias):
    below, above = (Decay((1 + e) / 3, (1 + e) / 15, bias) for e in (-1e-3, 1e-3))
    assert kappa(3, 5, below) < 1 < kappa(3, 5, above)
    assert ufm.optimum(loss, 3, 5, 4, below).weight.norm() > 0
    best = ufm.optimum(loss, 3, 5, 1, above)
    assert not best.weight.any()
    assert not best.features.any()
    share = 1 if bias is None else bias / (1 + bias)
    assert best.value == pytest.approx(math.log(3) if loss == "ce" else (2 + share) / 6)


def test_geometry_of_the_minimisers():
    """An ETF; an orthogonal frame without bias, whose centred features are an ETF [K23 sec. 3.1.4]."""
    for loss, bias in (("ce", None), ("ce", 0.0), ("ce", 0.3), ("mse", 0.0)):
        assert nc2_etf(ufm.optimum(loss, 4, 5, 6, Decay(0.02, 0.01, bias)).weight) < 1e-14
    best = ufm.optimum("mse", 4, 5, 6, Decay(0.02, 0.01, None))
    assert nc2_identity(best.weight) < 1e-14
    assert nc2_etf(best.features - best.features.mean(0)) < 1e-14


# ---- Other models ---------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("classes", "per_class"), [(3, 2), (10, 2), (10, 5)])
def test_supervised_contrast_at_low_temperatures(classes, per_class):
    """To all digits. Red: 1 + odds, which rounds the odds away."""
    for temperature in (0.03, 0.04, 0.5):
        odds = mpmath.exp(-classes / (mpmath.mpf(classes - 1) * temperature)) * (classes - 1)
        exact = mpmath.log(per_class - 1 + per_class * odds)
        found = supcon.supcon_optimum(classes, per_class, temperature, include_self=False)
        assert found == pytest.approx(float(exact), rel=1e-13)


def test_the_logit_of_two_linear_layers_jumps_from_a_half_to_zero():
    assert two_linear.best_logit(two_linear.JUMP * (1 - 1e-9)) == pytest.approx(0.5, abs=1e-3)
    assert two_linear.best_logit(two_linear.JUMP) == 0


def test_half_the_width_ends_at_an_orthoplex() -> None:
    assert K23["orthoplex.cosines"][0](classes=6, per_class=2, decay=0.01) < 1e-3
    wide = ufm.optimum("ce", 6, 2, 6, Decay(0.01, 0.01, None))
    assert orthoplex.orthoplex_value(6, 2, 0.01) > wide.value


SE = Flow("se", 3, 4, 0.0, 0.0, True)
ONES = torch.ones(3)


@pytest.mark.parametrize("strength", [1e-300, 1e20, 1e150])
def test_penalties_of_any_size_have_a_value(strength: float) -> None:
    """From a perfect fit for next to nothing to W = 0, of value log K. Red: an error of the search."""
    value = optimal_value("ce", 3, 8, strength, True)
    assert value == pytest.approx(math.log(3) if strength > 1 else 4e-296, rel=0.02)
    assert sum(gufm.smoothed_terms(3, 8, strength, 0.0)) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("decay", [1e-170, 1e160])
def test_decays_whose_product_leaves_float64_have_a_strength(decay: float) -> None:
    """Red: 0, by which a loss is divided, or a refusal that calls them no positive numbers."""
    assert Decay(decay, decay, None).nuclear == pytest.approx(decay, rel=1e-15, abs=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gufm.optimum("ce", 3, 8, 0.0, False), "lambda_L: 0"),
        (lambda: optimal_value("CE", 3, 8, 0.1, False), "loss: 'CE'; expected one of ce, mse"),  # type: ignore[arg-type]
        (lambda: ufm.optimum("hinge", 3, 5, 4, Decay(0.1, 0.1, None)), "loss: 'hinge'"),  # type: ignore[arg-type]
        (lambda: smoothing.ufm_value("CE", 3, 0.1, 0.1), "loss: 'CE'"),  # type: ignore[arg-type]
        (lambda: Flow("SE", 3, 4, 0.0, 0.0, True), "loss: 'SE'; expected one of se, mse, ce"),  # type: ignore[arg-type]
        (lambda: regression_optimum(torch.eye(2), 0.0, 0.1, 2), "lambda_W 0, lambda_H 0.1; both"),
        (lambda: optimal_value("ce", 1, 8, 0.1, False), "classes: 1"),
        (lambda: ufm.optimum("ce", 3, 0, 4, Decay(0.1, 0.1, None)), "3 classes of 0"),
        (lambda: ufm.optimum("mse", 4, 1, 3, Decay(0.01, 0.1, None)), "width: 3 is below 4"),
        (lambda: Decay(0.0, 0.1, None), "both must be positive"),
        (lambda: Decay(0.1, 0.1, -1.0), "lambda_b: -1"),
        (lambda: minimise_gufm(LOSSES["ce"], torch.eye(3), ONES, 1, 0.1, False, starts=1, seed=0), "width 1"),
        (lambda: minimise_gufm(LOSSES["ce"], torch.eye(3), ONES, 4, 0.1, False, starts=0, seed=0),
         "starts: 0"),
        (lambda: minimise_ufm(LOSSES["ce"], torch.eye(3), 0 * ONES, 4, Decay(1, 1, None), starts=1, seed=0),
         "positive numbers"),
        (lambda: supcon.supcon_optimum(3, 1, 1.0, include_self=False), "needs 2 or more"),
        (lambda: feature_models.two_linear_frame(3, 0.4), "strength: 0.4"),
        (lambda: gufm.smoothed_terms(3, 4, 0.1, 1.0), "smoothing: 1"),
        (lambda: integrate(SE, aligned_start(SE, 3, 1), [2, 1]), "rising"),
        (lambda: Dufm(3, 0, 0.1, (0.1, 0.1)), "3 classes of 0"),
        (lambda: Dufm(3, 5, 0.1, (0.1,)), "weights: 1 decays"),
        (lambda: Dufm(3, 5, 0.1, (0.1, math.nan)), "must be positive"),
        (lambda: dufm.srg_loss(equal_decays(5, 5, 4, 0.1)), "from 6 classes on"),
        (lambda: dufm_shapes.srg_shape(5, 4), "minus: 4; expected 2 to r - 2 = 3"),
        (lambda: dnc_solution(equal_decays(6, 5, 4, 1e-3), width=5), "width: 5 is below 6"),
        (lambda: dufm_objective(equal_decays(2, 3, 2, 0.1), torch.ones(4, 2), []), "features of 4 samples"),
        (lambda: relaxed_relu(torch.ones(1), 0.0), "epsilon: 0"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
