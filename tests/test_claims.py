"""The ledger: claims that read, numbers of the tables, verdicts by intervals, and what fails."""

import dataclasses
import json
import math
import os
import re
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import experiment_tree, refused_by, write_params
from made_tables import DEPTHS, grid, measure, noisy, places_of, set_converged
from scipy import stats

from ncpipe.claims import theory_calls
from ncpipe.claims.evidence import Answer, Tables
from ncpipe.claims.ledger import load_claims, parse_claims
from ncpipe.claims.panels import panel_points
from ncpipe.claims.quantities import check_calls
from ncpipe.claims.selections import judge_by_selection
from ncpipe.claims.theory_calls import THEORY_CALLS
from ncpipe.claims.verdicts import Judged, answer, decision_p_value, judge, ledger_page, ledger_table
from ncpipe.claims.verdicts import line as line_of
from ncpipe.commands.claims import claims as claims_command
from ncpipe.commands.json_schema import schema_text
from ncpipe.config.params import Slopes
from ncpipe.config.study import load_study
from ncpipe.config.yaml_file import read_yaml
from ncpipe.figures.claim_panels import claim_panels, verdict_lines
from ncpipe.papers.k23.calls import CALLS as K23
from ncpipe.papers.s24.calls import CALLS as S24
from ncpipe.papers.s24.tables.low_rank import claim_numbers
from ncpipe.system.errors import InputError
from ncpipe.tables.compare import WeightedRuns, difference_interval, size_difference_interval
from ncpipe.tables.keys import RUN, rows_at
from ncpipe.tables.points import usable_points
from ncpipe.tables.profiles import effective_depths, layer_errors, separation_law
from ncpipe.tables.ranks import PERMUTATIONS
from ncpipe.tables.selections import ALL, selected_slopes, selections
from ncpipe.tables.slopes import leave_out_slopes, loglog_slopes

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = sorted([ROOT / "claims.yaml", *ROOT.glob("stages/*/claims.yaml")])
RULE = Slopes(seed=0, level=0.95)
METRIC = "nc1_trace_ratio"


def entry(name="one", quantity="slope", **keys):
    """A claim as claims.yaml has it; about the experiment a and METRIC unless the keys say otherwise."""
    plain = {"id": name, "ref": "S", "statement": "s", "quantity": quantity, "expect": {"below": 0}}
    if quantity != "theory":
        plain |= {"metric": METRIC} | ({"x": "width"} if "over" in keys else {"experiment": "a"})
    if quantity == "line":
        plain |= {"without": 2, "expect": {"within": 0.05}}
    return plain | keys


def claim(quantity="slope", expect=None, **keys):
    (parsed,), mistakes = parse_claims(
        [entry("one", quantity, **keys | ({"expect": expect} if expect else {}))]
    )
    assert not mistakes
    return parsed


def judgement(asked, tables):
    return judge(asked, answer(asked, tables))


def points_of(tables, *claims):
    """What panels show of claims, whatever their numbers are."""
    return panel_points([Judged(asked, Answer(-1, -1, -1), "agrees") for asked in claims], tables)


def tables_of(runs, *measured, history=None):
    measurements = pd.concat(measured, ignore_index=True)
    last = measurements[measurements["layer"] == "last"]
    places = places_of(measurements)
    errors = layer_errors(measurements, places, runs)
    return Tables(
        usable_points(last, runs),
        runs,
        separation_law(measurements, places, runs),
        effective_depths(errors, runs, 0.0),
        errors,
        runs[RUN].assign(epoch=1, train_error=0.0) if history is None else history,
        RULE,
    )


def plain(runs=None):
    """NC1 that falls, of every run."""
    runs = grid() if runs is None else runs
    return tables_of(runs, measure(runs, noisy))


# Verdicts


@pytest.mark.parametrize(
    ("expect", "number", "verdict"),
    [
        ({"below": 0}, (-1, -2, -0.5), "agrees"),
        ({"below": 0}, (-1, -2, 0), "undecided"),
        ({"at_most": 0}, (-1, -2, 0), "agrees"),
        ({"below": 0}, (1, 0, 2), "disagrees"),
        ({"at_most": 0}, (1, 0, 2), "undecided"),
        ({"at_most": 0}, (1, 0.1, 2), "disagrees"),
        ({"above": 1}, (2, 1.5, 3), "agrees"),
        ({"above": 1}, (1, 1, 1), "disagrees"),
        ({"at_least": 1}, (1, 1, 1), "agrees"),
        ({"between": [0, 1]}, (0.5, 0, 1), "agrees"),
        ({"between": [0, 1]}, (0.5, -0.1, 0.9), "undecided"),
        ({"between": [0, 1]}, (1.5, 1.1, 2), "disagrees"),
        ({"below": 0}, (-1, math.nan, math.nan), "undecided"),
        ({"below": 0}, (math.nan, math.nan, math.nan), "does not apply"),
        ({"below": 0.1}, (math.inf, math.inf, math.inf), "disagrees"),
        # an identity is never undecided
        ({"at_least": 0}, (0, -1, 1), "disagrees"),
        ({"at_least": 0}, (1, 1, 1), "agrees"),
        ({"at_least": 0}, (), "does not apply"),
    ],
)
def test_only_the_whole_interval_agrees(expect, number, verdict):
    identity = expect == {"at_least": 0}
    assert judge(claim(expect=expect, identity=identity), Answer(*number)).verdict == verdict


@pytest.mark.parametrize("quantity", ["slope", "spearman"])
@pytest.mark.parametrize(("depths", "verdict"), [((2, 3), "undecided"), ((2, 3, 5), "agrees")])
def test_a_trend_takes_three_depths(quantity, depths, verdict):
    """However many runs these have. Red: a trend between two points that agrees."""
    trend = judgement(claim(quantity), plain(grid(depths=depths, seeds=tuple(range(8)))))
    assert trend.verdict == verdict
    assert ("2 depths, a trend takes 3" in ledger_page([trend])) == (verdict == "undecided")


@pytest.mark.parametrize(
    ("number", "verdict", "why"),
    [
        ((-1, -1.04, -0.96, 0.2), "agrees", "not rejected (p = 0.2), its slope known to ±0.04"),
        (
            (-1, -1.06, -0.94, 0.9),
            "undecided",
            "not rejected (p = 0.9), its slope known to ±0.06, where ±0.05",
        ),
        ((-1, -1.01, -0.99, 0.01), "disagrees", "a line is rejected (p = 0.01)"),
        ((-1, math.nan, math.nan, 0.2), "undecided", "not rejected (p = 0.2), its slope without an interval"),
        ((-1, -1.01, -0.99), "undecided", "too few runs to test a line"),
        ((), "does not apply", "no runs"),
    ],
)
def test_a_line_agrees_only_where_its_test_has_power(number, verdict, why):
    """Red: agrees whenever the test does not reject; judged by where the slope lies."""
    ends = dict(zip(("value", "low", "high", "p_value"), number, strict=False))
    rejected = ends.get("p_value", 1) < 0.05
    judged = judge(claim("line"), Answer(**ends, rejected=rejected, missing="" if ends else "no runs"))
    assert judged.verdict == verdict
    (row,) = ledger_table([judged]).to_dict("records")
    assert row["expected"] == "a line, its slope known to ±0.05"
    for text in (row["reason"], line_of(judged), ledger_page([judged])):
        assert why in text


# Numbers


def test_slopes_and_the_test_of_the_line_are_those_of_the_tables():
    """Of a curve, which is no line without its two smallest depths either. Red: fits without others."""
    runs = grid(depths=(2, 3, 5, 8, 13, 21))
    bent = measure(runs, lambda depth, seed: noisy(depth, seed) * 10 ** (2 * math.log10(depth) ** 2))
    tables = tables_of(runs, bent)
    ends = ["slope", "low", "high"]
    assert answer(claim(), tables)[:4] == (*loglog_slopes(bent, runs, RULE).iloc[0][ends], "18 runs")
    left = leave_out_slopes(bent, runs, RULE).set_index("n_left_out").loc[2]
    slope, line = (answer(claim(kind, without=2), tables) for kind in ("slope", "line"))
    assert slope[:3] == line[:3] == tuple(left[ends])
    assert (line.p_value, line.rejected) == (left["p_value"], True)
    assert math.isnan(slope.p_value), "a slope is about no line"


@pytest.mark.parametrize("edge", [0.1, 0.14, 0.15, 0.2])
def test_a_value_is_decided_by_a_t_test(edge):
    """Its p-value is below 0.1 exactly where a 90 % interval decides. Red: one side; normal quantiles."""
    values = [noisy(5, seed) for seed in range(3)]
    asked = claim("value", depth=5, expect={"below": edge})
    number = answer(asked, dataclasses.replace(plain(), rule=Slopes(0, 0.9)))
    ends = stats.t.interval(0.9, 2, np.mean(values), stats.sem(values))
    assert number[:3] == pytest.approx((np.mean(values), *ends), rel=1e-9)
    p_value = decision_p_value(asked, number)
    assert p_value == pytest.approx(stats.ttest_1samp(values, edge).pvalue, rel=1e-9)
    assert (p_value < 0.1) == (judge(asked, number).verdict != "undecided")


@pytest.mark.parametrize(
    "keys",
    [{}, {"without": 2}, {"quantity": "difference", "of": "log10", "depth": 13, "versus": {"depth": 2}}],
)
def test_the_p_value_of_a_slope_is_that_of_its_interval(keys):
    asked = claim(**keys)
    number = answer(asked, plain())
    reach = stats.t.ppf(0.975, number.freedom) * number.error
    assert [number.low, number.high] == pytest.approx([number.value - reach, number.value + reach], rel=1e-9)
    expected = 2 * stats.t.sf(abs(number.value) / number.error, number.freedom)
    assert decision_p_value(asked, number) == pytest.approx(expected, rel=1e-9)


def mixed():
    """Two experiments: b is twice a. A run that failed lies below all others, and one value is 0.

    Also another split, ten times the values, another metric, which is 0.5 less, and errors of layers.
    """
    runs = set_converged(grid(("a", "b")), {(2, 0)}).assign(
        train_error=lambda t: (t["depth"] == 13) * 0.1, test_error=lambda t: 0.1 + 0.01 * t["seed"]
    )
    nc1 = measure(runs, lambda depth, seed: -1.0 if (depth, seed) == (2, 0) else (1 + seed) * depth**-0.5)
    nc1.loc[nc1["experiment"] == "b", "value"] *= 2
    nc1.loc[(nc1["experiment"] == "a") & (nc1["depth"] == 5) & (nc1["seed"] == 0), "value"] = 0.0
    parts = [nc1, nc1.assign(split="test", value=10 * nc1["value"])]
    parts.append(nc1.assign(metric="cdnv", value=nc1["value"] - 0.5))
    errors = {"a": (0.5, 0.0, 0.01, 0.0), "b": (0.9, 0.5, 0.3, 0.0)}
    for name, of_layers in errors.items():
        deep = runs[(runs["experiment"] == name) & (runs["depth"] == 13)]
        for layer, error in zip(("X1", "X2", "X3", "last"), of_layers, strict=True):
            parts.append(measure(deep, lambda *_, e=error: e, "ncc_error", layer=layer))
    return tables_of(runs, *parts, history=fitted(runs))


def fitted(runs):
    """NC1 falls to a tenth from the first kept epoch without an error on; it was not kept at epoch 5."""
    rows = [
        (*key, epoch, error, value * (1 + key[2]), 5.0)
        for key in runs[RUN].itertuples(index=False, name=None)
        for epoch, error, value in (
            (0, 0.9, 7.0),
            (5, 0.0, math.nan),
            (10, 0.0, 2.0),
            (20, 0.0, 0.9),
            (30, 0.0, 0.2),
        )
    ]
    return pd.DataFrame(rows, columns=[*RUN, "epoch", "train_error", METRIC, f"{METRIC}_test"])


BOUND = {"quantity": "computed", "call": "depth_bound", "metric": "test_error"}
RANKS = {"quantity": "spearman", "metric": "ncc_error"}
RISE = {"quantity": "computed", "call": "layer_rise", "metric": "ncc_error"}
B = {"versus": {"experiment": "b"}}
DIFFERENCE = {"quantity": "difference", "of": "log10"}
EPOCH = {"quantity": "spearman", "metric": "epoch"}


@pytest.mark.parametrize(
    ("keys", "value", "exact"),
    [
        # extremes, of every run that ended finite
        ({"quantity": "minimum"}, -1, True),
        ({"quantity": "maximum", "experiment": "b"}, 6 * 2**-0.5, True),
        ({"quantity": "minimum", "depth": 8}, 8**-0.5, True),
        ({"quantity": "maximum", "metric": "train_error"}, 0.1, True),
        ({"quantity": "minimum", "minus": "cdnv"}, 0.5, True),
        # means: a value of 0 counts
        ({"quantity": "value", "depth": 5}, 5 / 3 * 5**-0.5, False),
        ({"quantity": "value"}, 2 * 13**-0.5, False),
        # differences of runs of one seed as pairs: what the seed decides cancels
        (DIFFERENCE | B | {"depth": 8}, -math.log10(2), True),
        (DIFFERENCE | B | {"of": "value", "depth": 8}, -2 * 8**-0.5, False),
        (DIFFERENCE | {"of": "slope", "versus": {"split": "test"}}, 0, True),
        (DIFFERENCE | {"depth": 8, "versus": {"depth": 3}}, -0.5 * math.log10(8 / 3), True),
        (DIFFERENCE | {"split": "test", "versus": {"split": "train"}}, 1, True),
        (DIFFERENCE | {"of": "value", "versus": {"metric": "cdnv"}}, 0.5, True),
        # from the first kept epoch without an error: not the first kept, nor one that was not kept
        ({"quantity": "computed", "call": "since_fit"}, -1, True),
        ({"quantity": "computed", "call": "since_fit", "split": "test"}, 0, True),
        # by layers
        (RANKS | {"over": {"a": 1.0, "b": 2.0}, "layer": "X2"}, 1, None),
        (RISE, 0.01, True),
        (RISE | {"experiment": "b"}, -0.2, True),
        # eq. 53 with p = 0.2, alpha = 0.5: 0.3 where deeper layers are needed, 1.3 where they are not
        (BOUND | {"args": {"over": {"b": 0.2}, "alpha": 0.5}}, 0.11 - 0.3, False),
        (BOUND | {"args": {"over": {"b": 0.2, "a": 0.1}, "alpha": 0.5}}, 0.11 - 0.3, False),
        (BOUND | {"args": {"over": {"a": 0.2}, "alpha": 0.5}}, 0.11 - 1.3, False),
    ],
)  # fmt: skip
def test_a_number_of_runs(keys, value, exact):
    """exact: whether the interval is the number alone; None without an interval."""
    number = answer(claim(**keys), mixed())
    assert number.value == pytest.approx(value, abs=1e-12)
    if exact is not None:
        ends = pytest.approx((value, value), abs=1e-12)
        assert number[1:3] == ends if exact else number.low < value < number.high


def test_a_number_of_runs_may_be_a_function_of_the_study(study_folder):
    """That of the page: from the last epochs 20 and 30; and one exact number of all runs."""
    page = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    count = 'CALLS |= {"count": (lambda claim, tables, least=0: len(tables.runs),)}\n'
    Path("study.py").write_text(example + count, encoding="utf-8")
    calls = load_study(study_folder).calls
    last, count = claim("computed", call="last_rise"), claim("computed", call="count")
    check_calls([last, count], calls)
    assert answer(last, mixed()).value == pytest.approx(2 * (0.2 - 0.9))
    assert answer(count, mixed())[:3] == (30, 30, 30)
    mistakes = {
        "one.call: unknown 'last_ris'": claim("computed", call="last_ris"),
        "one.args.most: unknown": claim("computed", call="count", args={"most": 1}),
        "one.call: unknown 'gone'": claim("theory", call="gone"),
        "one.quantity: count is a call of `quantity: computed`": claim("theory", call="count"),
    }
    with pytest.raises(InputError) as caught:
        check_calls(list(mistakes.values()), calls)
    for line, start in zip(str(caught.value).splitlines(), mistakes, strict=True):
        assert line.startswith(f"claims.yaml: {start}")


@pytest.mark.parametrize(
    ("keys", "missing"),
    [
        ({"quantity": "maximum", "metric": "loss_optimum"}, "loss_optimum was not measured"),
        ({"metric": "gnc2_spread_means"}, "was not measured"),
        ({"metric": METRIC, "split": "weights"}, "(weights) was not measured; it is of split test, train"),
        (
            {"quantity": "value", "metric": "train_error", "split": "test"},
            "train_error (test): it is of the run, not of a split; leave out `split`",
        ),
        ({"quantity": "value", "metric": "experiment"}, "a, experiment is no number"),
        ({"experiment": "other"}, "no run of"),
        ({"metric": "train_error"}, "train_error follows no power law: it has no slope"),
        ({"quantity": "computed", "call": "since_fit", "metric": "cdnv"}, "since_fit finds no run"),
        (RANKS | {"over": {"a": 1.0, "z": 2.0}}, "no run of z"),
        ({"quantity": "spearman", "along": "tcv"}, "not measured"),
        (DIFFERENCE | B | {"of": "bend", "without": 3}, "too few depths"),
        # no mean over those that come so far, which are the early ones
        (
            EPOCH | {"when": {"metric": METRIC, "at_most": 0.3}},
            f"10 of 15 runs of a do not reach {METRIC} <= 0.3",
        ),
        (
            EPOCH | {"when": {"metric": "cdnv", "at_most": 1}},
            "no cdnv in history.csv; name it in history.metrics",
        ),
    ],
)
def test_a_number_that_is_not_there_says_why(keys, missing):
    assert missing in answer(claim(**keys), mixed()).missing


def test_too_few_used_runs_are_no_number():
    tables = plain(set_converged(grid(), {(depth, seed) for depth in (2, 3, 5) for seed in range(3)}))
    for quantity in ("slope", "line", "spearman"):
        judged = judgement(claim(quantity), tables)
        assert judged.verdict == "does not apply"
        places = "L = 5" if quantity == "line" else "L = 2, 3, 5"  # a line is without L = 2, 3
        assert judged.number.missing == f"fewer than 2 runs have a number that is used at {places}"
    assert answer(claim("value", depth=2), tables).missing.startswith("0 of 3 runs")
    assert answer(claim("value"), tables).runs == "3 of 3 runs at L = 13"


@pytest.mark.parametrize(
    ("last", "expect", "verdict"),
    [
        (0.5, {"below": 0}, "agrees"),  # of the mean at L = 5
        (2.0, {"below": 0}, "undecided"),
        (2.0, {"above": 0}, "undecided"),
        (2.0, {"between": [-9, 9]}, "agrees"),  # of no direction
    ],
)
def test_a_bent_slope_decides_only_if_large_depths_go_with_it(last, expect, verdict):
    """Of means that fall up to L = 5. Red: a verdict on a trend where a metric is lowest in the middle."""
    means = {2: 1.0, 3: 0.1, 5: 0.01, 8: 0.01 * last**0.5, 13: 0.01 * last}
    runs = grid()
    measured = measure(runs, lambda depth, seed: means[depth] * (1 + 0.01 * seed))
    judged = judgement(claim(expect=expect), tables_of(runs, measured))
    slopes = loglog_slopes(measured, runs, RULE)
    assert slopes["rejected"].all()
    assert (slopes["high"] < 0).all()
    assert judged.verdict == verdict
    why = "a line is rejected, and the mean at L = 13 is above that at L = 5"
    assert ledger_table([judged])["reason"].tolist() == [why if verdict == "undecided" else ""]


def curve(sign):
    """A parabola in log-log axes, and a spread by seed that is another one at each depth."""

    def value(depth, seed):
        bent = (1 + 0.05 * math.sin(17 * depth + 5 * seed)) * math.log10(depth) ** 2
        return (depth**-0.5 * 10 ** (bent / 2)) ** sign

    return value


def test_a_bend_is_the_size_of_the_drift():
    """That of slopes_leave_out.csv, against a line, which has none. Red: signed drifts, no pairs."""
    runs = grid(("line", "up", "down"))
    values = {"line": lambda depth, seed: depth**-0.7, "up": curve(1), "down": curve(-1)}
    measured = pd.concat([measure(runs[runs["experiment"] == name], values[name]) for name in values])
    tables = tables_of(runs, measured)

    def bend(experiment, versus, **keys):
        keys = {"of": "bend", "without": 2, "versus": {"experiment": versus}} | keys
        return answer(claim("difference", experiment=experiment, **keys), tables)

    rows = leave_out_slopes(measured, runs, RULE).set_index(["experiment", "n_left_out"])
    row = rows.loc[("up", 2)]
    assert row["drift"] == pytest.approx(-rows.loc[("down", 2)]["drift"])
    straight = bend("up", "line")
    assert straight[:3] == pytest.approx(tuple(row[["drift", "drift_low", "drift_high"]]))
    assert straight.runs == "15 against 15 runs"
    other = bend("line", "up")
    assert other.value == -straight.value
    assert judge(claim(), other).verdict == "agrees"
    assert bend("up", "down")[:3] == pytest.approx((0, 0, 0), abs=1e-12), "the same curve, mirrored"


def test_a_difference_of_sizes_has_the_interval_of_both_signs():
    """|b| - |a| where b - a and b + a have the ends of their intervals. Red: as if both signs were known."""
    generator = np.random.default_rng(0)
    for means in ((-0.06, 0.03), (0.01, 0.03), (0.0, 0.0)):
        a, b = (
            [WeightedRuns(2, 1.0, pd.Series(mean + 0.01 * generator.standard_normal(3)))] for mean in means
        )
        opposite = [term._replace(weight=-1.0) for term in a]
        _, *less = difference_interval(a, b, 0.95)
        _, *more = difference_interval(opposite, b, 0.95)
        corners = [(abs(u + v) - abs(u - v)) / 2 for u in less for v in more]
        size = abs(b[0].values.mean()) - abs(a[0].values.mean())
        expected = (size, min(corners), max(corners))
        assert size_difference_interval(a, b, 0.95) == pytest.approx(expected, rel=1e-12)


def test_ranks_and_layers():
    runs = grid()
    last = measure(runs, lambda depth, seed: depth + 0.1 * seed)
    deep = runs[runs["depth"] == 13]
    steps = [
        measure(deep, lambda depth, seed, at=at: 10 ** (-0.1 * at - 0.01 * seed), layer=f"X{at}")
        for at in range(1, 6)
    ]
    tables = tables_of(runs, last, *steps)
    rising = judgement(claim("spearman", {"above": 0}), tables)
    expected = stats.spearmanr(tables.points["depth"], tables.points["value"]).statistic
    assert rising.number.value == pytest.approx(expected)
    assert judgement(claim("spearman", {"below": 0}), tables).verdict == "disagrees"
    (row,) = ledger_table([rising]).to_dict("records")
    assert math.isnan(row["low"])
    assert row["p_value"] == 1 / (PERMUTATIONS + 1)
    said = "spearman 0.98 (p < 0.001), expected > 0 [one]"
    assert line_of(rising) == f"agrees: s (S): {said}"
    strange = claim("spearman", {"above": 0}, ref="S\u202e")
    assert line_of(judge(strange, rising.number)) == f"agrees: s ('S\\u202e'): {said}"
    rows = tables.separation[(tables.separation["depth"] == 13) & (tables.separation["metric"] == METRIC)]
    slope = answer(claim("computed", call="layer_slope"), tables)
    assert slope.value == pytest.approx(rows["slope"].mean())


def test_a_rank_correlation_with_another_metric():
    """Of all runs, against SciPy's; also of a study with an axis. Red: merged without the seed, own split."""
    runs = grid()
    nc1 = measure(runs, lambda depth, seed: depth + 3 * seed)
    tcv = measure(runs, lambda depth, seed: (depth % 4) + seed, metric="tcv", split="test")
    asked = claim("spearman", {"above": 0}, along="tcv", along_split="test")
    expected = stats.spearmanr(nc1["value"], tcv["value"]).statistic
    assert answer(asked, tables_of(runs, nc1, tcv)).value == pytest.approx(expected)
    assert "with tcv (test)" in asked.about()


def test_a_rank_correlation_that_chance_explains_is_undecided():
    """Three depths with one run each: all orders but two are as good. Red: the sign alone decides."""
    runs = grid(depths=(2, 3, 5), seeds=(0,))
    tables = tables_of(runs, measure(runs, lambda depth, _: {2: 1.0, 3: 3.0, 5: 2.0}[depth]))
    judged = judgement(claim("spearman", {"above": 0}), tables)
    assert (judged.number.value, judged.verdict) == (pytest.approx(0.5), "undecided")


def test_a_claim_across_experiments_is_about_the_number_of_each():
    """Against SciPy's least squares and rank correlation. Red: the depth, or the place in the list, for x."""
    runs = grid(("a", "b", "c"), depths=(4,))
    widths = {"a": 32.0, "b": 256.0, "c": 64.0}
    table = measure(runs, noisy)
    table["value"] = [
        widths[e] ** -1.5 * (1 + 0.1 * s) for e, s in zip(table["experiment"], table["seed"], strict=True)
    ]
    tables = tables_of(runs, table)
    x = [widths[e] for e in table["experiment"]]
    falling = judgement(claim("slope", over=widths), tables)
    slope, expected = falling.number, stats.linregress(np.log10(x), np.log10(table["value"])).slope
    assert slope.value == pytest.approx(expected, rel=1e-9)
    assert slope.low < slope.value < slope.high < -1
    assert slope.runs == "9 of 9 runs"
    rho = answer(claim("spearman", over=widths), tables)
    assert rho.value == pytest.approx(stats.spearmanr(x, table["value"]).statistic)
    (row,) = ledger_table([falling]).to_dict("records")
    assert row["about"] == f"a, b, c by width, {METRIC}"


def test_a_panel_shows_what_a_claim_is_made_of():
    """Red: `imbalance_25_strong` on an axis; the last layer's NC1 below "NC1 along layers"."""
    runs = set_converged(grid(("a", "b"), depths=(4,)), {(4, 2)})
    layers = [measure(runs, lambda *_, at=at: 0.5**at, layer=f"X{at}") for at in (1, 2, 3)]
    tables = tables_of(runs, measure(runs, lambda depth, seed: 0.5**4 + 0.01 * seed), *layers)
    shown = [
        claim(over={"a": 1.0, "b": 2.0}, panel="P"),
        claim("difference", of="log10", versus={"experiment": "b"}, panel="Q"),
        claim("computed", call="layer_slope", panel="R"),
    ]
    points = points_of(tables, *shown, claim("value"))
    panels = dict(iter(points.groupby("panel", sort=False)))
    assert list(panels) == ["P", "Q", "R"]
    assert list(panels["P"]["x"]) == [1, 1, 2, 2]
    assert set(panels["Q"]["name"]) == {"a", "b"}
    assert list(panels["R"]["value"]) == pytest.approx(
        tables.separation.query("experiment == 'a' and metric == @METRIC")["slope"].tolist()
    )
    verdicts = verdict_lines([("P", "agrees"), ("P", "agrees"), ("Q", "disagrees")])
    figure = claim_panels(points, verdicts, {"a": "a learned W"}, "reduced")
    number, beside, along = figure.axes[:3]
    assert [axes.get_title().strip() for axes in figure.axes[:3]] == ["P", "Q", "R"]
    assert [axes.texts[0].get_text() for axes in (number, beside)] == ["2 agree", "1 disagrees"]
    assert sorted(number.lines[0].get_ydata()) == pytest.approx(sorted(panels["P"]["value"]))
    assert along.get_xlabel() == r"slope of $\log_{10}$ NC1 per layer"
    assert [text.get_text() for text in along.get_yticklabels()] == ["a learned W"]
    assert [text.get_text() for text in beside.get_yticklabels()] == ["b", "a learned W"]
    assert figure.get_supxlabel() == "reduced"


def test_many_metrics_against_another_have_a_panel_each():
    """Of five scores beside each other none could be told apart. Red: one panel; a range of y for each."""
    metrics = ["neco_auroc", "nci_auroc", "vim_auroc", "knn_auroc"]
    runs = grid(depths=(2, 3, 5))
    other = [
        measure(runs, lambda depth, seed, at=at: at + 0.01 * depth, metric, "ood")
        for at, metric in enumerate(metrics)
    ]
    tables = tables_of(runs, measure(runs, noisy), *other)
    keys = {"split": "ood", "along": METRIC, "along_split": "train", "panel": "P"}
    claims = [claim("spearman", {"above": 0}, metric=metric, **keys) for metric in metrics]
    panels = claim_panels(points_of(tables, *claims), {"P": "4 agree"}).axes[:4]
    assert [axes.get_title().strip() for axes in panels] == [
        f"AUROC of {name}" for name in ("NECO", "NCI", "ViM", "k-nearest")
    ]
    assert {axes.texts[0].get_text() for axes in panels} == {"agrees"}
    assert len({axes.get_ylim() for axes in panels}) == 1


def test_panels_by_epoch_and_by_layer():
    runs = grid(depths=(4,))
    rows = [
        ("a", 4, seed, epoch, error, 1.0)
        for seed in (0, 1)
        for epoch, error in ((5, 0.1), (9, 0.0), (20, 0.0))
    ]
    history = pd.DataFrame(rows, columns=[*RUN, "epoch", "train_error", METRIC])
    errors = [measure(runs, lambda *_, at=at: 0.5 / at, "ncc_error", layer=f"X{at}") for at in (1, 2)]
    tables = tables_of(runs, measure(runs, noisy), *errors, history=history)
    epochs = claim("computed", call="since_fit", panel="E")
    layers = claim("computed", call="layer_rise", metric="ncc_error", panel="L")
    points = points_of(tables, epochs, layers)
    places = {name: sorted(rows["x"]) for name, rows in points.groupby("metric")}
    without_error = [9, 9]  # where nothing is misclassified first
    assert places == {
        METRIC: [5, 5, 9, 9, 20, 20],
        "train_error": without_error,
        "ncc_error": [1, 1, 1, 2, 2, 2],
    }
    first, second = claim_panels(points, {}).axes
    assert list(first.lines[-1].get_xdata()) == [9, 9]
    assert second.get_xlabel() == "layer"


def test_a_study_with_an_axis_asks_for_one_line():
    runs = grid(depths=(2, 3)).assign(axis="width")
    runs = pd.concat([runs.assign(x=x) for x in (1.0, 2.0, 4.0)], ignore_index=True)
    last = measure(runs, noisy).assign(axis="width", x=runs["x"])
    last["value"] *= last["x"] ** -1.0
    tables = Tables(usable_points(last, runs), runs, *[pd.DataFrame()] * 4, RULE)
    for quantity in ("slope", "value", "spearman"):
        assert "name one" in answer(claim(quantity), tables).missing
    assert answer(claim(depth=2), tables).value == pytest.approx(-1)
    mean = np.mean([noisy(2, seed) / 4 for seed in range(3)])
    assert answer(claim("value", depth=2, value=4), tables).value == pytest.approx(mean)
    assert answer(claim("spearman", depth=3), tables).value < -0.9


# Which runs count


def moving(moved, seeds=range(3)):
    """Runs of one experiment; `moved` gives how much a run's loss moved at the end; above 1 % it is out."""
    runs = grid(seeds=seeds)
    movement = [moved(depth, seed) for depth, seed in zip(runs["depth"], runs["seed"], strict=True)]
    out = np.array(movement) > 0.01
    return runs.assign(
        loss_moved=movement, converged=~out, selected=~out, reason=np.where(out, "loss moving", "")
    )


def settled(runs, value, **keys):
    tables = tables_of(runs, measure(runs, value))
    return judge_by_selection([judgement(claim(**keys), tables)], tables)[0]


def test_selections_are_nested_and_leave_out_runs_without_a_fit():
    runs = moving(lambda depth, seed: 0.004 + 0.006 * seed)
    runs.loc[0, ["reason", "loss_moved", "converged", "selected"]] = ["train error", 0.0, False, False]
    runs.loc[1, ["reason", "loss_moved", "converged", "selected"]] = ["diverged", np.nan, False, False]
    counts = {name: int(counted.sum()) for name, counted in selections(runs).items()}
    assert counts == {ALL: 13, "moved <= 0.5 %": 4, "moved <= 1 %": 8, "moved <= 2 %": 13}
    runs.loc[14, "reason"] = "gradient"  # which moved by 1.6 %: it fits, and had not settled
    assert [int(counted.sum()) for counted in selections(runs).values()] == [13, 4, 8, 12]


def test_slopes_are_those_of_polyfit_over_the_selected_runs():
    runs = moving(lambda depth, seed: 0.004 + 0.006 * seed)
    table = selected_slopes(measure(runs, noisy), runs, RULE).set_index("selection")
    for name, counted in selections(runs).items():
        used = runs[counted]
        y = np.log10([noisy(depth, seed) for depth, seed in zip(used["depth"], used["seed"], strict=True)])
        assert table.loc[name, "slope"] == pytest.approx(np.polyfit(np.log10(used["depth"]), y, 1)[0])
        assert table.loc[name, "n_used"] == len(used)


def worse(depth, seed):
    """The last two of four seeds collapse less, the more so the deeper."""
    return noisy(depth, seed) * (depth**2 if seed > 1 else 1)


def test_a_verdict_that_depends_on_the_selection_is_undecided():
    """Runs that still move are the less collapsed. Red: `agrees`, by runs chosen on their outcome."""
    runs = moving(lambda depth, seed: 0.015 if seed > 1 else 0.001, seeds=range(4)).assign(selected=True)
    judged = settled(runs, worse)
    assert judged.verdict == "undecided"
    [row] = ledger_table([judged]).to_dict("records")
    assert row["reason"].startswith("depends on which runs count (undecided: all that fit, moved <= 2 %; ")
    assert "agrees: moved <= 0.5 %, moved <= 1 %" in row["reason"]


@pytest.mark.parametrize(
    ("moved", "gradient", "verdict", "why"),
    [
        (lambda depth, seed: 0.001, set(), "agrees", ""),
        # two runs of each depth are left in the narrowest selection, then one at L = 13
        (lambda depth, seed: 0.006 if seed == 2 else 0.004, set(), "agrees", ""),
        (lambda depth, seed: 0.006 if seed and depth == 13 else 0.004, set(), "agrees", ""),
        # no selection is left but that of all runs: by their loss, then by their gradient
        (lambda depth, seed: 0.03 if seed and depth == 2 else 0.001, set(), "undecided", "L = 2"),
        (lambda depth, seed: 0.001, {13}, "undecided", "L = 13"),
    ],
)
def test_settled_runs_of_every_depth_confirm_a_verdict(moved, gradient, verdict, why):
    """Red: the half of all runs as a rule, which lets one run more or less decide; a slope over other depths;
    a verdict by runs of which none had settled at one depth."""
    runs = moving(moved)
    runs["reason"] = runs["reason"].mask(runs["depth"].isin(gradient), "gradient")
    judged = settled(runs.assign(selected=True), noisy)
    assert judged.verdict == verdict
    why_not = (
        f"too few runs had settled (moved <= 2 %: fewer than 2 runs have a number that is used at {why})"
    )
    assert judged.number.depends == (why_not if why else "")


def test_every_kind_of_claim_is_asked_under_each_selection():
    runs = moving(lambda depth, seed: 0.015 if seed == 2 else 0.001)
    strange = lambda depth, seed: noisy(depth, seed) * (1e3 if seed == 2 else 1)  # noqa: E731
    difference = DIFFERENCE | {"expect": {"below": 0}, "depth": 13, "versus": {"depth": 2}}
    for keys in ({"quantity": "value", "expect": {"below": 1}}, difference):
        assert settled(runs, strange, **keys).verdict == "undecided"
    least = settled(runs, strange, quantity="minimum", expect={"at_least": 0}, metric=METRIC)
    assert least.verdict == "agrees"


def test_a_metric_that_only_stands_beside_another_is_selected_too():
    """Red: "tcv was not measured" under every selection, so that no verdict stood."""
    runs = moving(lambda depth, seed: 0.001)
    tables = tables_of(runs, measure(runs, noisy), measure(runs, noisy, "tcv"))
    (judged,) = judge_by_selection([judgement(claim("spearman", {"above": 0}, along="tcv"), tables)], tables)
    assert (judged.verdict, judged.number.depends) == ("agrees", "")


def test_a_call_of_a_study_may_read_any_metric_under_each_selection():
    """Red: points of the metrics that claims name, so that another one is absent under every selection."""
    runs = moving(lambda depth, seed: 0.001)
    tables = tables_of(runs, measure(runs, noisy), measure(runs, noisy, "tcv"))
    mean_of_tcv = lambda claim, tables: rows_at(tables.points, {"metric": "tcv"})["value"].mean()  # noqa: E731
    asked = claim("computed", {"above": 0}, call="mean_of_tcv")
    check_calls([asked], {"mean_of_tcv": (mean_of_tcv,)})
    (judged,) = judge_by_selection([judgement(asked, tables)], tables)
    assert (judged.verdict, judged.number.depends) == ("agrees", "")


def test_runs_of_a_papers_own_stage_have_no_selections():
    judged = [judgement(claim(), plain())]
    assert judge_by_selection(judged, plain()) == judged
    assert not pd.isna(judged[0].number.value)


# Theory

CALLS = THEORY_CALLS | K23 | S24


@pytest.fixture
def papers(monkeypatch):
    """The calls of papers, as a study has them."""
    monkeypatch.setattr(theory_calls, "THEORY_CALLS", CALLS)


TWINS = {  # those of test_optima.py are not repeated
    "two_linear.logit": ({"strength": 0.3}, 1e-5),
    "flow.scale": ({"loss": "mse", "classes": 3, "per_class": 4, "start": 0.01, "time": 30.0}, 1e-8),
    "flow.balance_left": (
        {"loss": "ce", "decay": 0.02, "classes": 3, "per_class": 2, "width": 4, "time": 20.0}, 1e-7,
    ),
    "locally_elastic.etf_rate": ({"classes": 4, "own": 1.0, "other": -0.6}, 0.02),
    "imbalance.threshold": ({"majority": 2, "minority": 2, "per_minority": 3, "ratio": 4.0}, 5e-4),
    "imbalance.largest_ratio": ({"majority": 2, "minority": 3, "per_minority": 4, "decay": 0.03}, 1e-3),
}  # fmt: skip


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.usefixtures("papers")
def test_a_closed_form_has_a_twin_that_agrees(name):
    args, share = TWINS[name]
    asked = claim("theory", {"within": share}, call=name, args=args, against="numerical")
    judged = judge(asked, answer(asked))
    assert judged.verdict == "agrees", judged
    (row,) = ledger_table([judged]).to_dict("records")
    assert row["expected"].endswith(", computed independently")  # on either side
    assert answer(claim("theory", call=name, args=args)).value == CALLS[name][0](**args)


SPHERE = {"classes": 3, "width": 4, "strength": 0.01}
TURNED = {"classes": 4, "width": 7, "strength": 0.02, "seed": 3}
PAIRS = {"classes": 4, "per_class": 50, "seed": 1}


@pytest.mark.parametrize(
    ("name", "args", "low", "high"),
    [
        # the minimum of features on a sphere is collapsed
        ("gufm.collapse", SPHERE | {"loss": "ce", "per_class": 2}, 0, 1e-5),
        ("gufm.collapse", SPHERE | {"loss": "mse", "per_class": 2}, 0, 1e-5),
        # a drawn pair is an optimum. Red: a simplex under MSE without bias, orthogonal rows under CE
        ("gufm.rescaled", TURNED | {"loss": "ce", "bias": False}, 1 - 1e-12, 1 + 1e-12),
        ("gufm.rescaled", TURNED | {"loss": "mse", "bias": False}, 1 - 1e-12, 1 + 1e-12),
        ("gufm.rescaled", TURNED | {"loss": "mse", "bias": True}, 1 - 1e-12, 1 + 1e-12),
        # impacts slower than 1/t separate samples. Red: samples without noise, impacts that do not fall
        ("locally_elastic.separable_pairs", PAIRS | {"strength": 0.5, "power": 0.5, "time": 1e4}, 1, 1),
        ("locally_elastic.separable_pairs", PAIRS | {"strength": 1.0, "power": 1.5, "time": 1e2}, 0, 0),
        # an orthogonal frame. Red: a penalty on two factors alone, features against the layers' transpose
        ("two_linear.frame", {"classes": 3, "strength": 0.3}, 0, 1e-5),
    ],
)
@pytest.mark.usefixtures("papers")
def test_a_number_of_the_theory(name, args, low, high):
    assert low <= answer(claim("theory", call=name, args=args)).value <= high


@pytest.mark.parametrize(
    ("target", "value", "verdict"),
    [
        (0.25, 0.2502, "agrees"),
        (0.25, 0.2506, "disagrees"),
        (-4.0, -4.006, "agrees"),  # a share of the target's size
        (-4.0, -4.009, "disagrees"),
        (0.0, -0.0015, "agrees"),  # of a target of 0 there is no share
        (0.0, 0.0021, "disagrees"),
    ],
)
def test_within_is_a_share_of_the_target(target, value, verdict):
    asked = claim("theory", {"within": 2e-3}, call="two_linear.jump", args={"distance": 1e-9}, against=0.5)
    assert judge(asked, Answer(value, value, value, target=target)).verdict == verdict


CHECKED = {"against": "numerical", "expect": {"within": 0.1}}
THREE = {"majority": 2, "minority": 2, "per_minority": 3}
PAIR = {"classes": 3, "strength": 1.0, "power": 0.5, "time": 0.5, "per_class": 2, "seed": 0}
BALANCE = {"loss": "mse", "decay": 0.1, "classes": 3, "per_class": 1, "width": 1, "time": 1.0}


@pytest.mark.parametrize(
    ("call", "args", "line"),
    [
        ("gufm.valu", {}, "call: unknown 'gufm.valu'; did you mean 'gufm.value'?"),
        (
            "two_linear.jump",
            {"distance": 1, "distanse": 1},
            "args.distanse: unknown; did you mean 'distance'?",
        ),
        ("two_linear.jump", {"distance": 1, "dis\u202etance": 1}, "args.'dis\\u202etance': unknown; "),
        ("two_linear.jump", {}, "args.distance: missing; add it"),
        ("two_linear.jump", {"distance": -1}, "args.distance: -1 is out of range; it must be > 0"),
        ("two_linear.jump", {"distance": "x"}, "args.distance: expected a number"),
        ("checked two_linear.jump", {"distance": 1}, "against: two_linear.jump has no numerical check"),
        ("orthoplex.value", {"classes": 5, "per_class": 1, "decay": 0.1}, "args: classes: 5"),
        # numbers that are not finite: 0 in a denominator, no end of a search, roots of negative numbers
        ("locally_elastic.separable_pairs", PAIR, "args"),
        ("locally_elastic.etf_error", {"classes": 7, "own": 1.5, "other": 100.0, "time": 1e38}, "args"),
        ("dufm.best_minus", {"classes": 5, "depth": 4, "per_class": 4, "decay": 0.5}, "args"),
        # beyond the interval that a check searches, or a share of a rounding error
        ("checked imbalance.threshold", THREE | {"minority": 1, "ratio": 4.0}, "args: minority: "),
        ("checked imbalance.threshold", THREE | {"ratio": 1e4}, "args: ratio: "),
        ("checked imbalance.largest_ratio", THREE | {"decay": 1.0}, "args: decay: "),
        ("checked flow.balance_left", BALANCE, "args: width: "),
    ],
)
@pytest.mark.usefixtures("papers")
def test_a_bad_call_is_one_line(call, args, line):
    """Red: a traceback of a solver; NaN as `does not apply`; the end of the interval that is searched."""
    checked = CHECKED if call.startswith("checked ") else {}
    bad = claim("theory", call=call.removeprefix("checked "), args=args, **checked)
    message = refused_by(answer, bad)
    assert message.startswith(f"claims.yaml: one.{line}")


@pytest.mark.usefixtures("study_folder")
def test_numbers_do_not_depend_on_what_started_the_stage(monkeypatch):
    """Red: an order of sums that only `ncpipe sweep` passes on, in the environment."""
    monkeypatch.delenv("MKL_CBWR", raising=False)
    write_claims(entry("c", "theory", expect={"below": 10}, call="gufm.value", args={"loss": "ce"} | SPHERE))
    claims_command()
    capability = torch.backends.cpu.get_cpu_capability()
    expected = f"{capability},STRICT" if capability in ("AVX2", "AVX512") else None
    assert os.environ.pop("MKL_CBWR", None) == expected


@pytest.mark.usefixtures("study_folder")
def test_all_calls_are_checked_before_one_is_made(monkeypatch):
    """A typo in the last claim of a study does not cost its minutes. Red: checked one by one."""
    monkeypatch.setitem(THEORY_CALLS, "gufm.value", (lambda width: pytest.fail("evaluated"),))
    calls = [("gufm.value", {"width": 4}), ("gufm.valu", {}), ("gufm.value", {"widht": 1})]
    write_claims(*(entry(f"c{i}", "theory", call=call, args=args) for i, (call, args) in enumerate(calls)))
    with pytest.raises(InputError) as caught:
        claims_command()
    keys = [line.split(":")[1].strip() for line in str(caught.value).splitlines()]
    assert keys == ["c1.call", "c2.args.widht", "c2.args.width"]
    assert not Path("data").exists()


# The file


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.parent.name)
def test_shipped_claims_read_and_fit_their_schema(path, monkeypatch):
    """Red: a claim whose study.py does not have its call."""
    monkeypatch.chdir(path.parent)
    ledger = load_claims()
    assert len(ledger) >= len(read_yaml(path))
    try:
        check_calls(ledger, load_study(path.parent).calls)
    finally:
        load_study(path.parent / "nowhere")
    first, *_ = path.read_text(encoding="utf-8").splitlines()
    named = path.parent / first.removeprefix("# yaml-language-server: $schema=")
    assert named.resolve() == ROOT / "claims.schema.json"
    jsonschema.Draft202012Validator(json.loads(named.read_text(encoding="utf-8"))).validate(read_yaml(path))


@pytest.mark.parametrize(("study", "name", "count"), [("regimes_models", "m", 14), ("regimes", "k23-n", 15)])
def test_everything_that_k23_says_has_a_row(study, name, count):
    """Its models and its networks, 29 in all. Red: the rows of one taken out."""
    entries = read_yaml(ROOT / "stages" / study / "claims.yaml")
    numbers = {int(match[1]) for entry in entries if (match := re.match(rf"{name}(\d+)-", entry["id"]))}
    assert numbers == set(range(1, count + 1))


def test_the_schema_is_current():
    text = (ROOT / "claims.schema.json").read_text(encoding="utf-8")
    assert text == schema_text("claims.schema.json")
    jsonschema.Draft202012Validator.check_schema(json.loads(text))


DIFFERS = {"quantity": "difference", "of": "slope"}
OVER = {"experiment": ..., "x": "n"}
EARLY = {"metric": METRIC, "at_most": 1}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"quantity": "slop"}, "quantity: 'slop' is unknown; did you mean 'slope'?"),
        ({"quantity": "value", "along": "tcv"}, "along: unknown key; "),
        ({"experiment": "b"}, "experiment: unknown 'b'; allowed: a, a2"),
        ({"metric": "nc1"}, "metric: unknown 'nc1'"),
        ({"metric": ...}, "metric: missing; add it"),
        ({"expect": {}}, "expect: give one of below, above"),
        ({"expect": {"below": 1, "above": 0}}, "expect: give one of"),
        ({"expect": {"between": [1, 0]}}, "expect: between takes two numbers"),
        ({"expect": {"within": 0.1}}, "expect.within: is for a theory or a line"),
        ({"quantity": "line", "without": 2}, "expect: a line takes `within`, the largest half-width of its"),
        ({"value": 3}, "value: params.yaml has no sweep.axis"),
        ({"author": "them"}, "author: 'them' is unknown"),
        (DIFFERS | {"versus": {"experiment": "a"}}, "versus: is the setting of the claim itself"),
        (DIFFERS | {"versus": {}}, "versus: names nothing"),
        (DIFFERS, "versus: missing; add it"),
        (DIFFERS | {"versus": {"depth": 3}}, "of: a slope is over all depths"),
        (DIFFERS | {"of": "bend", "versus": {"experiment": "a2"}}, "without: a bend needs the number of"),
        (DIFFERS | {"versus": {"experiment": "a2"}, "without": 2}, "without: a bend needs the number of"),
        (DIFFERS | {"of": "value", "versus": {"experiment": "c"}}, "versus.experiment: unknown"),
        ({"over": {"a": 1, "a2": 2}, "x": "n"}, "experiment: does not go together with over"),
        ({"experiment": ..., "over": {"a": 1, "a2": 2}}, "over: goes together with x"),
        (OVER | {"over": {"a": 1}}, "over: name at least two"),
        (OVER | {"over": {"a": 1, "b": 2}}, "over: unknown 'b'"),
        (OVER | {"over": {"a": 1, "a2": 0}}, "over: a number that is not above 0"),
        (OVER | {"over": {"a": 1, "a2": 2}, "x": "data.per_class"}, "over.a: 1 here, but params.yaml has"),
        ({"quantity": "minimum", "minus": "nc"}, "minus: unknown 'nc'"),
        ({"quantity": "spearman", "expect": {"above": 0.5}}, "expect: only the sign of a rank"),
        ({"quantity": "spearman", "along_split": "test"}, "along_split: belongs to `along`"),
        (RANKS | {"along": "tcv", "layer": "X"}, "along: replaces"),
        ({"metric": "epoch"}, "metric: epoch is that of `when`; give `when`"),
        ({"when": {"metric": "nc1", "at_most": 1}}, "when.metric: unknown 'nc1'"),
        ({"when": {"metric": METRIC}}, "when.at_most: missing; add it"),
        (
            {"quantity": "line", "without": 2, "expect": {"within": 1}, "when": EARLY},
            "when: a line is of the",
        ),
        (RISE | {"metric": METRIC}, "metric: layers before the last have only ncc_error"),
        *(({"id": name}, "id: ") for name in (..., "a\nb", "", "a\u202eb")),
    ],
)
@pytest.mark.usefixtures("study_folder")
def test_a_bad_claim_is_one_line_with_its_id(change, line):
    small = experiment_tree()["data"]
    write_params([2], [0], a=experiment_tree(), a2=experiment_tree(data=small | {"per_class": 2}))
    write_claims({key: value for key, value in (entry() | change).items() if value is not ...})
    message = refused_by(load_claims)
    assert message.startswith(f"claims.yaml: {'claim 1' if line == 'id: ' else 'one'}.{line}")
    assert message.isprintable()
    assert len(message) <= 300


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "claims.yaml: not found"),
        ("a: 1", "claims.yaml: expected a list"),
        ("- [", "claims.yaml:"),
        ("- 3", "claims.yaml: claim 1"),
        (json.dumps([entry(), entry()]), "claims.yaml: one: another claim has the same id"),
    ],
)
@pytest.mark.usefixtures("study_folder")
def test_other_files_are_refused(text, line):
    write_params([2], [0], a=experiment_tree())
    if text:
        Path("claims.yaml").write_text(text, encoding="utf-8")
    assert refused_by(load_claims).startswith(line)


@pytest.mark.usefixtures("study_folder")
def test_a_claim_without_an_experiment_is_each_one_s():
    write_params([2], [0], a=experiment_tree(), b=experiment_tree())
    everyones = entry("one")
    del everyones["experiment"]
    write_claims(everyones, entry("two", experiment="b"))
    claims = [(claim.id, claim.experiment) for claim in load_claims()]
    assert claims == [("one-a", "a"), ("one-b", "b"), ("two", "b")]
    write_claims(everyones, entry("one-b", experiment="b"))
    assert refused_by(load_claims).startswith("claims.yaml: one-b: the name of an experiment makes")


def write_results():
    Path("data/results").mkdir(parents=True)
    tables = vars(plain())
    for name in tables.keys() - {"rule"}:
        tables[name].to_csv(f"data/results/{name}.csv", index=False)


def write_claims(*entries):
    Path("claims.yaml").write_text(json.dumps(entries), encoding="utf-8")


@pytest.mark.usefixtures("study_folder")
def test_the_command_writes_before_it_fails(capsys):
    write_params([2, 3, 5, 8, 13], [0, 1, 2], a=experiment_tree(), b=experiment_tree())
    args = {"loss": "mse", "classes": 3, "width": 4, "strength": 0.5}
    closed = {"call": "gufm.value", "args": args, "against": 3 / 22, "expect": {"within": 1e-12}}
    bound = {"expect": {"at_least": 0.2}, "identity": True, "statement": "a | b"}
    write_claims(
        entry("holds"),
        entry("bound", "minimum", **bound),
        entry("later", experiment="b"),
        entry("closed", "theory", author="ours", **closed),
    )
    write_results()
    with pytest.raises(InputError, match=r"claims.yaml: bound: a proven identity does not hold"):
        claims_command()
    table = pd.read_csv("data/claims/claims.csv")
    assert list(table["verdict"]) == ["agrees", "disagrees", "does not apply", "agrees"]
    page = Path("data/claims/claims.md").read_text(encoding="utf-8")
    assert "4 claims: 2 agree, 1 disagrees, 1 does not apply" in page
    assert r"a \| b" in page
    count, only = capsys.readouterr().err.splitlines()[-2:]
    assert count.endswith("4 claims: 2 agree, 1 disagrees, 1 does not apply; see data/claims/claims.md")
    assert re.search(r"disagrees: a \| b \(S\): minimum 0\.\S+, expected >= 0\.2 \[bound\]$", only)


@pytest.mark.usefixtures("study_folder")
def test_claims_of_s24_are_about_the_runs_of_its_tables():
    """The runs and the series that the stage claims. Red: runs that lose classes; the runs of the sweep."""
    write_params([4], [0, 1], a=experiment_tree(), b=experiment_tree())
    write_claims(
        entry("spread", "maximum", metric="rank_spread", experiment="b"),
        entry("dnc", "maximum", metric="dnc_found", experiment="b"),
        entry("last", "minimum", metric="last_rank"),
    )
    write_results()
    low_rank = Path("data/low_rank")
    low_rank.mkdir()
    columns = ["experiment", "depth", "x", "seed", "ranks", "classes_given_up", "train_error", "dnc_found"]
    rows = [("a", 4, 0.1, 0, "5-5-9", 0, 0.0, False), ("a", 4, 0.1, 1, "5-5-4", 1, 0.0, True)]
    series = [("b", 4, None, 0, "5-6-10", 0, 0.0, False), ("b", 4, None, 1, "2-9-10", 0, 0.1, True)]
    same = {
        "finished": True, "converged": True, "selected": True, "loss_over_dnc": 0.9, "structure": "other",
        "ranks_before": "5-5-5",
    }  # fmt: skip
    runs = pd.DataFrame(rows, columns=columns).assign(axis="penalty.value", **same)
    both = pd.concat([runs, pd.DataFrame(series, columns=columns).assign(**same)], ignore_index=True)
    claim_numbers(both).to_csv(low_rank / "claimed.csv", index=False)
    Path("study.py").write_text("from ncpipe.papers.s24.stages import STAGES\n", encoding="utf-8")
    claims_command()
    table = pd.read_csv("data/claims/claims.csv").set_index("id")
    assert table["value"].to_dict() == {"spread": 1, "dnc": 0, "last": 9}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.parent.name)
def test_what_is_proven_of_global_optima_is_no_claim_about_runs(path):
    """Red: a trained gap against the bound of Theorem 4.3, "disagrees", which contradicts nothing.

    An identity holds for every run; a witness of "there are networks" may be trained.
    """
    about_runs = [claim for claim in read_yaml(path) if claim["quantity"] != "theory"]
    proven = re.compile(r"S25 .*(Thm|Cor\.|Lemma|App\. C)|K23 sec\. 3\.1\.3")
    assert [
        claim["id"]
        for claim in about_runs
        if proven.match(claim["ref"])
        and not claim.get("identity")
        and not claim["statement"].startswith("there are networks")
    ] == []


def falling(runs):
    """A history in steps of 10 epochs: NC1 is exp(-epoch/(10 L + seed)), and the feature norm 100 less it."""
    rows = [
        {"experiment": "a", "depth": depth, "seed": seed, "epoch": epoch, "train_error": 0.0}
        | {METRIC: math.exp(-epoch / (10 * depth + seed)), "feature_norm": 100.0 - epoch}
        for depth, seed in zip(runs["depth"], runs["seed"], strict=True)
        for epoch in range(0, 1001, 10)
    ]
    return pd.DataFrame(rows)


def onset_of(depth, seed, level):
    return 10 * math.ceil((10 * depth + seed) * math.log(1 / level) / 10)


def test_the_onset_is_the_first_logged_epoch_below_a_level() -> None:
    """Red: the last one above it, the last of all, another depth's."""
    when = {"metric": METRIC, "at_most": 0.01}
    runs = grid()
    tables = tables_of(runs, measure(runs, noisy), history=falling(runs))
    epochs = {depth: [onset_of(depth, seed, 0.01) for seed in range(3)] for depth in DEPTHS}
    expected = np.mean(epochs[13])
    onset = claim("value", {"above": 0}, metric="epoch", when=when).answer(tables)
    half = stats.t.ppf(0.975, 2) * np.std(epochs[13], ddof=1) / math.sqrt(3)
    assert onset[:3] == pytest.approx((expected, expected - half, expected + half))
    norm = claim("value", {"above": 0}, metric="feature_norm", when=when).answer(tables)
    assert norm.value == pytest.approx(100 - expected)
    slope = claim("slope", {"above": 0}, metric="epoch", when=when).answer(tables)
    means = [np.mean(np.log10(epochs[depth])) for depth in DEPTHS]
    assert slope.value == pytest.approx(np.polyfit(np.log10(DEPTHS), means, 1)[0])
    than = {"versus": {"when": when | {"at_most": 0.1}}, "panel": "P"}
    later = claim("difference", {"above": 0}, metric="epoch", of="value", when=when, **than)
    earlier = [onset_of(13, seed, 0.1) for seed in range(3)]
    assert later.answer(tables).value == pytest.approx(expected - np.mean(earlier))
    points = points_of(tables, later)
    of_onset = {name: sorted(rows["value"]) for name, rows in points.groupby("series")}
    assert of_onset == {f"epoch at {METRIC} <= 0.1": earlier, f"epoch at {METRIC} <= 0.01": epochs[13]}
    (axes,) = claim_panels(points, {}).axes
    names = {r"NC1 $\leq$ 0.1": earlier, r"NC1 $\leq$ 0.01": epochs[13]}
    shown = {text.get_text() for text in axes.get_legend().get_texts()}
    assert (shown, axes.get_xlabel()) == (set(names), "epoch")
    means = {line.get_label(): line.get_xdata() for line in axes.lines if line.get_label() in names}
    assert {name: float(x[0]) for name, x in means.items()} == pytest.approx(
        {name: np.mean(of) for name, of in names.items()}
    )


def test_one_run_has_the_interval_between_logged_epochs() -> None:
    runs = grid(depths=(2,), seeds=(0,))
    tables = tables_of(runs, measure(runs, noisy), history=falling(runs))
    asked = claim("value", {"above": 0}, metric="epoch", when={"metric": METRIC, "at_most": 0.01})
    assert asked.answer(tables)[:4] == (100, 90, 100, "1 run at L = 2")
    at_first = dataclasses.replace(asked, when=dataclasses.replace(asked.when, at_most=1))
    assert at_first.answer(tables)[:3] == (0, 0, 0)
