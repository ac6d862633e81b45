"""Which values means and slopes are made of, why the others are not, and where rounding begins."""

import math

import pytest
import torch
from conftest import TREE, architecture, experiment, vector_data
from made_tables import grid, measure

from ncpipe.metrics import table
from ncpipe.metrics.catalogue import ENTRIES
from ncpipe.metrics.geometry import nc2_identity
from ncpipe.models.build import build_model, input_shape, reshape_inputs
from ncpipe.tables.floors import LINEAR_FLOOR, QUADRATIC_FLOOR, floor_of
from ncpipe.tables.points import usable_points

EPS = 2.0**-52
UP = math.nextafter(LINEAR_FLOOR, 1)


@pytest.mark.parametrize(
    ("metric", "value", "reason"),
    [
        ("nc2_etf", UP, ""),
        ("nc2_etf", LINEAR_FLOOR, "at the rounding floor"),
        ("nc2_etf", -LINEAR_FLOOR, "at the rounding floor"),
        ("nc1_trace_ratio", LINEAR_FLOOR, ""),
        ("nc1_trace_ratio", QUADRATIC_FLOOR, "at the rounding floor"),
        ("nc1_trace_ratio", math.nextafter(QUADRATIC_FLOOR, 1), ""),
        ("nc1_trace_ratio", 0.0, "zero"),
        ("nc1_trace_ratio", math.inf, "infinite"),
        ("nc1_trace_ratio", math.nan, "not a number"),
        ("loss_gap", UP, ""),
        ("loss_gap", LINEAR_FLOOR, "at the rounding floor"),
        ("margin_min", -0.5, "negative"),
        ("margin_min", -math.inf, "infinite"),
        ("margin_min", 1e-300, ""),  # no floor
        ("dnc1_trace_pinv", 1e-60, ""),  # carries the features' scale
    ],
)
def test_a_value_is_used_or_says_why_not(metric, value, reason):
    runs = grid(depths=(2,), seeds=(0,))
    point = usable_points(measure(runs, lambda *_: value, metric), runs).iloc[0]
    assert (point["reason"], point["used"]) == (reason, reason == "")
    on_axis = 0 < value < math.inf
    assert point["log10"] == pytest.approx(math.log10(value)) if on_axis else math.isnan(point["log10"])


@pytest.mark.parametrize("value", [0.1, 0.0, math.nan])
def test_a_run_that_did_not_converge_says_so_first(value):
    runs = grid(depths=(2,), seeds=(0,), converged=False)
    point = usable_points(measure(runs, lambda *_: value), runs).iloc[0]
    assert (point["reason"], point["used"]) == ("run left out", False)


def near_collapse(noise):
    """All metrics where they vanish, but for `noise`: a turned simplex with weights along it, and for
    nc2_identity a turned orthogonal frame."""
    draw = torch.Generator().manual_seed(0)
    turn, _ = torch.linalg.qr(torch.randn(12, 12, generator=draw, dtype=torch.float64))
    means = (torch.eye(5, dtype=torch.float64) - 0.2) @ turn[:5]
    labels = torch.arange(50) % 5
    weight, frame, train, test = (
        centre + noise * torch.randn(centre.shape, generator=draw, dtype=torch.float64)
        for centre in (means, turn[:5], means[labels], means[labels])
    )
    rows = table.measure(train, labels, weight, test_features=test, test_labels=labels)
    values = {(row.metric, row.split): row.value for row in rows}
    return values | {("nc2_identity", "weights"): nc2_identity(frame)}


def test_floors_are_of_the_power_with_which_metrics_vanish():
    """Red: a wrong order, one of what does not vanish or none of what does, a name that no metric has."""
    coarse, fine = near_collapse(1e-5), near_collapse(1e-6)
    vanish = {key: math.log10(coarse[key] / value) for key, value in fine.items() if 0 < value < 1e-4}
    powers = {metric: power for (metric, _), power in vanish.items() if not metric.startswith("singular_")}
    orders = {metric.name: metric.order for metric in ENTRIES if metric.order is not None}
    assert powers == pytest.approx(orders, abs=0.01)
    assert {name for name in orders if floor_of(name)} == set(orders) - {
        "dnc1_trace_pinv",
        "nc0_row_sum",
        "tcv",
    }


def test_what_is_left_of_collapse_in_float64_is_at_the_floor():
    rounded = near_collapse(EPS)
    floors = {key: floor_of(key[0]) for key in rounded if floor_of(key[0])}
    assert all(rounded[key] <= floor for key, floor in floors.items())
    distinct = near_collapse(1e4 * EPS)
    assert all(distinct[key] > floor for key, floor in floors.items())


@pytest.mark.parametrize(
    ("name", "norm"), [("L-RN1", "post"), ("L-RN2", "pre"), ("L-T11", "pre"), ("L-T22", "post")]
)
def test_forward_passes_round_a_tenth_of_the_floor_at_most(name, norm):
    """What float32 loses at L = 34, in units of its own precision and against the distances of classes."""
    transformer = name.startswith("L-T")
    size = {"patch": 16} if transformer else {}
    keys = architecture(name, norm, width=64, gain=0.5 if transformer else 1.0, **size)
    wide = TREE["data"] | {"dimension": 64}
    data, model = vector_data(10, 20, 64), experiment(model=keys, data=wide).model
    network = build_model(model, input_shape(data, model), 10, 34, seed=0)
    x = reshape_inputs(data.train.inputs, data.kind, model)
    with torch.no_grad():
        rounded = network.features(x).double()
        h = network.double().features(x.double())
    means = torch.stack([h[data.train.labels == k].mean(0) for k in range(10)])
    apart = (means - means.mean(0)).square().sum(1).mean().sqrt()
    error = (rounded - h).square().sum(1).mean().sqrt() / apart / torch.finfo(torch.float32).eps
    assert 1 < error < LINEAR_FLOOR / EPS / 10
