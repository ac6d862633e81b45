"""Tables: convergence, means over seeds, slopes and what DVC shows, against naive references."""

import json
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ncpipe.errors import InputError
from ncpipe.params import Convergence, Slopes
from ncpipe.tables.convergence import failure_reason, judge_runs
from ncpipe.tables.gaps import unbounded_sentences
from ncpipe.tables.points import RUN, usable_points
from ncpipe.tables.results import curve_series, depth_series, dvc_metrics
from ncpipe.tables.slopes import bootstrap_interval, least_squares_line, loglog_slopes, slope_sentence
from ncpipe.tables.summary import summarise

RULE = Convergence(train_error=0.0, window=0.1, tolerance=0.01)
SLOPES = Slopes(draws=500, seed=0, level=0.95)
DEPTHS = (2, 3, 5, 8, 13)


def history_of(losses, train_error=0.0, every=10):
    """A logged run: one row each `every` epochs."""
    loss = np.asarray(losses, dtype=float)
    epoch = every * np.arange(1, len(loss) + 1)
    return pd.DataFrame(
        {"epoch": epoch, "loss": loss, "fit": loss / 2, "penalty": loss / 2, "train_error": train_error}
    )


def grid(experiments=("a",), depths=DEPTHS, seeds=(0, 1, 2), converged=True):
    rows = [(name, depth, seed) for name in experiments for depth in depths for seed in seeds]
    return pd.DataFrame(rows, columns=RUN).assign(converged=converged, finished=converged)


def measure(runs, value, metric="nc1_trace_ratio", split="train", layer="last"):
    """One measurement per run; value: function of (depth, seed)."""
    values = [float(value(depth, seed)) for depth, seed in zip(runs["depth"], runs["seed"], strict=True)]
    return runs[RUN].assign(layer=layer, split=split, metric=metric, value=values)


def noisy(depth, seed):
    return 0.3 * depth**-0.4 * (1 + 0.1 * math.sin(17 * depth + 5 * seed))


def set_converged(runs, failed):
    """`runs` without the (depth, seed) pairs of `failed` among the converged."""
    pairs = list(zip(runs["depth"], runs["seed"], strict=True))
    return runs.assign(converged=[pair not in failed for pair in pairs])


# Convergence


def test_a_settled_run_converged():
    assert failure_reason(history_of([1.0] * 5 + [0.5] * 15), True, RULE) == ""


def test_loss_may_move_by_the_tolerance_and_no_more():
    flat = [1.0] * 18
    assert failure_reason(history_of([*flat, 1.0099, 1.0]), True, RULE) == ""
    reason = failure_reason(history_of([*flat, 1.032, 1.0]), True, RULE)
    assert reason == "loss still moving: 3.2 % over the last 10 % of epochs"


def test_a_return_inside_the_window_still_counts_as_movement():
    assert "moving" in failure_reason(history_of([1.0] * 18 + [2.0, 1.0]), True, RULE)


def test_movement_before_the_window_does_not_count():
    assert failure_reason(history_of([1.0] * 10 + [9.0] * 7 + [1.0] * 3), True, RULE) == ""


def test_the_row_at_the_edge_of_the_window_is_in_it():
    rule = Convergence(train_error=0.0, window=0.29, tolerance=0.01)
    losses = np.ones(100)
    losses[70] = 5.0  # epoch 71 of 100, and 0.29 * 100 < 29 in floating point
    assert "moving" in failure_reason(history_of(losses, every=1), True, rule)
    losses[70], losses[69] = 1.0, 5.0
    assert failure_reason(history_of(losses, every=1), True, rule) == ""


@pytest.mark.parametrize("losses", [[1.0], [1.0] * 9])
def test_too_few_rows_in_the_window_is_not_settled(losses):
    reason = failure_reason(history_of(losses), True, RULE)
    assert reason == "history too short: 1 logged row in the last 10 % of epochs"


def test_train_error_above_the_rule():
    assert failure_reason(history_of([1.0] * 20, train_error=0.012), True, RULE) == "train error 0.012 > 0"
    loose = Convergence(train_error=0.012, window=0.1, tolerance=0.01)
    assert failure_reason(history_of([1.0] * 20, train_error=0.012), True, loose) == ""


@pytest.mark.parametrize("column", ["loss", "fit", "penalty", "train_error"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_any_value_that_is_not_finite_is_divergence(column, value):
    history = history_of([1.0] * 20)
    history.loc[11, column] = value
    assert failure_reason(history, True, RULE) == "diverged at epoch 120"


def test_an_unfinished_run_diverged_where_its_history_ends():
    assert failure_reason(history_of([1.0] * 12), False, RULE) == "diverged at epoch 120"
    assert failure_reason(history_of([]), False, RULE) == "diverged before the first logged epoch"
    assert failure_reason(history_of([]), True, RULE) == "no history"


def test_zero_loss_must_stay_zero():
    assert failure_reason(history_of([0.0] * 20), True, RULE) == ""
    assert "inf %" in failure_reason(history_of([0.0] * 18 + [1e-9, 0.0]), True, RULE)


def test_judging_matches_each_run_with_its_own_history_in_any_order():
    runs = grid(depths=(2, 3), seeds=(0, 1)).drop(columns="converged")
    losses = {(2, 0): [1.0] * 20, (2, 1): list(range(20, 0, -1)), (3, 0): [2.0] * 20, (3, 1): [1.0, math.nan]}
    parts = [history_of(v).assign(experiment="a", depth=d, seed=s) for (d, s), v in losses.items()]
    history = pd.concat(parts).sample(frac=1, random_state=0)
    judged = judge_runs(runs, history, RULE)
    assert judged["converged"].tolist() == [True, False, True, False]
    assert judged["reason"].tolist()[0] == ""
    assert judged["reason"].tolist()[1].startswith("loss still moving")
    assert judged["reason"].tolist()[3] == "diverged at epoch 20"
    assert "converged" not in runs


# Means over seeds


def test_mean_and_std_are_those_of_log10_values():
    runs = grid(depths=(2, 3), seeds=(0, 1))
    table = summarise(measure(runs, lambda depth, seed: 10.0 ** (-depth - 2 * seed)), runs)
    assert table["depth"].tolist() == [2, 3]
    assert table["log10_mean"].tolist() == pytest.approx([-3, -4])
    assert table["log10_std"].tolist() == pytest.approx([math.sqrt(2)] * 2)
    assert table["log10_min"].tolist() == pytest.approx([-4, -5])
    assert table["log10_max"].tolist() == pytest.approx([-2, -3])


def test_values_off_the_log_axis_are_counted_and_left_out():
    runs = grid(depths=(2,), seeds=range(6))
    values = {0: 0.1, 1: 0.0, 2: math.inf, 3: math.nan, 4: -1e-17, 5: 0.001}
    row = summarise(measure(runs, lambda _, seed: values[seed]), runs).iloc[0]
    assert (row["n_runs"], row["n_converged"], row["n_used"]) == (6, 6, 2)
    assert row["log10_mean"] == pytest.approx(-2)


def test_runs_that_did_not_converge_are_counted_and_left_out():
    runs = set_converged(grid(depths=(2, 3)), {(2, 1), (3, 0), (3, 1), (3, 2)})
    table = summarise(measure(runs, lambda depth, seed: 100.0 if seed == 1 else 0.1), runs).set_index("depth")
    assert table["n_runs"].tolist() == [3, 3]
    assert table["n_converged"].tolist() == [2, 0]
    assert table["n_used"].tolist() == [2, 0]
    assert table.loc[2, "log10_mean"] == pytest.approx(-1)
    assert math.isnan(table.loc[3, "log10_mean"])


def test_a_mean_of_one_run_has_no_std():
    runs = grid(depths=(2,), seeds=(0,))
    row = summarise(measure(runs, noisy), runs).iloc[0]
    assert row["n_used"] == 1
    assert math.isnan(row["log10_std"])


def test_a_depth_or_experiment_without_measurements_keeps_its_rows():
    runs = grid(("a", "b"), depths=(2, 3))
    measured = runs[(runs["experiment"] == "a") & (runs["depth"] == 2)]
    table = summarise(measure(measured, noisy), runs)
    assert list(zip(table["experiment"], table["depth"], table["n_used"], strict=True)) == [
        ("a", 2, 3),
        ("a", 3, 0),
        ("b", 2, 0),
        ("b", 3, 0),
    ]


def test_an_inner_layer_has_rows_only_at_depths_that_have_it():
    runs = grid(depths=(2, 3))
    deep = runs[runs["depth"] == 3]
    table = summarise(pd.concat([measure(runs, noisy), measure(deep, noisy, layer="block2")]), runs)
    assert table.loc[table["layer"] == "block2", "depth"].tolist() == [3]
    assert table.loc[table["layer"] == "last", "depth"].tolist() == [2, 3]


def test_nothing_measured_gives_empty_tables_with_their_columns():
    runs = grid()
    nothing = measure(runs, noisy).iloc[:0]
    assert summarise(nothing, runs).empty
    assert "slope" in loglog_slopes(nothing, runs, SLOPES)
    json.dumps(dvc_metrics(summarise(nothing, runs), loglog_slopes(nothing, runs, SLOPES), runs))


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


# Slopes


def test_slope_and_intercept_are_those_of_polyfit_and_linregress():
    runs = set_converged(grid(), {(2, 0), (13, 1)})
    row = loglog_slopes(measure(runs, noisy), runs, SLOPES).iloc[0]
    used = runs[runs["converged"]]
    x = np.log10(used["depth"])
    y = np.log10([noisy(depth, seed) for depth, seed in zip(used["depth"], used["seed"], strict=True)])
    assert [row["slope"], row["intercept"]] == pytest.approx(np.polyfit(x, y, 1))
    assert row["slope"] == pytest.approx(stats.linregress(x, y).slope)
    assert (row["n_used"], row["n_converged"], row["n_runs"], row["n_depths"]) == (13, 13, 15, 5)
    assert row["low"] < row["slope"] < row["high"]


@given(power=st.floats(-3, 3), scale=st.floats(1e-6, 1e3))
@settings(max_examples=25, deadline=None)
def test_an_exact_power_law_gives_its_power_and_an_interval_of_no_width(power, scale):
    runs = grid()
    row = loglog_slopes(measure(runs, lambda depth, _: scale * depth**power), runs, SLOPES).iloc[0]
    assert row["slope"] == pytest.approx(power, abs=1e-10)
    assert row["intercept"] == pytest.approx(math.log10(scale), abs=1e-10)
    assert row["low"] == pytest.approx(power, abs=1e-10)
    assert row["high"] == pytest.approx(row["low"], abs=1e-12)


def test_intervals_do_not_depend_on_row_order_or_on_other_experiments():
    runs, both = grid(), grid(("other", "a"))
    alone = loglog_slopes(measure(runs, noisy), runs, SLOPES)
    shuffled = measure(both, noisy).sample(frac=1, random_state=2)
    among = loglog_slopes(shuffled, both.iloc[::-1], SLOPES)
    among = among[among["experiment"] == "a"].reset_index(drop=True)
    pd.testing.assert_frame_equal(alone, among, check_exact=True)


def test_series_and_seeds_have_their_own_streams():
    runs = grid()
    table = pd.concat([measure(runs, noisy), measure(runs, noisy, metric="nc3_cosine")])
    slopes = loglog_slopes(table, runs, SLOPES)
    assert slopes["slope"].nunique() == 1
    assert slopes["low"].nunique() == 2
    other = loglog_slopes(table, runs, Slopes(draws=500, seed=1, level=0.95))
    assert (slopes["low"] != other["low"]).all()


def test_bootstrap_variance_is_the_unbiased_one():
    runs = grid(seeds=(0, 1, 2))
    y = np.log10([noisy(depth, seed) for depth, seed in zip(runs["depth"], runs["seed"], strict=True)])
    depth = runs["depth"].to_numpy()
    centred = np.log10(DEPTHS) - np.log10(DEPTHS).mean()
    spread = y.reshape(5, 3).var(axis=1, ddof=1) / 3
    std = math.sqrt(((centred / (centred @ centred)) ** 2 * spread).sum())
    one_sigma = Slopes(draws=40_000, seed=0, level=math.erf(math.sqrt(0.5)))
    low, high = bootstrap_interval(depth, y, "a", one_sigma)
    assert (high - low) / 2 == pytest.approx(std, rel=0.06)


@pytest.mark.parametrize("seeds", [3, 5])
def test_intervals_cover_a_planted_power_about_as_often_as_they_say(seeds):
    generator = np.random.default_rng(0)
    depth = np.repeat(DEPTHS, seeds)
    hits = 0
    for trial in range(400):
        y = -0.4 * np.log10(depth) + 0.1 * generator.standard_normal(len(depth))
        low, high = bootstrap_interval(depth, y, str(trial), SLOPES)
        hits += low <= -0.4 <= high
    assert 0.89 <= hits / 400 <= 0.985


def test_a_wider_level_gives_a_wider_interval():
    runs = grid()
    widths = []
    for level in (0.5, 0.95):
        row = loglog_slopes(measure(runs, noisy), runs, Slopes(draws=500, seed=0, level=level)).iloc[0]
        widths.append(row["high"] - row["low"])
    assert 0 < widths[0] < widths[1]


def test_one_depth_has_no_slope_and_one_run_per_depth_no_interval():
    runs = grid(depths=(2,))
    row = loglog_slopes(measure(runs, noisy), runs, SLOPES).iloc[0]
    assert row[["slope", "intercept", "low", "high"]].isna().all()
    runs = grid(seeds=(0,))
    row = loglog_slopes(measure(runs, noisy), runs, SLOPES).iloc[0]
    assert row["slope"] == pytest.approx(-0.4, abs=0.2)
    assert row[["low", "high"]].isna().all()
    assert "no interval" in slope_sentence(row)


def test_an_experiment_without_a_converged_run_keeps_its_row():
    runs = pd.concat([grid(("a",)), grid(("dead",), converged=False)], ignore_index=True)
    slopes = loglog_slopes(measure(runs, noisy), runs, SLOPES).set_index("experiment")
    assert math.isnan(slopes.loc["dead", "slope"])
    assert (slopes.loc["dead", "n_used"], slopes.loc["dead", "n_runs"]) == (0, 15)


def test_line_through_two_points():
    assert least_squares_line(np.array([0.0, 2.0]), np.array([1.0, 5.0])) == pytest.approx((2.0, 1.0))


def test_sentences():
    row = {
        "experiment": "digits_rn1", "layer": "last", "split": "train", "metric": "nc1_trace_ratio",
        "slope": -0.421, "low": -0.47, "high": -0.38, "level": 0.95, "n_used": 15, "n_depths": 5,
        "n_converged": 15, "n_runs": 15,
    }  # fmt: skip
    expected = (
        "digits_rn1: nc1_trace_ratio scales as L^-0.42 [-0.47, -0.38] (95 % CI), 15 of 15 runs converged"
    )
    assert slope_sentence(row) == expected
    test_split = slope_sentence({**row, "split": "test", "n_used": 12, "high": -0.001})
    assert "nc1_trace_ratio on test scales" in test_split
    assert "-0.47, 0.00]" in test_split
    assert "12 of them with a usable value" in test_split
    none = slope_sentence({**row, "slope": math.nan, "n_used": 0, "n_converged": 0})
    assert none.endswith("has no slope: usable runs at fewer than two depths, 0 of 15 runs converged")


# What DVC shows


def dvc_tables():
    runs = pd.concat([grid(("z",)), grid(("dead",), converged=False)], ignore_index=True)
    runs.loc[(runs["experiment"] == "z") & (runs["depth"] == 13), "converged"] = False
    table = pd.concat([measure(runs, noisy), measure(runs, noisy, split="test")])
    return table, runs


def test_metrics_are_strict_json_of_the_tables_numbers():
    table, runs = dvc_tables()
    summary, slopes = summarise(table, runs), loglog_slopes(table, runs, SLOPES)
    metrics = dvc_metrics(summary, slopes, runs)
    assert json.loads(json.dumps(metrics, allow_nan=False)) == metrics
    assert metrics["dead"] == {"runs": 15, "converged": 0}
    assert (metrics["z"]["runs"], metrics["z"]["converged"]) == (15, 12)
    train = slopes[(slopes["experiment"] == "z") & (slopes["split"] == "train")].iloc[0]
    assert metrics["z"]["slope_nc1_trace_ratio"] == train["slope"]
    assert set(metrics["z"]["deepest"]) == {"depth", "log10_nc1_trace_ratio", "log10_nc1_trace_ratio_test"}
    assert metrics["z"]["deepest"]["depth"] == 8


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
    assert list(curves) == [("a", 2), ("a", 10)]
    assert curves["a", 2]["epoch"].tolist() == [10, 20, 30]
    assert curves["a", 2]["loss"].tolist() == [2.5] * 3
    assert curves["a", 10]["loss"].tolist() == [10.0] * 3
    assert curves["a", 2]["fit"].tolist() == [1.25] * 3


def test_tables_import_neither_torch_nor_matplotlib():
    code = (
        "import sys, ncpipe.tables.results, ncpipe.tables.slopes, ncpipe.tables.convergence\n"
        "assert not {'torch', 'matplotlib', 'dvc', 'typer'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Bounds


def test_runs_without_a_bound_are_counted_by_experiment_and_reason():
    runs = pd.DataFrame(
        [
            ("b", "none: lambda_L: 0"),
            ("b", "none: the loss is not finite"),
            ("b", "none: lambda_L: 0"),
            ("a", "holds"),
            ("c", "none: lambda_L: 0"),
        ],
        columns=["experiment", "bound"],
    )
    assert unbounded_sentences(runs) == [
        "b: 2 of 3 runs have no bound, so no loss_gap: lambda_L: 0",
        "b: 1 of 3 runs have no bound, so no loss_gap: the loss is not finite",
        "c: 1 of 1 runs have no bound, so no loss_gap: lambda_L: 0",
    ]
    assert unbounded_sentences(runs[runs["bound"] == "holds"]) == []
