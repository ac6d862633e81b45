"""Networks of biases alone: at the features model's optimum at a finite depth, with no penalty inside."""

from typing import Any

import pytest
import torch
from conftest import vector_data
from constructions import SHARP, context_run, contexts, inner_square, layers_of, small_run

from ncpipe.metrics.losses import logits_of, unregularised_loss
from ncpipe.metrics.table import measure
from ncpipe.papers.s25.shifts import shifts
from ncpipe.system.errors import InputError
from ncpipe.theory.gufm import optimal_value


@pytest.mark.parametrize(
    ("name", "loss", "bias", "strength"),
    [
        ("L-RN1", "ce", False, 0.5),
        ("L-RN2", "ce", True, 0.005),
        ("L-RN2", "mse", False, 0.5),
        ("L-RN1", "mse", True, 0.005),
    ],
)
def test_the_least_loss_is_reached_at_a_finite_depth(
    name: str, loss: str, bias: bool, strength: float
) -> None:
    """Against S25 App. C, whose bound leaves biases out, and for any lambda: gap 0 with L = N - K + a few."""
    penalty: dict[str, Any] = {"rule": "constant", "value": strength, "last_layer": 0.005}
    data = vector_data(3, 6, 4)  # more samples than lin_0 could place by itself
    run = small_run(name, 24, loss=loss, penalty=penalty, model={"last_bias": bias})
    state = shifts(run, data, SHARP)
    assert inner_square(state) == 0
    h = layers_of(run, data, state)["last"]
    weight, offset = state["last.weight"], state.get("last.bias")
    value = (
        unregularised_loss(h, data.train.labels, weight, offset, run.spec.loss)
        + 0.0025 * weight.square().sum().item()
    )
    assert value == pytest.approx(optimal_value(run.spec.loss, 3, 8, 0.005, bias), abs=1e-13)
    metrics = {row.metric: row.value for row in measure(h, data.train.labels, weight, offset)}
    assert metrics["nc1_trace_ratio"] < 1e-15
    assert metrics["nc3_cosine"] < 1e-14
    assert metrics["nc2_identity" if loss == "mse" and not bias else "nc2_etf"] < 1e-13
    assert torch.equal(logits_of(h, weight, offset).argmax(1), data.train.labels)


def test_the_usual_epsilon_leaves_a_gap() -> None:
    """docs/results/corrections.md: small for 12 samples, as large as chance's loss for 30."""
    penalty = {"rule": "constant", "value": 0.005, "last_layer": 0.005}
    for samples, low, high in ((4, 1e-7, 1e-6), (10, 0.1, 1.1)):
        data, depth = vector_data(3, samples, 4), 3 * samples + 8
        state = shifts(small_run("L-RN1", depth, penalty=penalty), data, SHARP)
        usual = small_run("L-RN1", depth, penalty=penalty, model={"layer_norm_eps": 1e-5})
        h = layers_of(usual, data, state)["last"]
        fit = unregularised_loss(h, data.train.labels, state["last.weight"], None, "ce")
        value = fit + 0.0025 * state["last.weight"].square().sum().item()
        assert low < value - optimal_value("ce", 3, 8, 0.005, False) < high


def test_a_transformer_pays_for_its_first_attention_alone() -> None:
    run = context_run("L-T11", 16)
    state = shifts(run, contexts(), SHARP)
    assert inner_square(state) == pytest.approx(3 * 16**-0.5)  # gamma^2 V
    h = layers_of(run, contexts(), state)["last"]
    metrics = {row.metric: row.value for row in measure(h, contexts().train.labels)}
    assert metrics["nc1_trace_ratio"] < 1e-12


def test_what_it_cannot_do_is_said() -> None:
    data = vector_data(3, 6, 4)
    with pytest.raises(InputError, match="layer_norm_eps: 0"):
        shifts(small_run("L-RN1", 24, model={"layer_norm_eps": 1e-5}), data, SHARP)
    with pytest.raises(InputError, match="deepen it"):
        shifts(small_run("L-RN1", 16), data, SHARP)
    with pytest.raises(InputError, match="deepen it"):
        shifts(small_run("L-RN1", 10), data, SHARP)
