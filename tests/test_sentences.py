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


def sentence(runs, *tables, rule=RULE) -> str:
    table = pd.concat(tables)
    slopes, fewer = loglog_slopes(table, runs, rule), leave_out_slopes(table, runs, rule)
    return experiment_sentence({"experiment": "a"}, slopes, fewer, runs, SERIES)


def metric(runs, title, slope, spread=0.02, bend=0.0):
    """L^slope times 10^(bend log10(L)^2), seeds `spread` apart in log10 and alike at every depth."""

    def value(depth, seed):
        x = math.log10(depth)
        return 0.1 * 10 ** (slope * x + bend * x**2 + spread * (seed - 1))

    name, split = SERIES[title]
    return measure(runs, value, name, split)


SHORT = set_converged(grid(depths=(2, 3, 5)), {(5, 2)})
TOO_FEW = set_converged(grid(depths=(2, 3)), {(3, 0), (3, 1), (3, 2)})
NOTHING = "has no rate (usable values at fewer than two depths)"


@pytest.mark.parametrize(
    ("runs", "parts", "level", "said"),
    [
        (
            grid(), [("NC1", -0.42), ("NC2", 0.2), ("NC3", -0.01, 0.05)], 0.95,
            "NC1 improves as L^-0.42 [-0.46, -0.38] (95 % CI), NC2 worsens as L^0.20 [0.16, 0.24], "
            "NC3 shows no clear change with L (L^-0.01 [-0.12, 0.10]), 15 of 15 runs converged; "
            "log-linearity not rejected for NC1 (p = 1), NC2 (p = 1) and NC3 (p = 1); "
            "without L = 2, 3 NC1, NC2 and NC3 show no drift.",
        ),
        (
            grid(), [("NC1", -0.42), ("NC2", -1.2, 0.02, 0.5)], 0.95,
            "NC1 improves as L^-0.42 [-0.46, -0.38] (95 % CI), NC2 improves as L^-0.49 [-0.54, -0.45], 15 of "
            "15 runs converged; log-linearity rejected for NC2 (p = 0.01), not rejected for NC1 (p = 1); "
            "without L = 2, 3 NC2 drifts to L^-0.29 [-0.40, -0.18], NC1 shows no drift.",
        ),
        (
            grid(), [("NC3", -0.01, 0.05)], 0.9,
            "NC3 shows no clear change with L (L^-0.01 [-0.10, 0.08], 90 % CI), 15 of 15 runs converged; "
            "log-linearity not rejected for NC3 (p = 1); without L = 2, 3 NC3 shows no drift.",
        ),
        (
            grid(seeds=(1,)), [("NC1", -0.42)], 0.95,
            "NC1 goes as L^-0.42 (one run a depth, so no interval), 5 of 5 runs converged; "
            "log-linearity untested for NC1 (it takes differing runs at each of three depths).",
        ),
        (
            TOO_FEW, [("NC1", -0.42), ("NC3", -0.2)], 0.95,
            f"NC1 {NOTHING}, NC3 {NOTHING}, 3 of 6 runs converged and 3 are left out.",
        ),
        (
            grid(converged=False), [("NC1", -0.42)], 0.95,
            "0 of 15 runs converged and 15 are left out, so it has no rates.",
        ),
    ],
)  # fmt: skip
def test_an_experiment_in_words(runs, parts, level, said):
    tables = [metric(runs, *part) for part in parts]
    assert sentence(runs, *tables, rule=Slopes(seed=0, level=level)) == f"a: {said}"


def test_values_left_out_and_other_series():
    table = metric(SHORT, "NC1", -0.42)
    table.loc[(table["depth"] == 2) & (table["seed"] == 0), "value"] = 0.0
    table.loc[(table["depth"] == 3) & (table["seed"] == 0), "value"] = 1e-30
    said = sentence(SHORT, table, metric(SHORT, "NC3", -0.2))
    left_out = "left out of NC1: 1 at the rounding floor, 1 zero"
    assert f"8 of 9 runs converged and 1 is left out; {left_out}; log-" in said
    assert "drift" not in said  # three depths are too few
    own = metric(SHORT, "NC1", -0.42)
    others = [own.assign(split="test", value=1.0), own.assign(layer="X1", value=1.0)]
    assert sentence(SHORT, own, *others) == sentence(SHORT, own)


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
