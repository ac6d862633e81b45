"""Tables: convergence, means over seeds and layers, rounding and what DVC shows, against naive references."""

import dataclasses
import json
import math
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import TREE, architecture, experiment, vector_data
from made_study import tables as made_tables
from made_tables import DEPTHS, grid, measure, noisy, places_of, set_converged

from ncpipe.commands.compare import parse_table
from ncpipe.config.params import Convergence, Slopes
from ncpipe.metrics.catalogue import ENTRIES
from ncpipe.metrics.geometry import nc2_identity
from ncpipe.metrics.table import measure as measure_arrays
from ncpipe.models.build import build_model, input_shape, reshape_inputs
from ncpipe.system.errors import InputError
from ncpipe.tables import profiles
from ncpipe.tables.convergence import failure_lines, gradient_shares, judge_run, judge_runs
from ncpipe.tables.files import read_table
from ncpipe.tables.floors import LINEAR_FLOOR, QUADRATIC_FLOOR, floor_of
from ncpipe.tables.gaps import unbounded_lines
from ncpipe.tables.keys import RUN
from ncpipe.tables.points import usable_points
from ncpipe.tables.results import curve_series, depth_series, dvc_metrics
from ncpipe.tables.slopes import loglog_slopes
from ncpipe.tables.summary import in_two_groups, summarise

NAMES = (
    "None", "NaN", "nan", "null", "NULL", "NA", "N/A", "n/a", "<NA>", "inf", "-Infinity", "true", "False",
    "1", "01", "1e5", "-",
)  # fmt: skip
READERS = {
    "of runs": lambda path: read_table(path, "aggregate"),
    "of a revision": lambda path: parse_table("HEAD", path.read_text()),
}

RULE = Convergence(train_error=0.0, window=0.1, tolerance=0.01)
SLOPES = Slopes(seed=0, level=0.95)


def history_of(losses, train_error=0.0, every=10):
    """A logged run: one row each `every` epochs."""
    loss = np.asarray(losses, dtype=float)
    epoch = every * np.arange(1, len(loss) + 1)
    return pd.DataFrame(
        {"epoch": epoch, "loss": loss, "fit": loss / 2, "penalty": loss / 2, "train_error": train_error}
    )


@cache
def study_of_one():
    made = made_tables(experiments=("one",), metrics=[("own", "train")])
    return {name: table.reset_index(drop=True) for name, table in made.items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_table_is_read_with_the_types_it_was_written_with(reader, name, tmp_path):
    """Red: a name, layer or metric that is a number, a truth value or missing when it is read again."""
    path = tmp_path / "table.csv"
    for table in study_of_one().values():
        table = table.assign(axis=name, reason=name).replace(dict.fromkeys(("one", "own", "last"), name))
        table.to_csv(path, index=False, lineterminator="\n")
        actual, written = (
            rows.astype(object).where(rows.notna() & (rows != ""), None) for rows in (reader(path), table)
        )
        pd.testing.assert_frame_equal(actual[written.columns], written)


# Convergence


FLAT = [1.0] * 18
TIGHT = Convergence(train_error=0.0, window=0.29, tolerance=0.01)


def loss_at(epoch):
    """A loss of 5 at one epoch of 100, else of 1."""
    return history_of([5.0 if at == epoch else 1.0 for at in range(1, 101)], every=1)


@pytest.mark.parametrize(
    ("history", "rule", "reason", "moved"),
    [
        (history_of([1.0] * 5 + [0.5] * 15), RULE, "", 0.0),
        (history_of([*FLAT, 1.0099, 1.0]), RULE, "", 0.0099),
        (history_of([*FLAT, 2.064, 2.0]), RULE, "loss moving", 1.064 / 2.0),
        (history_of([*FLAT, 2.0, 1.0]), RULE, "loss moving", 1.0),  # a return inside the window
        (history_of([1.0] * 10 + [9.0] * 7 + [1.0] * 3), RULE, "", 0.0),  # before the window
        (loss_at(71), TIGHT, "loss moving", 4.0),  # at its edge: 0.29 * 100 < 29 in floating point
        (loss_at(70), TIGHT, "", 0.0),
        (history_of([1.0]), RULE, "history too short", math.nan),
        (history_of([1.0] * 9), RULE, "history too short", math.nan),
        (history_of([]), RULE, "no history", math.nan),
        (history_of([1.0] * 20, train_error=0.012), RULE, "train error", 0.0),
        (history_of([1.0] * 20, train_error=0.012), dataclasses.replace(RULE, train_error=0.012), "", 0.0),
        (history_of(FLAT, train_error=math.nan), RULE, "", 0.0),  # of targets that are vectors
        (history_of([*FLAT, 2.0, 1.0], train_error=math.nan), RULE, "loss moving", 1.0),
        (history_of([0.0] * 20), RULE, "", 0.0),
        (history_of([0.0] * 18 + [1e-9, 0.0]), RULE, "loss moving", math.inf),
    ],
)
def test_a_run_is_judged_by_its_history(history, rule, reason, moved):
    last_error = history["train_error"].iloc[-1] if len(history) else math.nan
    numbers = [pytest.approx(number, nan_ok=True) for number in (last_error, moved)]
    assert judge_run(history, True, rule) == (reason, *numbers)
    assert judge_run(history, False, rule)[0] == "diverged"  # unfinished


@pytest.mark.parametrize("column", ["loss", "fit", "penalty", "train_error"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_any_value_that_is_not_finite_is_divergence(column, value):
    history = history_of([1.0] * 20)
    history.loc[11, column] = value
    assert judge_run(history, True, RULE)[0] == "diverged"
    assert judge_run(history_of([1.0] * 20).assign(fit=value), True, RULE)[0] == "diverged"  # of every row


def test_runs_that_fit_are_used_converged_or_not_unless_the_study_asks():
    """Red: a run whose loss still moves that enters no mean, or one with a train error that does."""
    runs = grid(depths=(2,), seeds=(0, 1, 2, 3)).drop(columns=["converged", "selected"])
    moving = list(range(20, 0, -1))
    parts = [([1.0] * 20, 0.0), (moving, 0.0), ([1.0] * 20, 0.5), ([1.0, math.nan], 0.0)]
    history = pd.concat(
        [history_of(losses, error).assign(experiment="a", depth=2, seed=seed)
         for seed, (losses, error) in enumerate(parts)]
    ).sample(frac=1, random_state=0)  # fmt: skip
    table = measure(runs, lambda depth, seed: 10.0**seed)
    for use, selected in (("fit", [0, 1]), ("converged", [0])):
        judged = judge_runs(runs, history, dataclasses.replace(RULE, use=use))
        assert judged["reason"].tolist() == ["", "loss moving", "train error", "diverged"]
        assert judged["converged"].tolist() == [True, False, False, False]
        assert judged["loss_moved"].tolist() == pytest.approx([0, 2, 0, math.nan], nan_ok=True)
        assert judged.index[judged["selected"]].tolist() == selected
        (row,) = summarise(table, judged).to_dict("records")
        assert (row["n_selected"], row["n_used"]) == (len(selected), len(selected))
        assert row["log10_mean"] == pytest.approx(np.mean(selected))


def failed_runs(name="a"):
    """At L = 2 a run that ended well; two losses that move, two train errors; at L = 3 one that diverged."""
    runs = grid((name,), depths=(2, 3), seeds=(0, 1, 2)).drop(columns=["converged", "selected"])
    histories = [
        history_of([1.0] * 20),
        history_of([1.0] * 18 + [1.0121, 1.0]),
        history_of([1.0] * 20, train_error=0.1),
        history_of([1.0] * 18 + [1.034, 1.0]),
        history_of([1.0] * 20, train_error=0.025),
        history_of([1.0, math.inf]),
    ]
    keys = runs[RUN].to_dict("records")
    return runs, pd.concat([h.assign(**key) for h, key in zip(histories, keys, strict=True)])


def test_failures_are_counted_by_reason_with_what_would_help():
    """Red: a line a run; a limit under which a run that it counts would still fail; a line of no failure."""
    runs, history = failed_runs("b")
    short = grid(("short",), depths=(2,), seeds=(0, 1)).drop(columns=["converged", "selected"])
    settled = history_of([1.0] * 9).assign(experiment="short", depth=2, seed=0)
    both = pd.concat([short, runs], ignore_index=True), pd.concat([history, settled])
    assert failure_lines(judge_runs(*both, RULE), RULE) == [
        "short: 1 of 2 runs history too short: raise epochs or convergence.window, or lower log_every",
        "short: 1 of 2 runs no history: train them again",
        "b: 2 of 6 runs loss moving (loss_moved 0.012 to 0.034 > 0.01): "
        "raise epochs or convergence.tolerance",
        "b: 2 of 6 runs train error (last_train_error 0.025 to 0.1 > 0): "
        "raise epochs or convergence.train_error",
        "b: 1 of 6 runs diverged (L = 3): lower optimizer.learning_rate",
    ]


def test_a_long_gradient_is_no_end_where_that_is_asked_for():
    """A frozen run: nothing moves, and nothing is stationary. Null asks for nothing; NaN is not small."""
    runs = grid(depths=(2,), seeds=(0, 1, 2)).assign(gradient_norm=[0.01, 0.05, math.nan])
    history = pd.concat([history_of([1.0] * 20).assign(experiment="a", depth=2, seed=s) for s in range(3)])
    assert judge_runs(runs, history, RULE)["converged"].tolist() == [True, True, True]
    strict = dataclasses.replace(RULE, gradient=0.1)
    judged = judge_runs(runs, history, strict)  # the penalty's gradient has the norm 0.1
    assert judged["reason"].tolist() == ["", "gradient", "gradient"]
    for rows, line in (
        (judged[:2], "a: 1 of 2 runs gradient (gradient_share 0.5 > 0.1): raise epochs or"),
        (judged[2:], "a: 1 of 1 runs gradient (no gradient_share): set convergence.gradient to null"),
    ):
        (message,) = failure_lines(rows, strict)
        assert message.startswith(line)


def test_the_share_of_the_gradient_has_no_scale():
    """Independently, by the weights: |gradient| over |(lambda W_1, ..., lambda_L W_L)|.

    Red: lambda that is not divided by L, the last layer's lambda for all, a share that grows with the loss.
    """
    weights = np.random.default_rng(0)
    inner, last = weights.standard_normal(40), weights.standard_normal(9)
    norms, scale = (float(inner @ inner), float(last @ last)), 7.0
    columns = {"depth": 4}
    for times in (1.0, scale):
        for rule, value, strength in (("constant", 0.02, 0.02), ("over_depth", 0.005, 0.3)):
            penalty = times * np.concatenate([value * inner, strength * last])
            run = columns | {
                "penalty_value": times * 0.02,
                "penalty_rule": rule,
                "last_strength": times * strength,
                "inner_penalty": times * value / 2 * norms[0],
                "last_penalty": times * strength / 2 * norms[1],
                "gradient_norm": times * 0.03,
            }
            (share,) = gradient_shares(pd.DataFrame([run]))
            assert share == pytest.approx(times * 0.03 / np.linalg.norm(penalty), rel=1e-12)
    free = pd.DataFrame([run | {"inner_penalty": 0.0, "last_penalty": 0.0}])
    assert np.isnan(gradient_shares(free)).all()  # without a penalty there is nothing to compare with


# Means over seeds


def test_means_are_of_log10_values_of_selected_runs():
    """Values off the log axis, and runs that did not converge, are counted and left out."""
    runs = set_converged(grid(depths=(2, 3, 5), seeds=range(6)), {(2, 5), *((3, seed) for seed in range(6))})
    values = {0: 0.1, 1: 0.0, 2: math.inf, 3: math.nan, 4: 0.001, 5: 100.0}
    table = measure(runs, lambda depth, seed: values[seed] if depth != 5 else -1e-17)
    table.loc[(table["depth"] == 5) & (table["seed"] == 0), "value"] = 0.1
    table = summarise(table, runs)
    assert table["depth"].tolist() == [2, 3, 5]
    assert table["n_runs"].tolist() == [6, 6, 6]
    assert table["n_converged"].tolist() == [5, 0, 6]
    assert table["n_used"].tolist() == [2, 0, 1]
    shown = table[["log10_mean", "log10_std", "log10_min", "log10_max"]].to_numpy()
    nan = math.nan
    expected = np.array([[-2, math.sqrt(2), -3, -1], [nan] * 4, [-1, nan, -1, -1]])
    assert shown == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("values", "grouped"),
    [
        ([0.0084, 0.0087, 0.030, 0.037, 0.039], True),
        ([0.0084, 0.030, 0.033, 0.037, 0.039], False),  # one run apart is no group
        ([0.010, 0.0101, 0.019, 0.0191], False),  # less than a factor of two
        ([0.01, 0.02, 0.06, 0.12], False),  # as wide as the gap
        ([0.01, 0.1, 0.1], False),
        ([0.1, 0.01, 0.1, 0.01], True),
    ],
)
def test_runs_in_two_groups_are_told_from_runs_that_spread(values, grouped):
    assert in_two_groups(np.log10(values)) is grouped


def test_what_was_not_measured_keeps_its_rows_at_the_last_layer_alone():
    runs = grid(("a", "b"), depths=(2, 3))
    runs_a = runs[runs["experiment"] == "a"]
    inner = measure(runs_a[runs_a["depth"] == 3], noisy, layer="block2")
    table = summarise(pd.concat([measure(runs_a[runs_a["depth"] == 2], noisy), inner]), runs)
    columns = ["experiment", "layer", "depth", "n_used"]
    rows = sorted(table[columns].itertuples(index=False, name=None))
    last = [("a", "last", 2, 3), ("a", "last", 3, 0), ("b", "last", 2, 0), ("b", "last", 3, 0)]
    assert rows == [("a", "block2", 3, 3), *last]


def test_rows_come_in_the_order_of_the_runs_whatever_the_order_of_measurements():
    runs = grid(("z", "a"))
    table = pd.concat([measure(runs, noisy), measure(runs, noisy, metric="nc3_cosine")])
    shuffled = table.sample(frac=1, random_state=1)
    pd.testing.assert_frame_equal(summarise(table, runs), summarise(shuffled, runs), check_exact=True)
    assert summarise(table, runs)["experiment"].drop_duplicates().tolist() == ["z", "a"]
    assert usable_points(shuffled, runs)["seed"].tolist()[:4] == [0, 0, 1, 1]


def test_a_value_measured_twice_or_of_an_unknown_run_is_refused():
    runs = grid()
    table = measure(runs, noisy)
    with pytest.raises(InputError, match="a L=2 seed=0 nc1_trace_ratio appears twice"):
        usable_points(pd.concat([table, table]), runs)
    with pytest.raises(InputError, match="a L=2 seed=0 is not among the runs"):
        usable_points(table, runs.iloc[1:])


# What DVC shows


def dvc_tables():
    runs = pd.concat([grid(("z",)), grid(("dead",), converged=False)], ignore_index=True)
    runs.loc[(runs["experiment"] == "z") & (runs["depth"] == 13), ["converged", "selected"]] = False
    table = pd.concat([measure(runs, noisy), measure(runs, noisy, split="test")])
    return table, runs


def test_metrics_are_strict_json_of_the_tables_numbers():
    table, runs = dvc_tables()
    summary, slopes = summarise(table, runs), loglog_slopes(table, runs, SLOPES)
    shown = {name: {("nc1_trace_ratio", "train")} for name in ("z", "dead")}
    metrics = dvc_metrics(summary, slopes, runs, shown)
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics
    assert metrics["dead"] == {"runs": 15, "converged": 0}
    assert (metrics["z"]["runs"], metrics["z"]["converged"]) == (15, 12)
    train = slopes[(slopes["experiment"] == "z") & (slopes["split"] == "train")].iloc[0]
    assert metrics["z"]["slope_nc1_trace_ratio"] == train["slope"]
    assert set(metrics["z"]) == {"runs", "converged", "slope_nc1_trace_ratio"}  # one column each of exp show
    one = runs[(runs["experiment"] == "z") & (runs["depth"] == 8)]
    rows = table[(table["experiment"] == "z") & (table["depth"] == 8)]
    one_depth = dvc_metrics(summarise(rows, one), loglog_slopes(rows, one, SLOPES), one, shown)["z"]
    assert set(one_depth) == {"runs", "converged", "deepest"}
    assert set(one_depth["deepest"]) == {"depth", "log10_nc1_trace_ratio"}
    assert one_depth["deepest"]["depth"] == 8


def test_depth_series_are_wide_and_keep_every_depth():
    table, runs = dvc_tables()
    series = depth_series(summarise(table, runs))
    assert list(series) == ["z", "dead"]
    assert series["z"].columns.tolist() == ["depth", "nc1_trace_ratio", "nc1_trace_ratio_test"]
    assert series["z"]["depth"].tolist() == list(DEPTHS)
    first = np.mean([math.log10(noisy(2, seed)) for seed in range(3)])
    assert series["z"]["nc1_trace_ratio"].iloc[0] == pytest.approx(first)
    assert series["dead"]["nc1_trace_ratio"].isna().all()


def test_curves_are_means_over_finished_runs():
    runs = grid(depths=(2, 10), seeds=(0, 1))
    runs["finished"] = [True, True, True, False]
    parts = [
        history_of(np.full(3 if done else 1, depth + seed)).assign(experiment="a", depth=depth, seed=seed)
        for depth, seed, done in zip(runs["depth"], runs["seed"], runs["finished"], strict=True)
    ]
    curves = curve_series(pd.concat(parts), runs)
    assert list(curves) == ["a-L2", "a-L10"]
    assert curves["a-L2"]["epoch"].tolist() == [10, 20, 30]
    assert curves["a-L2"]["loss"].tolist() == [2.5] * 3
    assert curves["a-L10"]["loss"].tolist() == [10.0] * 3
    assert curves["a-L2"]["fit"].tolist() == [1.25] * 3


# Bounds


def test_runs_without_a_bound_are_counted_by_experiment_and_reason():
    """Red: a line a run where their details differ."""
    runs = pd.DataFrame(
        [
            ("b", "features too long", "norm 8.1"),
            ("b", "loss not finite", math.nan),  # what a file has for ''
            ("b", "features too long", "norm 8.2"),
            ("a", "holds", math.nan),
            ("c", "no closed-form optimum", "lambda_L: 0"),
            ("c", "no closed-form optimum", "lambda_L: 0"),
        ],
        columns=["experiment", "bound", "bound_detail"],
    )
    assert unbounded_lines(runs) == [
        "b: 2 of 3 runs have no bound, so no loss_gap: features too long "
        "(such as: norm 8.1; the others in runs.csv)",
        "b: 1 of 3 runs have no bound, so no loss_gap: loss not finite",
        "c: 2 of 2 runs have no bound, so no loss_gap: no closed-form optimum (lambda_L: 0)",
    ]
    assert unbounded_lines(runs[runs["bound"] == "holds"]) == []


# Tables by layer


def resnet(depth):
    return [*(f"X{i}" for i in range(1, depth)), "last"]


def transformer(depth):
    return ["embedding", *(f"{half}{i}" for i in range(1, depth + 1) for half in "AB"), "last"]


def layer_profile(table, runs):
    return profiles.layer_profile(table, places_of(table), runs)


def separation_law(table, runs):
    return profiles.separation_law(table, places_of(table), runs)


def effective_depths(table, runs, tolerance):
    return profiles.effective_depths(profiles.layer_errors(table, places_of(table), runs), runs, tolerance)


def by_layer(runs, value, metric="nc1_trace_ratio", split="train", layers=resnet):
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
    runs = grid(depths=(2, 12))
    runs.loc[runs["seed"] == 2, ["converged", "selected"]] = False
    profile = layer_profile(by_layer(runs, lambda depth, seed, place: 10.0 ** -(place + 2 * seed)), runs)
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
    runs = grid(depths=(2,))
    values = [0.0, 0.1, math.inf]
    first = layer_profile(by_layer(runs, lambda depth, seed, place: values[seed]), runs).iloc[0]
    assert (first["n_used"], first["n_log10"]) == (2, 1)
    assert first["mean"] == pytest.approx(0.05)
    assert first["log10_mean"] == pytest.approx(-1)
    assert math.isnan(first["log10_std"])


def test_layers_without_a_position_are_left_out():
    runs = grid(depths=(2,), seeds=(0,))
    table = by_layer(runs, lambda *_: 1.0, layers=lambda depth: ["X1", "X1_pre", "last"])
    assert layer_profile(table, runs)["layer"].tolist() == ["X1", "last"]
    assert separation_law(table, runs)["n_layers"].tolist() == [2]


@pytest.mark.parametrize(("used", "rows"), [(False, None), (True, 0)], ids=["none used", "none measured"])
def test_nothing_is_empty_everywhere(used, rows):
    runs = grid(depths=(2, 12), seeds=(0, 1)).assign(converged=used, selected=used)
    table = pd.concat([by_layer(runs, lambda *_: 1.0), by_layer(runs, lambda *_: 0.0, "ncc_error")]).iloc[
        :rows
    ]
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
    runs = grid(depths=(5, 12), seeds=(0, 1))
    table = by_layer(runs, lambda depth, seed, place: 3 * (0.5 + 0.1 * seed) ** (place + 1), metric)
    law = separation_law(table, runs)
    assert law["rho"].to_numpy() == pytest.approx(0.5 + 0.1 * law["seed"])
    assert law["slope"].to_numpy() == pytest.approx(np.log10(law["rho"]))
    assert law["intercept"].to_numpy() == pytest.approx(math.log10(3))
    assert law["r_squared"].to_numpy() == pytest.approx(1)
    assert law["n_layers"].tolist() == [5, 5, 12, 12]
    assert set(law["metric"]) == {metric}


def test_the_line_is_numpys_and_r_squared_the_squared_correlation():
    runs = grid(depths=(4,), seeds=(0,))
    heights = np.random.default_rng(0).standard_normal(10)
    table = by_layer(runs, lambda depth, seed, place: 10 ** heights[place], layers=transformer)
    law = separation_law(table, runs).iloc[0]
    positions = np.arange(10) / 2
    assert [law["slope"], law["intercept"]] == pytest.approx(np.polyfit(positions, heights, 1))
    assert law["r_squared"] == pytest.approx(np.corrcoef(positions, heights)[0, 1] ** 2)


def test_exactly_collapsed_layers_are_not_in_the_line():
    runs = grid(depths=(6,), seeds=(0,))
    law = separation_law(by_layer(runs, lambda *key: 0.5 ** key[2] if key[2] < 4 else 0.0), runs).iloc[0]
    assert (law["n_layers"], law["rho"]) == (4, pytest.approx(0.5))


@pytest.mark.parametrize(("depth", "has_slope"), [(1, False), (2, True)])
def test_too_few_layers_for_a_line_or_for_its_r_squared(depth, has_slope):
    runs = grid(depths=(depth,), seeds=(0,))
    law = separation_law(by_layer(runs, lambda *key: 0.5 ** key[2]), runs).iloc[0]
    assert math.isfinite(law["rho"]) == has_slope
    assert math.isnan(law["r_squared"])


def test_test_split_and_other_metrics():
    runs = grid(depths=(5,), seeds=(0,))
    parts = [
        by_layer(runs, lambda *key: 0.5 ** key[2]),
        by_layer(runs, lambda *key: 0.9 ** key[2], split="test"),
        by_layer(runs, lambda *key: 0.1 ** key[2], "nc2_means"),
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
    runs = grid(depths=(depth,), seeds=(0,))
    table = by_layer(runs, lambda *key: errors[key[2]], "ncc_error", layers=layers)
    row = effective_depths(table, runs, 0.1).iloc[0]
    assert tuple(row[["layer", "effective_depth", "fraction", "reached"]]) == expected
    assert row["n_layers"] == len(errors)


def test_test_error_and_runs_that_failed_have_no_effective_depth():
    runs = grid(depths=(2, 12), seeds=(0, 1))
    runs.loc[runs["seed"] == 1, ["converged", "selected"]] = False
    table = pd.concat(
        [
            by_layer(runs, lambda *_: 0.2, "ncc_error"),
            by_layer(runs, lambda *_: 0.0, "ncc_error", "test"),
        ]
    )
    depths = effective_depths(table, runs, 0.1)
    assert depths["seed"].tolist() == [0, 0]
    assert not depths["reached"].any()


# Values that means and slopes are made of, and where rounding begins


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
    rows = measure_arrays(train, labels, weight, test_features=test, test_labels=labels)
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
