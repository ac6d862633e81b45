"""Results of an experiment as one sentence, word for word."""

import math

import pandas as pd
import pytest
from made_tables import grid, measure, set_converged

from ncpipe.config.params import Slopes
from ncpipe.tables.sentences import experiment_sentence, power, rate, short_answer
from ncpipe.tables.slopes import leave_out_slopes, loglog_slopes

RULE = Slopes(seed=0, level=0.95)
SERIES = {
    "NC1": ("nc1_trace_ratio", "train"),
    "NC2": ("nc2_etf", "weights"),
    "NC3": ("nc3_cosine", "train"),
}


def sentence(runs, *tables, rule=RULE, name="a", series=SERIES) -> str:
    table = pd.concat(tables)
    slopes, fewer = loglog_slopes(table, runs, rule), leave_out_slopes(table, runs, rule)
    return experiment_sentence({"experiment": name}, slopes, fewer, runs, series)


def metric(runs, title, slope, spread=0.02, bend=0.0):
    """L^slope times 10^(bend log10(L)^2), seeds `spread` apart in log10 and alike at every depth."""

    def value(depth, seed):
        x = math.log10(depth)
        return 0.1 * 10 ** (slope * x + bend * x**2 + spread * (seed - 1))

    name, split = SERIES[title]
    return measure(runs, value, name, split)


def test_rates_of_every_kind():
    runs = grid()
    said = sentence(
        runs, metric(runs, "NC1", -0.42), metric(runs, "NC2", 0.2), metric(runs, "NC3", -0.01, 0.05)
    )
    assert said == (
        "a: NC1 improves as L^-0.42 [-0.46, -0.38] (95 % CI), NC2 worsens as L^0.20 [0.16, 0.24], "
        "NC3 shows no clear change with L (L^-0.01 [-0.12, 0.10]), 15 of 15 runs converged; "
        "log-linearity not rejected for NC1 (p = 1), NC2 (p = 1) and NC3 (p = 1); "
        "without L = 2, 3 NC1, NC2 and NC3 show no drift."
    )


def test_the_short_answer_has_no_number_and_no_sign_that_is_not_known():
    """Red: 'improves' where the interval has 0; an experiment without converged runs that 'improves'."""
    runs = grid()
    table = pd.concat(
        [metric(runs, "NC1", -0.42), metric(runs, "NC2", 0.2), metric(runs, "NC3", -0.01, 0.05)]
    )
    slopes = loglog_slopes(table, runs, RULE)
    said = short_answer({"experiment": "a"}, slopes, runs, SERIES)
    assert said == "NC1 improves with L; NC2 worsens with L; NC3 shows no clear change with L."
    failed = set_converged(grid(), {(5, 2)})
    slopes = loglog_slopes(
        pd.concat([metric(failed, "NC1", -0.42), metric(failed, "NC3", -0.4)]), failed, RULE
    )
    said = short_answer({"experiment": "a"}, slopes, failed, SERIES)
    assert said == "NC1 and NC3 improve with L; 14 of 15 runs converged and 1 is left out."
    none = grid(converged=False)
    said = short_answer({"experiment": "a"}, slopes, none, SERIES)
    assert said == "0 of 15 runs converged and 15 are left out, so there are no rates."


def test_a_curve_is_rejected_and_its_drift_is_said():
    runs = grid()
    said = sentence(runs, metric(runs, "NC1", -0.42), metric(runs, "NC2", -1.2, bend=0.5))
    assert said == (
        "a: NC1 improves as L^-0.42 [-0.46, -0.38] (95 % CI), NC2 improves as L^-0.49 [-0.54, -0.45], "
        "15 of 15 runs converged; log-linearity rejected for NC2 (p = 0.01), not rejected for NC1 (p = 1); "
        "without L = 2, 3 NC2 drifts to L^-0.29 [-0.40, -0.18], NC1 shows no drift."
    )


def test_runs_that_failed_and_values_left_out_are_said():
    runs = set_converged(grid(depths=(2, 3, 5)), {(5, 2)})
    table = metric(runs, "NC1", -0.42)
    table.loc[(table["depth"] == 2) & (table["seed"] == 0), "value"] = 0.0
    table.loc[(table["depth"] == 3) & (table["seed"] == 0), "value"] = 1e-30
    said = sentence(runs, table, metric(runs, "NC3", -0.2))
    assert (
        "8 of 9 runs converged and 1 is left out; left out of NC1: 1 at the rounding floor, 1 zero; log-"
        in said
    )
    assert "drift" not in said  # three depths are too few


def test_the_first_interval_says_what_it_is_in_either_form():
    runs = grid()
    nc3 = metric(runs, "NC3", -0.01, 0.05)
    assert sentence(runs, nc3, rule=Slopes(seed=0, level=0.9)).startswith(
        "a: NC3 shows no clear change with L (L^-0.01 [-0.10, 0.08], 90 % CI), 15 of 15"
    )


def test_one_run_a_depth():
    runs = grid(seeds=(1,))
    assert sentence(runs, metric(runs, "NC1", -0.42)) == (
        "a: NC1 goes as L^-0.42 (one run a depth, so no interval), 5 of 5 runs converged; "
        "log-linearity untested for NC1 (it takes differing runs at each of three depths)."
    )


def test_nothing_to_fit():
    runs = set_converged(grid(depths=(2, 3)), {(3, 0), (3, 1), (3, 2)})
    nothing = "has no rate (usable values at fewer than two depths)"
    said = sentence(runs, metric(runs, "NC1", -0.42), metric(runs, "NC3", -0.2))
    assert said == f"a: NC1 {nothing}, NC3 {nothing}, 3 of 6 runs converged and 3 are left out."


def test_where_no_run_converged_the_sentence_says_so():
    runs = pd.concat([grid(), grid(("dead",), converged=False)], ignore_index=True)
    said = sentence(runs, metric(runs, "NC1", -0.42), name="dead")
    assert said == "dead: 0 of 15 runs converged and 15 are left out, so it has no rates."


def test_only_the_named_series_of_the_last_layer_count():
    runs = grid()
    own = metric(runs, "NC1", -0.42)
    others = [own.assign(split="test", value=1.0), own.assign(layer="X1", value=1.0)]
    assert sentence(runs, own, *others) == sentence(runs, own)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((-0.424, -0.47, -0.38), "L^-0.42 [-0.47, -0.38]"),
        ((0.424, 0.38, 0.47), "L^0.42 [0.38, 0.47]"),
        ((-0.02, -0.05, 0.01), "L^-0.02 [-0.05, 0.01]"),
        ((-0.001, -0.05, 0.04), "L^0.00 [-0.05, 0.04]"),
        ((0.001, -0.001, 0.003), "L^0.00 [0.00, 0.00]"),
        ((-1.5, math.nan, math.nan), "L^-1.50"),
    ],
)
def test_the_interval_is_that_of_the_signed_slope(numbers, text):
    assert power(*numbers) == text


@pytest.mark.parametrize(
    ("numbers", "verb"),
    [
        ((-0.4, -0.5, -0.3), "improves"),
        ((0.4, 0.3, 0.5), "worsens"),
        ((-0.4, -0.9, 0.0), "shows no clear change"),
        ((0.004, 0.003, 0.005), "worsens"),
    ],
)
def test_a_direction_is_claimed_only_where_the_interval_has_one(numbers, verb):
    row = dict(zip(("slope", "low", "high"), numbers, strict=True)) | {"level": 0.95}
    assert rate(row).startswith(verb)
    assert ("95 % CI" in rate(row), "95 % CI" in rate(row, level=True)) == (False, True)
