"""Rates of an experiment as a table of texts, and its short answer."""

import math

import pandas as pd
import pytest
from made_tables import grid, measure, set_converged

from ncpipe.config.params import Slopes
from ncpipe.tables.rates import in_columns, rate_table, short_answer
from ncpipe.tables.slopes import leave_out_slopes, loglog_slopes

SERIES = {
    "NC1": ("nc1_trace_ratio", "train"),
    "NC2": ("nc2_etf", "weights"),
    "NC3": ("nc3_cosine", "train"),
}
NONE = "none without L = 2, 3"


def metric(runs, title, slope, spread=0.02, bend=0.0):
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
    found = rate_table(slopes, fewer, runs.assign(loss_name="ce", last_bias=False, loss_gap=math.nan), slopes)
    assert found.columns[3] == f"rate ({100 * level:g} % CI)"
    assert set(found["line"]) == {"a"}
    return found.iloc[:, 1:].to_numpy().tolist()


ALL = ["15 of 15", "15 of 15"]


@pytest.mark.parametrize(
    ("runs", "parts", "level", "rows"),
    [
        (
            grid(), [("NC1", -0.42), ("NC2", 0.2), ("NC3", -0.01, 0.05)], 0.95,
            [
                ["NC1", "improves", "L^-0.42 [-0.46, -0.38]", *ALL, "not rejected (p = 1)", NONE, ""],
                ["NC2", "worsens", "L^0.20 [0.16, 0.24]", *ALL, "not rejected (p = 1)", NONE, ""],
                ["NC3", "no clear change", "L^-0.01 [-0.12, 0.10]", *ALL, "not rejected (p = 1)", NONE, ""],
            ],
        ),
        (
            grid(), [("NC2", -1.2, 0.02, 0.5)], 0.95,
            [["NC2", "improves", "L^-0.49 [-0.54, -0.45]", *ALL, "rejected (p = 0.01)",
              "to L^-0.29 [-0.40, -0.18] without L = 2, 3", ""]],
        ),
        (
            grid(), [("NC3", -0.01, 0.05)], 0.9,
            [["NC3", "no clear change", "L^-0.01 [-0.10, 0.08]", *ALL, "not rejected (p = 1)", NONE, ""]],
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
    assert rates(runs, *(metric(runs, *part) for part in parts), level=level) == rows


def test_values_left_out_and_other_series():
    short = set_converged(grid(depths=(2, 3, 5)), {(5, 2)})
    table = metric(short, "NC1", -0.42)
    table.loc[(table["depth"] == 2) & (table["seed"] == 0), "value"] = 0.0
    table.loc[(table["depth"] == 3) & (table["seed"] == 0), "value"] = 1e-30
    ((_, _, _, *counts, _, drift, left_out),) = rates(short, table)
    assert (counts, left_out) == (["6 of 9", "8 of 9"], "1 at the rounding floor, 1 zero")
    assert drift == ""  # three depths are too few
    own = metric(short, "NC1", -0.42)
    others = [own.assign(split="test", value=1.0), own.assign(layer="X1", value=1.0)]
    assert rates(short, own, *others) == rates(short, own)


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
    slopes = loglog_slopes(pd.concat([metric(runs, *part) for part in parts]), runs, Slopes(0, 0.95))
    assert short_answer({"experiment": "a"}, slopes, runs, SERIES) == said
