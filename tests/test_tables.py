"""Tables: convergence, means over seeds, slopes and what DVC shows, against naive references."""

import dataclasses
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_tables import DEPTHS, grid, measure, noisy, set_converged

from ncpipe.config.params import Convergence, Slopes
from ncpipe.system.errors import InputError
from ncpipe.tables.convergence import failure_lines, failures, judge_run, judge_runs
from ncpipe.tables.gaps import unbounded_sentences
from ncpipe.tables.headlines import GAP
from ncpipe.tables.keys import RUN
from ncpipe.tables.points import usable_points
from ncpipe.tables.results import curve_series, depth_series, dvc_metrics
from ncpipe.tables.slopes import loglog_slopes
from ncpipe.tables.summary import summarise

RULE = Convergence(train_error=0.0, window=0.1, tolerance=0.01)
SLOPES = Slopes(seed=0, level=0.95)


def history_of(losses, train_error=0.0, every=10):
    """A logged run: one row each `every` epochs."""
    loss = np.asarray(losses, dtype=float)
    epoch = every * np.arange(1, len(loss) + 1)
    return pd.DataFrame(
        {"epoch": epoch, "loss": loss, "fit": loss / 2, "penalty": loss / 2, "train_error": train_error}
    )


# Convergence


def reason_of(history, finished=True, rule=RULE):
    return judge_run(history, finished, rule)[0]


def test_a_settled_run_converged():
    assert judge_run(history_of([1.0] * 5 + [0.5] * 15), True, RULE) == ("", 0.0, 0.0)


def test_loss_may_move_by_the_tolerance_and_no_more():
    flat = [1.0] * 18
    assert reason_of(history_of([*flat, 1.0099, 1.0])) == ""
    reason, train_error, moved = judge_run(history_of([*flat, 2.064, 2.0]), True, RULE)
    assert (reason, train_error, moved) == ("loss moving", 0.0, pytest.approx(1.064 / 2.0))


def test_a_return_inside_the_window_still_counts_as_movement():
    assert reason_of(history_of([1.0] * 18 + [2.0, 1.0])) == "loss moving"


def test_movement_before_the_window_does_not_count():
    assert reason_of(history_of([1.0] * 10 + [9.0] * 7 + [1.0] * 3)) == ""


def test_the_row_at_the_edge_of_the_window_is_in_it():
    rule = Convergence(train_error=0.0, window=0.29, tolerance=0.01)
    losses = np.ones(100)
    losses[70] = 5.0  # epoch 71 of 100, and 0.29 * 100 < 29 in floating point
    assert reason_of(history_of(losses, every=1), rule=rule) == "loss moving"
    losses[70], losses[69] = 1.0, 5.0
    assert reason_of(history_of(losses, every=1), rule=rule) == ""


@pytest.mark.parametrize("losses", [[1.0], [1.0] * 9])
def test_too_few_rows_in_the_window_is_not_settled(losses):
    reason, train_error, moved = judge_run(history_of(losses), True, RULE)
    assert (reason, train_error) == ("history too short", 0.0)
    assert math.isnan(moved)


def test_train_error_above_the_rule():
    history = history_of([1.0] * 20, train_error=0.012)
    assert judge_run(history, True, RULE) == ("train error", 0.012, 0.0)
    assert reason_of(history, rule=Convergence(train_error=0.012, window=0.1, tolerance=0.01)) == ""


@pytest.mark.parametrize("column", ["loss", "fit", "penalty", "train_error"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_any_value_that_is_not_finite_is_divergence(column, value):
    history = history_of([1.0] * 20)
    history.loc[11, column] = value
    assert reason_of(history) == "diverged"


def test_an_unfinished_run_diverged_and_one_without_rows_has_no_history():
    assert reason_of(history_of([1.0] * 12), finished=False) == "diverged"
    assert reason_of(history_of([]), finished=False) == "diverged"
    assert reason_of(history_of([])) == "no history"


def test_zero_loss_must_stay_zero():
    assert judge_run(history_of([0.0] * 20), True, RULE) == ("", 0.0, 0.0)
    assert judge_run(history_of([0.0] * 18 + [1e-9, 0.0]), True, RULE) == ("loss moving", 0.0, math.inf)


def test_judging_matches_each_run_with_its_own_history_in_any_order():
    runs = grid(depths=(2, 3), seeds=(0, 1)).drop(columns=["converged", "selected"])
    losses = {(2, 0): [1.0] * 20, (2, 1): list(range(20, 0, -1)), (3, 0): [2.0] * 20, (3, 1): [1.0, math.nan]}
    parts = [history_of(v).assign(experiment="a", depth=d, seed=s) for (d, s), v in losses.items()]
    history = pd.concat(parts).sample(frac=1, random_state=0)
    judged = judge_runs(runs, history, RULE)
    assert judged["converged"].tolist() == [True, False, True, False]
    assert judged["reason"].tolist() == ["", "loss moving", "", "diverged"]
    assert judged["loss_moved"].tolist() == pytest.approx([0, 2, 0, math.nan], nan_ok=True)
    assert "converged" not in runs


def test_runs_that_fit_are_used_converged_or_not_unless_the_study_asks():
    """Red: a run whose loss still moves that enters no mean, or one with a train error that does."""
    runs = grid(depths=(2,), seeds=(0, 1, 2, 3)).drop(columns=["converged", "selected"])
    moving = list(range(20, 0, -1))
    parts = [([1.0] * 20, 0.0), (moving, 0.0), ([1.0] * 20, 0.5), ([1.0, math.nan], 0.0)]
    history = pd.concat(
        [history_of(losses, error).assign(experiment="a", depth=2, seed=seed)
         for seed, (losses, error) in enumerate(parts)]
    )  # fmt: skip
    table = measure(runs, lambda depth, seed: 10.0**seed)
    for use, selected in (("fit", [0, 1]), ("converged", [0])):
        judged = judge_runs(runs, history, dataclasses.replace(RULE, use=use))
        assert judged["converged"].tolist() == [True, False, False, False]
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
    """Red: a line a run; a threshold under which a run that it counts would still fail."""
    assert failures(judge_runs(*failed_runs(), RULE), RULE) == [
        "2 with a loss that moved by 1.2 to 3.4 % > 1 % over the last 10 % of epochs: "
        "raise epochs, or convergence.tolerance to 0.035",
        "2 with train error 0.025 to 0.1 > 0: raise epochs, or convergence.train_error to 0.1",
        "1 diverged (L = 3): lower optimizer.learning_rate",
    ]


def test_the_advised_thresholds_let_the_runs_converge():
    runs, history = failed_runs()
    advised = Convergence(train_error=0.1, window=0.1, tolerance=0.035)
    assert judge_runs(runs, history, advised)["reason"].tolist() == [""] * 5 + ["diverged"]


def test_lines_name_their_experiment_and_those_that_all_converged_have_none():
    runs, history = failed_runs("b")
    well = grid(("well",), depths=(2,), seeds=(0,)).drop(columns=["converged", "selected"])
    both = pd.concat([well, runs], ignore_index=True)
    settled = history_of([1.0] * 20).assign(experiment="well", depth=2, seed=0)
    lines = failure_lines(judge_runs(both, pd.concat([history, settled]), RULE), RULE)
    assert [line.split(":")[0] for line in lines] == ["b"] * 3
    assert lines[2] == "b: of 6 runs 1 diverged (L = 3): lower optimizer.learning_rate"


def test_a_short_history_and_a_missing_one_say_what_to_do():
    runs = grid(depths=(2,), seeds=(0, 1)).drop(columns=["converged", "selected"])
    history = history_of([1.0] * 9).assign(experiment="a", depth=2, seed=0)
    assert failures(judge_runs(runs, history, RULE), RULE) == [
        "1 with fewer than two logged rows over the last 10 % of epochs: "
        "raise epochs or convergence.window, or lower log_every",
        "1 without a history: train them again",
    ]


def test_a_long_gradient_is_no_end_where_that_is_asked_for():
    """A frozen run: nothing moves, and nothing is stationary. Null asks for nothing; NaN is not small."""
    runs = grid(depths=(2,), seeds=(0, 1, 2)).assign(gradient_norm=[0.01, 0.05, math.nan])
    history = pd.concat([history_of([1.0] * 20).assign(experiment="a", depth=2, seed=s) for s in range(3)])
    assert judge_runs(runs, history, RULE)["converged"].tolist() == [True, True, True]
    strict = dataclasses.replace(RULE, gradient=0.01)
    judged = judge_runs(runs, history, strict)
    assert judged["reason"].tolist() == ["", "gradient", "gradient"]
    assert failures(judged[:2], strict) == [
        "1 with a gradient norm of 0.05 > 0.01: raise epochs, or convergence.gradient to 0.05"
    ]
    assert failures(judged[2:], strict) == [
        "1 without a gradient norm, as with batch norm: set convergence.gradient to null"
    ]


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
    series = {"a": {("nc1_trace_ratio", "train")}}
    metrics = dvc_metrics(summarise(nothing, runs), loglog_slopes(nothing, runs, SLOPES), runs, series)
    assert metrics == {"a": {"runs": 15, "converged": 15}}


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
    own = table[(table["experiment"] == "z") & (table["depth"] == 8)]
    found = dvc_metrics(summarise(own, one), loglog_slopes(own, one, SLOPES), one, shown)["z"]
    assert set(found) == {"runs", "converged", "deepest"}
    assert set(found["deepest"]) == {"depth", "log10_nc1_trace_ratio"}
    assert found["deepest"]["depth"] == 8


def test_the_documented_table_of_experiments_has_at_most_twelve_columns():
    """Of the default sweep after an edited parameter, if everything else differs too. Red: 19 columns."""
    page = (Path(__file__).parent.parent / "docs/comparing.md").read_text(encoding="utf-8")
    [left_out] = re.findall(r"^dvc exp show .*--drop '(.*?)'", page, re.MULTILINE)
    runs = grid(("digits_rn1", "digits_t11"))
    series = [("nc1_trace_ratio", "train"), ("nc2_etf", "weights"), ("nc3_cosine", "train"), (GAP, "train")]
    table = pd.concat([measure(runs, noisy, metric, split) for metric, split in series])
    shown = {name: set(series) for name in ("digits_rn1", "digits_t11")}
    found = dvc_metrics(summarise(table, runs), loglog_slopes(table, runs, SLOPES), runs, shown)
    metrics = [f"{name}.{key}" for name, own in found.items() for key in own]
    files = ["claims.yaml", "ncpipe", "data/code/sweep/plot.txt", "data/runs", "data/results"]
    columns = ["Experiment", "Created", "experiments.digits_rn1.epochs", *metrics, *files]
    kept = [name for name in columns if not re.search(left_out, name)]
    assert len(kept) <= 12
    assert {"digits_rn1.converged", "digits_t11.slope_nc3_cosine", "experiments.digits_rn1.epochs"} <= set(
        kept
    )


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


def test_tables_import_neither_torch_nor_matplotlib():
    code = (
        "import sys, ncpipe.tables.results, ncpipe.tables.slopes, ncpipe.tables.convergence\n"
        "assert not {'torch', 'matplotlib', 'dvc', 'typer'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
    assert unbounded_sentences(runs) == [
        "b: 2 of 3 runs have no bound, so no loss_gap: features too long "
        "(such as: norm 8.1; the others in runs.csv)",
        "b: 1 of 3 runs have no bound, so no loss_gap: loss not finite",
        "c: 2 of 2 runs have no bound, so no loss_gap: no closed-form optimum (lambda_L: 0)",
    ]
    assert unbounded_sentences(runs[runs["bound"] == "holds"]) == []
