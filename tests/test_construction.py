"""Constructed networks against S25 App. A: where samples go, what that costs, and what the proof asks for."""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conftest import image_data, refused_by, vector_data
from constructions import PRINTED, SHARP, context_run, contexts, inner_square, layers_of, small_run
from torch import Tensor

from ncpipe.config.run import Run
from ncpipe.datasets.prepared import Prepared, Split
from ncpipe.metrics.losses import logits_of, unregularised_loss
from ncpipe.metrics.table import measure
from ncpipe.models.build import build_model, input_shape
from ncpipe.models.layers import layer_norm
from ncpipe.papers.s25.calls import biases_excess
from ncpipe.papers.s25.constructions.assumptions import distinct_samples
from ncpipe.papers.s25.constructions.blocks import (
    Layout,
    stage_one,
    stage_one_bound,
    stage_two,
    stage_two_bound,
)
from ncpipe.papers.s25.constructions.curves import arc_between, cut_at
from ncpipe.papers.s25.constructions.embeddings import on_sphere
from ncpipe.papers.s25.constructions.networks import (
    Choices,
    Construction,
    construct,
)
from ncpipe.papers.s25.counterexample import near_collapsed_data
from ncpipe.papers.s25.shifts import shifts
from ncpipe.papers.s25.study_rows import counterexample_rows
from ncpipe.theory.gufm import optimal_value

RESNETS = ("L-RN1", "L-RN2")


def sphere_points(count: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return on_sphere(torch.randn(count, width, generator=generator, dtype=torch.float64))


def data_of(classes: int = 3, per_class: int = 2, size: int = 8) -> Prepared:
    return vector_data(classes, per_class, size)


def even(name: str, length: int, choices: Choices = SHARP, **changes: Any) -> tuple[Run, Construction]:
    """K = 3, N = 6 with L_1 = L_2 = `length`."""
    run = small_run(name, 9 * length + 1, **changes)
    return run, even_construction(run, data_of(), choices)


def even_construction(run: Run, data: Prepared, choices: Choices) -> Construction:
    """L_1 = L_2, and angles divided by L_2 or as the printed strengths do."""
    if choices.constants == "printed":
        return construct(run, data, choices)
    count = len(distinct_samples(run, data)[0])
    length, rest = divmod(run.depth - 1, count + data.classes)
    return construct(run, data, choices, Layout(length, length, rest, float(length)))


def loglog_slope(x: list[float], y: list[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


# ---- Arcs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through", [False, True])
def test_an_arc_joins_its_ends_on_the_sphere_and_is_cut_on_the_rim(through: bool) -> None:
    """Against a dense walk along it."""
    start, end, middle, *others = sphere_points(40, 7)
    arc = arc_between(start, end, middle if through else None)
    walk = arc.at(torch.linspace(0, arc.angle, 20001, dtype=torch.float64))
    torch.testing.assert_close(on_sphere(walk), walk, rtol=0, atol=1e-12)
    torch.testing.assert_close(walk[[0, -1]], torch.stack([start, end]))
    assert arc.length <= 2 * math.pi * 7**0.5
    assert walk.diff(dim=0).norm(dim=1).sum().item() == pytest.approx(arc.length, rel=1e-6)
    assert ((walk - middle).norm(dim=1).min().item() < 1e-2) == through
    nearest = (walk @ torch.stack(others).T).amax(0)
    torch.testing.assert_close(arc.nearest_products(torch.stack(others)), nearest, rtol=0, atol=1e-6)
    level = 7 * 0.7
    assert start @ end < level
    cut = cut_at(arc, end, level)
    walk = cut.at(torch.linspace(0, cut.angle, 1001, dtype=torch.float64))
    assert (walk[-1] @ end).item() == pytest.approx(level)
    assert ((walk[:-1] @ end) < level).all()


# ---- Where the samples go -------------------------------------------------------------------------------


@pytest.mark.parametrize("choices", [SHARP, PRINTED], ids=["sharp", "printed"])
@pytest.mark.parametrize("name", RESNETS)
def test_each_group_of_blocks_moves_its_own_samples_and_no_other(name: str, choices: Choices) -> None:
    """The module's forward pass: N groups along the arcs to the rims, then K groups of whole classes."""
    run, built = even(name, 5, choices)
    layers = list(layers_of(run, data_of(), built.state).values())
    _, place = distinct_samples(run, data_of())
    plan, order = built.plan, torch.argsort(place)
    for group in range(plan.samples + plan.classes):
        before, after = layers[5 * group][order], layers[5 * group + 5][order]
        moves = (
            torch.arange(plan.samples) == group
            if group < plan.samples
            else plan.labels == group - plan.samples
        )
        assert torch.allclose(before[~moves], after[~moves], atol=1e-12)
        if group < plan.samples:
            assert torch.allclose(after[group], plan.rests()[group], atol=1e-12)
            assert (after[group] @ plan.targets[plan.labels[group]]).item() >= 8 * (1 - plan.cap) - 1e-12
        else:
            angle, end = (_tangents(x[moves], plan.targets[group - plan.samples]) for x in (before, after))
            if choices is SHARP:
                assert torch.allclose(end, angle / 5, rtol=1e-9)
            else:
                assert (end < angle / 5).all()


def _tangents(x: Tensor, targets: Tensor) -> Tensor:
    """Tangents of the angles between rows x (M, d) and their targets, (d,) or (M, d)."""
    units = targets / targets.norm(dim=-1, keepdim=True)
    along = (x * units).sum(1, keepdim=True)
    return ((x - along * units).norm(dim=1, keepdim=True) / along).squeeze(1)


def _rim_tangents(built: Construction) -> Tensor:
    """Where stage 2 begins, (M,)."""
    return _tangents(built.plan.rests(), built.plan.targets[built.plan.labels])


# ---- What it costs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("choices", [SHARP, PRINTED], ids=["sharp", "printed"])
@pytest.mark.parametrize("name", RESNETS)
@pytest.mark.parametrize("length", [2, 30])
def test_both_stages_cost_no_more_than_the_proof_says(name: str, choices: Choices, length: int) -> None:
    run, built = even(name, length, choices)
    layers = int(name[-1])
    plan, half = built.plan, run.spec.penalty.inner_strength(run.depth) / 2
    first, second = (
        half * part.square(layers)
        for part in (stage_one(plan, length), stage_two(plan, length, built.layout.factor))
    )
    assert half * inner_square(built.state) == pytest.approx(first + second)
    assert first <= stage_one_bound(plan, length, 2 * half, layers)
    assert second <= stage_two_bound(plan, length, 2 * half, layers) * (1 + 1e-12)


@pytest.mark.parametrize("choices", [SHARP, PRINTED], ids=["sharp", "printed"])
def test_one_block_takes_a_sample_to_its_rim_whatever_its_way(choices: Choices) -> None:
    """L_1 = 1 on arcs of more than half a circle: the chord of the printed strength cannot reach that far."""
    plan = even("L-RN1", 4, choices)[1].plan
    start, end, through = plan.starts[0], plan.targets[0], sphere_points(1, 8, seed=3)[0]
    arc = max((arc_between(start, end, way) for way in (through, -through)), key=lambda arc: arc.angle)
    assert arc.angle > math.pi
    longer = dataclasses.replace(plan, arcs=(cut_at(arc, end, 8 * (1 - plan.cap)), *plan.arcs[1:]))
    blocks = stage_one(longer, 1)
    moved = longer.starts[0] + torch.relu(
        blocks.strength[0] * (blocks.output[0] * (blocks.key[0] @ longer.starts[0]) - blocks.threshold[0])
    )
    assert torch.allclose(on_sphere(moved.unsqueeze(0))[0], longer.rests()[0], atol=1e-12)


@pytest.mark.parametrize(
    ("loss", "bias", "nc2"),
    [("ce", False, "nc2_etf"), ("mse", False, "nc2_identity"), ("mse", True, "nc2_etf")],
)
def test_the_end_is_the_features_models_optimum(loss: str, bias: bool, nc2: str) -> None:
    """W is an optimum's, with the frame of its loss; features approach theirs: the angle's tangent is that on
    the rim over L_2."""
    rows = []
    for length in (4, 8, 16, 32):
        run, network = even("L-RN1", length, loss=loss, model={"last_bias": bias})
        h = layers_of(run, data_of(), network.state)["last"]
        labels = data_of().train.labels
        weight, offset = network.state["last.weight"], network.state.get("last.bias")
        assert (offset is not None) == bias
        metrics = {row.metric: row.value for row in measure(h, labels, weight, offset) if row.split != "test"}
        fit = unregularised_loss(h, labels, weight, offset, loss)
        best = optimal_value(loss, 3, 8, 0.005, bias)
        penalty = 0.0025 * weight.square().sum().item()
        assert metrics[nc2] < 1e-14
        assert (logits_of(h, weight, offset).argmax(1) == labels).all()
        rows.append((metrics["nc1_trace_ratio"], metrics["nc3_cosine"], fit + penalty - best))
        tangents = _rim_tangents(network) / length
        expected = 1 - torch.cos(torch.atan(tangents)).mean().item()
        assert metrics["nc3_cosine"] == pytest.approx(expected, rel=1e-6)
    for values in zip(*rows, strict=True):
        assert loglog_slope([4.0, 8.0, 16.0, 32.0], list(values)) == pytest.approx(-2, abs=0.25)
        assert min(values) > 0


def test_eps_shortens_the_features_and_turns_none() -> None:
    ends = {}
    for eps in (0.0, 1e-5, 1e-3):
        run, built = even("L-RN1", 8, model={"layer_norm_eps": eps})
        ends[eps] = layers_of(run, data_of(), built.state)["last"]
    assert torch.allclose(on_sphere(ends[1e-3]), ends[0.0], atol=1e-10)
    lengths = ends[1e-3].norm(dim=1)
    assert ((lengths > math.sqrt(8 * (1 - 1e-3)) - 1e-9) & (lengths < math.sqrt(8))).all()
    assert torch.allclose(on_sphere(ends[1e-5]), ends[0.0], atol=1e-10)


# ---- Transformers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["L-T11", "L-T12", "L-T21", "L-T22"])
@pytest.mark.parametrize("kind", ["tokens", "patches"])
def test_a_transformer_is_a_resnet_behind_its_first_block(name: str, kind: str) -> None:
    if kind == "tokens":
        data, run = contexts(), context_run(name, 33)
    else:
        data, run = data_of(size=12), small_run(name, 37, model={"patch": 3})
    built = even_construction(run, data, SHARP)
    h = layers_of(run, data, built.state)["last"]
    assert (logits_of(h, built.state["last.weight"], None).argmax(1) == data.train.labels).all()
    _, place = distinct_samples(run, data)
    targets = built.optimum.features[data.train.labels]
    assert torch.allclose(_tangents(h, targets), _rim_tangents(built)[place] / 4, rtol=1e-6)


def test_contexts_are_written_in_binary() -> None:
    """sqrt(d) 2^-(i+1) on a token's own coordinate, i places before the last."""
    run = context_run("L-T11", 33)
    built = even_construction(run, contexts(), SHARP)
    model = run.spec.model
    network = build_model(model, input_shape(contexts(), model), 2, run.depth, 0).double()
    network.load_state_dict(built.state)
    ids = contexts().train.inputs
    rows = layer_norm(network.embedding(ids), network.eps).view(6, 3, 8)
    for sample in range(6):
        for place in range(3):
            entries = rows[sample, place, :3]
            expected = torch.zeros(3, dtype=torch.float64)
            expected[ids[sample, place]] = 8**0.5 * 2.0 ** -(3 - place)
            assert torch.allclose(entries, expected, atol=1e-12)
    assert rows.sum(2).abs().max() < 1e-12
    products = built.plan.starts @ built.plan.starts.T / 8
    assert (products - torch.eye(6) * 3).max() < 1  # six contexts, six places


# ---- Use and misuse -------------------------------------------------------------------------------------


def test_the_layout_is_about_the_best_and_uses_up_the_depth() -> None:
    run = small_run("L-RN1", 200)
    built = construct(run, data_of(), SHARP)
    layout = built.layout
    assert 6 * layout.first + 3 * layout.second + layout.idle == 199
    assert 0 <= layout.idle < 6

    def loss(construction: Construction) -> float:
        h = layers_of(run, data_of(), construction.state)["last"]
        fit = unregularised_loss(h, data_of().train.labels, construction.state["last.weight"], None, "ce")
        return fit + 0.0025 * inner_square(construction.state)

    best = loss(built)
    plan = built.plan
    second = 0.0025 * stage_two(plan, layout.second, layout.factor).square(1)
    assert second <= stage_two_bound(plan, layout.second, 0.005, 1)
    for second, factor in itertools.product((2, 10, 64), (2.0, 64.0)):
        first, rest = divmod(199 - 3 * second, 6)
        assert best <= 1.05 * loss(construct(run, data_of(), SHARP, Layout(first, second, rest, factor)))


def test_images_and_repeated_samples_are_taken() -> None:
    data = image_data(per_class=2)
    run = small_run("L-RN1", 40)
    h = layers_of(run, data, construct(run, data, SHARP).state)["last"]
    assert h.shape == (6, 8)
    twice = Split(data.train.inputs.repeat(2, 1, 1, 1), data.train.labels.repeat(2))
    built = construct(run, dataclasses.replace(data, train=twice), SHARP)
    assert built.plan.samples == 6


def broken(**changes: Any) -> Prepared:
    data = data_of()
    inputs, labels = data.train.inputs.clone(), data.train.labels.clone()
    if changes.get("equal"):
        inputs[4] = inputs[1]
    if changes.get("unbalanced"):
        inputs, labels = inputs[:-1], labels[:-1]
    return dataclasses.replace(data, train=Split(inputs, labels))


def contexts_of_two_labels() -> Prepared:
    data = contexts()
    ids = data.train.inputs.clone()
    ids[5] = torch.tensor([0, 1, 2])  # with a length of 2 the context of sample 2
    return dataclasses.replace(data, train=Split(ids, data.train.labels, data.train.lengths))


def building(run: Run, data: Prepared) -> Callable[[], object]:
    return lambda: construct(run, data, SHARP)


def shifted(depth: int, **changes: Any) -> Callable[[], object]:
    return lambda: shifts(small_run("L-RN1", depth, **changes), vector_data(3, 6, 4), SHARP)


def of_app_c(name: str, depth: int) -> Callable[[], object]:
    return lambda: list(counterexample_rows(small_run(name, depth), 3, 2, [0.1], [depth], 0))


FREE_LAST = {"rule": "constant", "value": 0.005, "last_layer": 0.0}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (building(small_run("L-RN1", 12), data_of()), "too shallow for 6 distinct samples"),
        (building(small_run("L-RN1", 90), broken(equal=True)), "Assumption 4.4.*samples 1 and 4 are equal"),
        (building(small_run("L-RN1", 90), broken(unbalanced=True)), "classes of one size"),
        (building(small_run("L-RN1", 90, width=3), data_of()), "width d >= 4"),
        (building(small_run("L-RN1", 90, width=4), data_of(5)), "width"),
        (building(context_run("L-T11", 90, width=7), contexts()), "2V \\+ 2 = 8"),
        (building(context_run("L-T11", 60), contexts_of_two_labels()), "Assumption 4.4.*samples 2 and 5"),
        (building(small_run("L-RN1", 90, model={"norm": "pre"}), data_of()), "post-LN"),
        (building(small_run("L-RN2", 90, model={"mlp_width": 7}), data_of()), "mlp_width is 7"),
        (building(small_run("L-RN1", 90, penalty=FREE_LAST), data_of()), "GUFM > 0"),
        (shifted(24, model={"layer_norm_eps": 1e-5}), "layer_norm_eps: 0"),
        (shifted(16), "deepen it"),
        (shifted(10), "deepen it"),
        (lambda: biases_excess(3, 4, 0.002, 0.005, 5, 0), "deepen it"),
        (of_app_c("L-RN1", 10), "L-RN2"),
        (of_app_c("L-RN2", 6), "too shallow to collapse 3 classes"),
        (lambda: near_collapsed_data(3, 5, 0.1, "within", seed=1), "odd"),
    ],
)
def test_an_unmet_assumption_is_named(call: Callable[[], object], words: str) -> None:
    assert re.search(words, refused_by(call))


# ---- Biases alone ---------------------------------------------------------------------------------------


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
