"""The gap of networks to the optimum of the GUFM: what is reported, and what is refused."""

import math

import pytest
import torch
from conftest import experiment, vector_data

from ncpipe.config.run import Run
from ncpipe.features.extraction import extract
from ncpipe.features.run_metrics import describe, gram_rows, terms_of
from ncpipe.metrics.losses import unregularised_loss
from ncpipe.system.errors import InputError
from ncpipe.theory.gap import (
    NO_OPTIMUM,
    NOT_FINITE,
    TOO_LONG,
    UNBALANCED,
    UNBOUNDED,
    Objective,
    TrainedState,
    gap_to_optimum,
)
from ncpipe.theory.gufm import optimal_value, optimum
from ncpipe.training.loop import train_batch

CPU = torch.device("cpu")
CASES = [("ce", False), ("ce", True), ("mse", False), ("mse", True)]


def gap_of(loss, features, labels, weight, offset, strength, inner=0.0, **changes):
    objective = Objective(
        unregularised_loss(features, labels, weight, offset, loss),
        strength / 2 * weight.square().sum().item(),
        inner,
    )
    reached = {
        "loss": loss, "objective": objective, "features": features,
        "labels": labels, "weight": weight, "bias": offset is not None, "strength": strength, "bounded": True,
    }  # fmt: skip
    return gap_to_optimum("x L=3 seed=0", TrainedState(**reached | changes))


def at_optimum(loss, bias, classes=4, width=8, strength=0.02):
    """Features of three samples a class, labels, weight and bias of the GUFM's optimum."""
    best = optimum(loss, classes, width, strength, bias)
    labels = torch.arange(classes).repeat_interleave(3)
    return best.features[labels], labels, best.weight, best.bias


@pytest.mark.parametrize(("loss", "bias"), CASES)
def test_the_optimum_has_no_gap_and_the_inner_penalty_is_all_that_is_added(loss, bias):
    gap = gap_of(loss, *at_optimum(loss, bias), 0.02, inner=0.125)
    assert gap.bound == "holds"
    assert gap.loss_optimum == optimal_value(loss, 4, 8, 0.02, bias)
    assert gap.loss_gap == pytest.approx(0.125, rel=1e-13)
    for part in (gap.gap_gufm, gap.gap_fit, gap.gap_last_penalty):
        assert part == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize(("loss", "bias"), CASES)
@pytest.mark.parametrize("factor", [0.995, 1.005])
def test_a_scaled_last_layer_moves_the_two_terms_apart_and_the_gap_up(loss, bias, factor):
    features, labels, weight, offset = at_optimum(loss, bias)
    gap = gap_of(loss, features, labels, factor * weight, offset, 0.02, inner=0.5)
    assert gap.gap_gufm == pytest.approx(gap.gap_fit + gap.gap_last_penalty, rel=1e-12)
    assert gap.loss_gap == pytest.approx(gap.gap_gufm + 0.5, rel=1e-14)
    assert gap.gap_gufm > 1e-8
    assert (gap.gap_last_penalty > 0) == (factor > 1)
    assert (gap.gap_fit < 0) == (factor > 1)


@pytest.mark.parametrize(("loss", "bias"), CASES)
def test_a_loss_below_the_optimum_is_an_error_that_names_the_run(loss, bias):
    features, labels, weight, offset = at_optimum(loss, bias)
    best = optimum(loss, 4, 8, 0.02, bias)
    planted = Objective(best.fit - 1e-9, best.penalty, 0.125)
    with pytest.raises(
        InputError, match=r"^x L=3 seed=0: .* 1e-09 below the least that is possible"
    ) as caught:
        gap_of(loss, features, labels, weight, offset, 0.02, objective=planted)
    assert "\n" not in str(caught.value)
    rounded = Objective(best.fit - 1e-14, best.penalty, 0.125)
    assert gap_of(loss, features, labels, weight, offset, 0.02, objective=rounded).bound == "holds"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda h, y, w: (h[:-1], y[:-1], w, 0.02), (UNBALANCED, "2 to 3 samples")),
        (
            lambda h, y, w: (h * (1 + 1e-5 * (torch.arange(12) == 5).double()[:, None]), y, w, 0.02),
            (TOO_LONG, "a feature has norm 2.82845541, above the sqrt(d) = 2.82842712 of LN"),
        ),
        (
            lambda h, y, w: (0.1 * h[:, :3], y, w[:, :3], 0.02),
            (NO_OPTIMUM, "width: 3 is below 4, which 4 classes need for a closed-form optimum"),
        ),
        (
            lambda h, y, w: (h, y, w, 0.0),
            (NO_OPTIMUM, "lambda_L: 0; an optimum exists only for a positive one"),
        ),
        (lambda h, y, w: (h, y, w * math.nan, 0.02), (NOT_FINITE, "")),
        (lambda h, y, w: (h[:-3], y[:-3], w, 0.02), (UNBALANCED, "0 to 3 samples")),
        (None, (UNBOUNDED, "nothing limits the norm of this architecture's features")),
    ],
)
def test_an_unmet_condition_is_no_bound_with_its_reason(change, reason):
    *reached, offset = at_optimum("ce", False)
    *changed, strength = change(*reached) if change else (*reached, 0.02)
    gap = gap_of("ce", *changed, offset, strength, bounded=change is not None)
    assert (gap.bound, gap.bound_detail) == reason
    numbers = (gap.loss_optimum, gap.loss_gap, gap.gap_gufm, gap.gap_fit, gap.gap_last_penalty)
    assert all(map(math.isnan, numbers))


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("depth", [2, 4])
def test_a_runs_row_holds_it_against_its_own_last_strength(depth, biases):
    """lambda = 0.01/L in the inner layers, 0.03 in the last one: a row names and sums its terms."""
    penalty = {"rule": "over_depth", "value": 0.01, "last_layer": 0.03, "biases": biases}
    spec = experiment(penalty=penalty, epochs=5, model={"last_bias": True})
    run, data = Run("x", depth, 0, spec), vector_data()
    [trained] = train_batch([run], data, CPU, "float32")
    features = extract(run, trained.state, data, CPU)
    row = describe(run, features, {"finished": True, "diverged_at_epoch": None})
    end = trained.history[-1]
    assert (row["train_error"], row["test_error"]) == pytest.approx((end.train_error, end.test_error))
    assert end.train_error != end.test_error
    means = torch.stack([features.train.inputs[data.train.labels == k].mean(0) for k in range(3)])
    centred, weight = means - means.mean(0), trained.state["last.weight"].double()
    for cell in gram_rows(features):
        one = (centred if cell["matrix"] == "means" else weight)[cell["row"]]
        cosine = torch.cosine_similarity(one, centred[cell["column"]], dim=0).item()
        assert cell["value"] == pytest.approx(cosine, rel=1e-9), cell["matrix"]
    assert row["bound"] == "holds"
    assert (row["penalty_value"], row["penalty_biases"]) == (0.01, biases)
    assert (row["penalty_rule"], row["last_strength"]) == ("over_depth", 0.03)
    assert row["loss_optimum"] == optimal_value("ce", 3, 8, 0.03, True)
    inner = [value for name, value in trained.state.items() if name.startswith("blocks.")]
    penalised = [value for value in inner if value.dim() == 2 or biases]
    square = sum(value.double().square().sum().item() for value in penalised)
    assert row["inner_penalty"] == pytest.approx(0.01 / depth / 2 * square, rel=1e-14)
    assert row["loss"] == pytest.approx(trained.history[-1].loss, rel=1e-6)
    assert row["loss"] == pytest.approx(row["fit"] + row["last_penalty"] + row["inner_penalty"])
    assert row["loss_gap"] == pytest.approx(row["loss"] - row["loss_optimum"])
    assert row["gap_gufm"] == pytest.approx(row["loss_gap"] - row["inner_penalty"])
    terms = {term.metric: term.value for term in terms_of(depth, row)}
    assert terms["inner_penalty_times_depth"] == depth * row["inner_penalty"]
    shared = ("loss_gap", "gap_gufm", "gap_fit", "gap_last_penalty", "inner_penalty")
    assert {name: terms[name] for name in shared} == {name: row[name] for name in shared}
