"""Tables by layer, against computation by hand."""

import math

import numpy as np
import pandas as pd
import pytest
from made_tables import places_of

from ncpipe.tables import profiles as tables
from ncpipe.tables.keys import RUN


def resnet(depth):
    return [*(f"X{i}" for i in range(1, depth)), "last"]


def transformer(depth):
    return ["embedding", *(f"{half}{i}" for i in range(1, depth + 1) for half in "AB"), "last"]


def layer_profile(table, runs):
    return tables.layer_profile(table, places_of(table), runs)


def separation_law(table, runs):
    return tables.separation_law(table, places_of(table), runs)


def effective_depths(table, runs, tolerance):
    return tables.effective_depths(tables.layer_errors(table, places_of(table), runs), runs, tolerance)


def made_runs(depths=(2, 12), seeds=(0, 1), experiments=("rn",)):
    rows = [(name, depth, seed) for name in experiments for depth in depths for seed in seeds]
    return pd.DataFrame(rows, columns=RUN).assign(converged=True, selected=True)


def measure(runs, value, metric="nc1_trace_ratio", split="train", layers=resnet):
    """value(depth, seed, place of the layer from 0) at every layer of every run, rows shuffled."""
    rows = [
        (*key, layer, split, metric, value(key[1], key[2], place))
        for key in runs[RUN].itertuples(index=False, name=None)
        for place, layer in enumerate(layers(key[1]))
    ]
    table = pd.DataFrame(rows, columns=[*RUN, "layer", "split", "metric", "value"])
    return table.sample(frac=1, random_state=0)


# Profiles


def test_profile_has_means_of_converged_runs_in_layer_order():
    runs = made_runs(seeds=(0, 1, 2))
    runs.loc[runs["seed"] == 2, ["converged", "selected"]] = False
    profile = layer_profile(measure(runs, lambda depth, seed, place: 10.0 ** -(place + 2 * seed)), runs)
    deep = profile[profile["depth"] == 12]
    assert deep["layer"].tolist() == resnet(12)
    assert deep["position"].tolist() == list(range(1, 13))
    assert set(profile["n_used"]) == {2}
    places = np.arange(12)
    values = np.array([10.0**-places, 10.0 ** -(places + 2)])
    assert deep["mean"].to_numpy() == pytest.approx(values.mean(0))
    assert deep["std"].to_numpy() == pytest.approx(values.std(0, ddof=1))
    assert deep["log10_mean"].to_numpy() == pytest.approx(-places - 1)
    assert deep["log10_std"].to_numpy() == pytest.approx(np.full(12, math.sqrt(2)))


def test_zeros_count_in_means_and_infinities_in_none():
    runs = made_runs(depths=(2,), seeds=(0, 1, 2))
    values = [0.0, 0.1, math.inf]
    first = layer_profile(measure(runs, lambda depth, seed, place: values[seed]), runs).iloc[0]
    assert (first["n_used"], first["n_log10"]) == (2, 1)
    assert first["mean"] == pytest.approx(0.05)
    assert first["log10_mean"] == pytest.approx(-1)
    assert math.isnan(first["log10_std"])


def test_layers_without_a_position_are_left_out():
    runs = made_runs(depths=(2,), seeds=(0,))
    table = measure(runs, lambda *_: 1.0, layers=lambda depth: ["X1", "X1_pre", "last"])
    assert layer_profile(table, runs)["layer"].tolist() == ["X1", "last"]
    assert separation_law(table, runs)["n_layers"].tolist() == [2]


@pytest.mark.parametrize(("used", "rows"), [(False, None), (True, 0)], ids=["none used", "none measured"])
def test_nothing_is_empty_everywhere(used, rows):
    runs = made_runs().assign(converged=used, selected=used)
    table = pd.concat([measure(runs, lambda *_: 1.0), measure(runs, lambda *_: 0.0, "ncc_error")]).iloc[:rows]
    for empty in (
        layer_profile(table, runs),
        separation_law(table, runs),
        effective_depths(table, runs, 0.0),
    ):
        assert empty.empty
        assert {"experiment", "depth"} <= set(empty.columns)


# The law of data separation


@pytest.mark.parametrize("metric", ["nc1_trace_ratio", "nc1_pinv"])
def test_a_geometric_decay_is_the_law_with_its_factor(metric):
    runs = made_runs(depths=(5, 12))
    table = measure(runs, lambda depth, seed, place: 3 * (0.5 + 0.1 * seed) ** (place + 1), metric)
    law = separation_law(table, runs)
    assert law["rho"].to_numpy() == pytest.approx(0.5 + 0.1 * law["seed"])
    assert law["slope"].to_numpy() == pytest.approx(np.log10(law["rho"]))
    assert law["intercept"].to_numpy() == pytest.approx(math.log10(3))
    assert law["r_squared"].to_numpy() == pytest.approx(1)
    assert law["n_layers"].tolist() == [5, 5, 12, 12]
    assert set(law["metric"]) == {metric}


def test_the_line_is_numpys_and_r_squared_the_squared_correlation():
    runs = made_runs(depths=(4,), seeds=(0,))
    heights = np.random.default_rng(0).standard_normal(10)
    table = measure(runs, lambda depth, seed, place: 10 ** heights[place], layers=transformer)
    law = separation_law(table, runs).iloc[0]
    positions = np.arange(10) / 2
    assert [law["slope"], law["intercept"]] == pytest.approx(np.polyfit(positions, heights, 1))
    assert law["r_squared"] == pytest.approx(np.corrcoef(positions, heights)[0, 1] ** 2)


def test_exactly_collapsed_layers_are_not_in_the_line():
    runs = made_runs(depths=(6,), seeds=(0,))
    law = separation_law(measure(runs, lambda *key: 0.5 ** key[2] if key[2] < 4 else 0.0), runs).iloc[0]
    assert (law["n_layers"], law["rho"]) == (4, pytest.approx(0.5))


@pytest.mark.parametrize(("depth", "has_slope"), [(1, False), (2, True)])
def test_too_few_layers_for_a_line_or_for_its_r_squared(depth, has_slope):
    runs = made_runs(depths=(depth,), seeds=(0,))
    law = separation_law(measure(runs, lambda *key: 0.5 ** key[2]), runs).iloc[0]
    assert math.isfinite(law["rho"]) == has_slope
    assert math.isnan(law["r_squared"])


def test_test_split_and_other_metrics():
    runs = made_runs(depths=(5,), seeds=(0,))
    parts = [
        measure(runs, lambda *key: 0.5 ** key[2]),
        measure(runs, lambda *key: 0.9 ** key[2], split="test"),
        measure(runs, lambda *key: 0.1 ** key[2], "nc2_means"),
    ]
    law = separation_law(pd.concat(parts), runs)
    assert law["split"].tolist() == ["test", "train"]
    assert law["rho"].tolist() == pytest.approx([0.9, 0.5])


# Effective depth


@pytest.mark.parametrize(
    ("layers", "depth", "errors", "expected"),
    [
        (resnet, 12, [0.2] * 8 + [0.1, 0.2, 0.1, 0.2], ("X9", 9, 0.75, True)),  # a later one is worse again
        (resnet, 12, [0.2] * 12, ("", 12, 1, False)),
        (transformer, 3, [0.0] * 8, ("embedding", 0, 0, True)),  # half blocks count up to the depth
        (transformer, 3, [0.2] * 3 + [0.0] * 5, ("A2", 1.5, 0.5, True)),
        (transformer, 3, [0.2] * 6 + [0.0] * 2, ("B3", 3, 1, True)),
        (transformer, 3, [0.2] * 7 + [0.0], ("last", 3, 1, True)),
    ],
)
def test_the_first_layer_within_the_tolerance_by_its_name(layers, depth, errors, expected):
    runs = made_runs(depths=(depth,), seeds=(0,))
    table = measure(runs, lambda *key: errors[key[2]], "ncc_error", layers=layers)
    row = effective_depths(table, runs, 0.1).iloc[0]
    assert tuple(row[["layer", "effective_depth", "fraction", "reached"]]) == expected
    assert row["n_layers"] == len(errors)


def test_test_error_and_runs_that_failed_have_no_effective_depth():
    runs = made_runs()
    runs.loc[runs["seed"] == 1, ["converged", "selected"]] = False
    table = pd.concat(
        [measure(runs, lambda *_: 0.2, "ncc_error"), measure(runs, lambda *_: 0.0, "ncc_error", "test")]
    )
    found = effective_depths(table, runs, 0.1)
    assert found["seed"].tolist() == [0, 0]
    assert not found["reached"].any()
