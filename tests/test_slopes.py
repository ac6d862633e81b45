"""Slopes, their intervals, the test of the line and fits without small depths, against naive twins; in words.

How often intervals cover is simulated in benchmarks/interval_coverage.py.
"""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tables import DEPTHS, grid, measure, noisy, set_converged
from scipy import stats

from ncpipe.config.params import Slopes
from ncpipe.tables.intervals import combination_interval
from ncpipe.tables.linearity import line_test, welch_james
from ncpipe.tables.rates import in_columns, rate_table, short_answer
from ncpipe.tables.slopes import (
    Replicates,
    leave_out_slopes,
    loglog_slopes,
)

RULE = Slopes(seed=0, level=0.95)
LOG_DEPTHS = np.log10(DEPTHS)
LEAVE_OUT_COLUMNS = {"slope", "low", "high", "drift", "drift_low", "drift_high", "drifts", "without"}


def first(table):
    return table.iloc[0]


def values_at_depths(seeds, spread=(1, 1, 1, 1, 1)):
    """log10 values (5 depths) of `seeds` runs each."""
    generator = np.random.default_rng(3)
    return [s * generator.standard_normal(seeds) for s in spread]


def curved(depth, seed):
    """Falls as L^-2 at small L and as L^-0.2 at large; 2 % between seeds."""
    return (depth**-2.0 + 0.2 * depth**-0.2) * (1 + 0.02 * math.sin(17 * depth + 5 * seed))


# The line


def test_slope_and_intercept_are_those_of_polyfit_and_linregress():
    runs = set_converged(grid(), {(2, 0), (13, 1)})
    row = first(loglog_slopes(measure(runs, noisy), runs, RULE))
    used = runs[runs["converged"]]
    x = np.log10(used["depth"])
    y = np.log10([noisy(depth, seed) for depth, seed in zip(used["depth"], used["seed"], strict=True)])
    assert [row["slope"], row["intercept"]] == pytest.approx(np.polyfit(x, y, 1))
    assert row["slope"] == pytest.approx(stats.linregress(x, y).slope)
    assert (row["n_used"], row["n_converged"], row["n_runs"], row["n_depths"]) == (13, 13, 15, 5)
    assert row["low"] < row["slope"] < row["high"]


@given(power=st.floats(-3, 3), scale=st.floats(1e-6, 1e3))
@settings(max_examples=25)
def test_an_exact_power_law_gives_its_power_and_an_interval_of_no_width(power, scale):
    runs = grid()
    row = first(loglog_slopes(measure(runs, lambda depth, _: scale * depth**power), runs, RULE))
    assert row["slope"] == pytest.approx(power, abs=1e-10)
    assert row["intercept"] == pytest.approx(math.log10(scale), abs=1e-10)
    assert row["low"] == pytest.approx(power, abs=1e-10)
    assert row["high"] == pytest.approx(row["low"], abs=1e-12)
    assert not row["rejected"]  # rounding is no curve


@pytest.mark.parametrize("value", [0.5, 0.1, 0.3, 2.7])
def test_a_metric_that_is_the_same_in_all_runs_has_no_trend_and_no_drift(value):
    """Red: a slope of -1e-17 with an interval of no width, which 'improves'."""
    runs = grid()
    table = measure(runs, lambda depth, seed: value)
    row, fewer = first(loglog_slopes(table, runs, RULE)), leave_out_slopes(table, runs, RULE)
    assert row["low"] <= 0 <= row["high"]
    assert max(abs(row[["slope", "low", "high"]])) < 1e-12
    assert len(fewer)
    assert not fewer["drifts"].any()


# Intervals


def test_intervals_do_not_depend_on_row_order_or_on_other_experiments():
    runs, both = grid(), grid(("other", "a"))
    shuffled = measure(both, noisy).sample(frac=1, random_state=2)
    for fits in (loglog_slopes, leave_out_slopes):
        alone = fits(measure(runs, noisy), runs, RULE)
        among = fits(shuffled, both.iloc[::-1], RULE)
        among = among[among["experiment"] == "a"].reset_index(drop=True)
        pd.testing.assert_frame_equal(alone, among, check_exact=True)


def test_intervals_are_welchs_for_groups_of_any_sizes():
    """The variance is sum w^2 s^2/n. Its freedom: its square over its squared parts, each over its n - 1."""
    generator = np.random.default_rng(5)
    groups = [s * generator.standard_normal(n) for n, s in ((2, 1.0), (3, 2.0), (7, 0.5))]
    weights = np.array([0.5, -1.0, 2.0])
    parts = [w**2 * y.var(ddof=1) / len(y) for w, y in zip(weights, groups, strict=True)]
    squares = [part**2 / (len(y) - 1) for part, y in zip(parts, groups, strict=True)]
    low, high = combination_interval(weights, groups, 0.9)
    t = stats.t.ppf(0.95, sum(parts) ** 2 / sum(squares))
    assert (high - low) / 2 == pytest.approx(t * math.sqrt(sum(parts)), rel=1e-12)
    assert (high + low) / 2 == pytest.approx(weights @ [y.mean() for y in groups], rel=1e-12)


@pytest.mark.parametrize("depths", [[2, 4, 8], [4, 8, 16]])
def test_a_depth_with_one_run_gives_no_interval_whatever_its_weight(depths):
    """Red: the spread of other depths in its place, with which 95 % intervals cover as little as 38 %; an
    interval where rounding makes the weight of the middle depth 0."""
    three, one = np.array([0.0, 0.3, 0.9]), np.array([1.0])
    fit = Replicates(np.array(depths), [three, one, three], 0.95).fit(0)
    assert not math.isnan(fit["slope"])
    assert np.isnan([fit["low"], fit["high"]]).all()


def test_a_depth_that_is_left_out_may_have_one_run():
    """Red: an interval that asks for two runs where none are used."""
    groups = [np.array([2.0]), np.array([0.0, 0.3, 0.9]), np.array([1.0, 1.1, 1.5])]
    fits = [
        Replicates(np.array(x), own, 0.95).fit(n)
        for x, own, n in (((2, 3, 5), groups, 1), ((3, 5), groups[1:], 0))
    ]
    assert fits[0]["low"] == fits[1]["low"] < fits[0]["high"]


def test_one_depth_has_no_slope_and_one_run_per_depth_neither_interval_nor_test():
    runs = grid(depths=(2,))
    row = first(loglog_slopes(measure(runs, noisy), runs, RULE))
    assert row[["slope", "intercept", "low", "high", "p_value"]].isna().all()
    runs = grid(seeds=(0,))
    row = first(loglog_slopes(measure(runs, noisy), runs, RULE))
    assert row["slope"] == pytest.approx(-0.4, abs=0.2)
    assert row[["low", "high", "lack_of_fit", "df1", "df2", "p_value"]].isna().all()
    assert not row["rejected"]
    fewer = leave_out_slopes(measure(runs, noisy), runs, RULE)
    assert len(fewer) == 2
    assert fewer[["drift_low", "drift_high"]].isna().all(axis=None)
    assert not fewer["drifts"].any()


# Log-linearity


def test_with_a_constant_design_it_is_welchs_analysis_of_variance():
    generator = np.random.default_rng(0)
    groups = [scale * generator.standard_normal(n) for scale, n in ((1, 3), (5, 4), (0.2, 2), (2, 5))]
    expected = stats.f_oneway(*groups, equal_var=False)
    actual = welch_james(np.ones((4, 1)), groups)
    assert [actual.lack_of_fit, actual.p_value] == pytest.approx([expected.statistic, expected.pvalue])


def test_its_sum_of_squares_is_that_of_a_weighted_polyfit():
    groups = values_at_depths(4, np.geomspace(0.3, 3, 5))
    means, errors = (np.array([f(y) for y in groups]) for f in (np.mean, lambda y: y.std(ddof=1) / 2))
    line = np.polyval(np.polyfit(LOG_DEPTHS, means, 1, w=1 / errors), LOG_DEPTHS)
    result = line_test(LOG_DEPTHS, groups)
    a = (result.df1 * (result.df1 + 2)) / (3 * result.df2)
    scale = 3 + 2 * a - 6 * a / 5
    assert result.lack_of_fit * scale == pytest.approx((((means - line) / errors) ** 2).sum())
    assert result.p_value == pytest.approx(stats.f.sf(result.lack_of_fit, result.df1, result.df2))


def test_a_depth_with_one_run_stays_out_of_the_test():
    groups = values_at_depths(3)
    without = line_test(LOG_DEPTHS[1:], groups[1:])
    assert line_test(LOG_DEPTHS, [groups[0][:1], *groups[1:]]) == without


def test_no_test_without_three_depths_or_with_a_depth_of_no_spread():
    groups = values_at_depths(3)
    assert math.isnan(line_test(LOG_DEPTHS[:2], groups[:2]).p_value)
    assert math.isnan(line_test(LOG_DEPTHS[:3], [*groups[:2], groups[2][:1]]).p_value)
    rounded = np.array([1, 1 + 2e-16, 1 - 2e-16])
    assert math.isnan(line_test(LOG_DEPTHS, [*groups[:4], rounded]).p_value)


def test_the_table_holds_the_test_and_its_verdict():
    runs = grid()
    table = measure(runs, curved)
    row = first(loglog_slopes(table, runs, RULE))
    groups = [np.log10([curved(depth, seed) for seed in range(3)]) for depth in DEPTHS]
    result = line_test(LOG_DEPTHS, groups)
    assert row[list(result._fields)].tolist() == pytest.approx(list(result))
    assert result.p_value < 0.01
    assert row["rejected"]
    strict = Slopes(seed=0, level=1 - result.p_value / 2)
    assert not first(loglog_slopes(table, runs, strict))["rejected"]


# Without small depths


def test_fits_without_small_depths_are_the_fits_to_the_others():
    runs = set_converged(grid(), {(3, 0), (13, 1)})
    table = measure(runs, curved)
    fewer = leave_out_slopes(table, runs, RULE)
    assert fewer["without"].tolist() == ["2", "2, 3"]
    assert fewer["n_left_out"].tolist() == [1, 2]
    for (_, row), least in zip(fewer.iterrows(), (3, 5), strict=True):
        kept = runs[runs["depth"] >= least]
        alone = first(loglog_slopes(table[table["depth"] >= least], kept, RULE))
        exact = ["slope", "intercept", "n_used", "n_depths", "lack_of_fit", "df1", "df2", "p_value"]
        assert row[exact].tolist() == pytest.approx(alone[exact].tolist())
        assert row[["low", "high"]].tolist() == pytest.approx(alone[["low", "high"]].tolist(), abs=0.02)


def test_down_to_three_depths_that_have_usable_values():
    for depths, rows in (((2, 3, 5), 0), ((2, 3, 5, 8), 1), ((2, 3, 5, 8, 13, 21, 34), 4)):
        runs = grid(depths=depths)
        fewer = leave_out_slopes(measure(runs, noisy), runs, RULE)
        assert len(fewer) == rows
        assert set(fewer.columns) >= LEAVE_OUT_COLUMNS
        assert fewer["n_depths"].tolist() == list(range(len(depths) - 1, 2, -1))
    runs = grid()
    at_floor = measure(runs, lambda depth, seed: noisy(depth, seed) if depth != 5 else 1e-30)
    assert leave_out_slopes(at_floor, runs, RULE)["without"].tolist() == ["2"]


def test_a_curve_drifts_by_the_difference_of_the_slopes_and_a_power_law_does_not():
    runs = grid()
    full = first(loglog_slopes(measure(runs, curved), runs, RULE))
    fewer = leave_out_slopes(measure(runs, curved), runs, RULE)
    assert fewer["drift"].to_numpy() == pytest.approx(fewer["slope"] - full["slope"])
    assert (fewer["drift"] > 0.05).all()
    assert fewer["drifts"].all()
    exact = leave_out_slopes(measure(runs, lambda depth, _: 3 * depth**-0.4), runs, RULE)
    assert exact["drift"].to_numpy() == pytest.approx(0, abs=1e-12)


def test_what_the_two_slopes_of_a_drift_share_cancels():
    """Red: an interval of independent slopes."""
    runs = grid()
    table = measure(runs, curved)
    full, fewer = (first(fits(table, runs, RULE)) for fits in (loglog_slopes, leave_out_slopes))
    widths = [row[high] - row[low] for row, low, high in ((full, "low", "high"), (fewer, "low", "high"))]
    assert 0 < fewer["drift_high"] - fewer["drift_low"] < math.hypot(*widths) / 2


# Rates in words


SERIES = {
    "NC1": ("nc1_trace_ratio", "train"),
    "NC2": ("nc2_etf", "weights"),
    "NC3": ("nc3_cosine", "train"),
}
NONE = "none without L = 2, 3"


def power_law(runs, title, slope, spread=0.02, bend=0.0):
    """L^slope times 10^(bend log10(L)^2), seeds `spread` apart in log10 and alike at every depth."""

    def value(depth, seed):
        x = math.log10(depth)
        return 0.1 * 10 ** (slope * x + bend * x**2 + spread * (seed - 1))

    name, split = SERIES[title]
    return measure(runs, value, name, split)


def rates(runs, *tables, level=0.95) -> list[list[str]]:
    """The cells of each row behind the name of its line."""
    table, rule = pd.concat(tables), Slopes(seed=0, level=level)
    slopes, fewer = loglog_slopes(table, runs, rule), leave_out_slopes(table, runs, rule)
    frame = rate_table(slopes, fewer, runs.assign(loss_name="ce", last_bias=False, loss_gap=math.nan), slopes)
    assert frame.columns[3] == f"rate ({100 * level:g} % CI)"
    assert set(frame["line"]) == {"a"}
    return frame.iloc[:, 1:].to_numpy().tolist()


FULL = ["15 of 15", "15 of 15"]


@pytest.mark.parametrize(
    ("runs", "parts", "level", "rows"),
    [
        (
            grid(), [("NC1", -0.42), ("NC2", 0.2), ("NC3", -0.01, 0.05)], 0.95,
            [
                ["NC1", "improves", "L^-0.42 [-0.46, -0.38]", *FULL, "not rejected (p = 1)", NONE, ""],
                ["NC2", "worsens", "L^0.20 [0.16, 0.24]", *FULL, "not rejected (p = 1)", NONE, ""],
                ["NC3", "no clear change", "L^-0.01 [-0.12, 0.10]", *FULL, "not rejected (p = 1)", NONE, ""],
            ],
        ),
        (
            grid(), [("NC2", -1.2, 0.02, 0.5)], 0.95,
            [["NC2", "improves", "L^-0.49 [-0.54, -0.45]", *FULL, "rejected (p = 0.01)",
              "to L^-0.29 [-0.40, -0.18] without L = 2, 3", ""]],
        ),
        (
            grid(), [("NC3", -0.01, 0.05)], 0.9,
            [["NC3", "no clear change", "L^-0.01 [-0.10, 0.08]", *FULL, "not rejected (p = 1)", NONE, ""]],
        ),
        (
            grid(seeds=(1,)), [("NC1", -0.42)], 0.95,
            [["NC1", "too few runs for an interval", "L^-0.42", "5 of 5", "5 of 5", "", "", ""]],
        ),
        (
            set_converged(grid(depths=(2, 3)), {(3, 0), (3, 1), (3, 2)}), [("NC1", -0.42)], 0.95,
            [["NC1", "no rate", "", "3 of 6", "3 of 6", "", "", ""]],
        ),
        (
            grid(converged=False), [("NC1", -0.42)], 0.95,
            [["NC1", "no rate", "", "0 of 15", "0 of 15", "", "", ""]],
        ),
    ],
)  # fmt: skip
def test_rates_in_words(runs, parts, level, rows):
    """Red: a direction where the interval has 0; another level; the drift of another number of depths."""
    assert rates(runs, *(power_law(runs, *part) for part in parts), level=level) == rows


def test_values_left_out_and_other_series():
    short = set_converged(grid(depths=(2, 3, 5)), {(5, 2)})
    table = power_law(short, "NC1", -0.42)
    table.loc[(table["depth"] == 2) & (table["seed"] == 0), "value"] = 0.0
    table.loc[(table["depth"] == 3) & (table["seed"] == 0), "value"] = 1e-30
    ((_, _, _, *counts, _, drift, left_out),) = rates(short, table)
    assert (counts, left_out) == (["6 of 9", "8 of 9"], "1 at the rounding floor, 1 zero")
    assert drift == ""  # three depths are too few
    rows = power_law(short, "NC1", -0.42)
    others = [rows.assign(split="test", value=1.0), rows.assign(layer="X1", value=1.0)]
    assert rates(short, rows, *others) == rates(short, rows)


def test_columns_are_aligned():
    lines = in_columns(pd.DataFrame([["rn1", "NC1", ""], ["a", "loss gap", "x"]], columns=["line", "b", "c"]))
    assert lines == ["line  b         c", "rn1   NC1", "a     loss gap  x"]


@pytest.mark.parametrize(
    ("runs", "parts", "said"),
    [
        (
            grid(), [("NC1", -0.42), ("NC2", 0.2), ("NC3", -0.01, 0.05)],
            "NC1 improves; NC2 worsens; NC3 no clear change.",
        ),
        (
            set_converged(grid(), {(5, 2)}), [("NC1", -0.42), ("NC3", -0.4)],
            "NC1 improves; NC3 improves; 14 of 15 runs converged, 1 left out.",
        ),
        (
            grid(converged=False), [("NC1", -0.42)],
            "NC1 no rate; 0 of 15 runs converged, 15 left out.",
        ),
    ],
)  # fmt: skip
def test_the_short_answer_has_no_number_and_no_sign_that_is_not_known(runs, parts, said):
    slopes = loglog_slopes(pd.concat([power_law(runs, *part) for part in parts]), runs, Slopes(0, 0.95))
    assert short_answer({"experiment": "a"}, slopes, runs, SERIES) == said
