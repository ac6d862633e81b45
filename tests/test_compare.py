"""Differences between two settings of the same experiments, against Welch's and the paired t interval."""

import io
import math

import numpy as np
import pandas as pd
import pytest
from made_tables import DEPTHS, grid, measure, noisy, set_converged
from scipy import stats

from ncpipe.commands.compare import compare, different_parameters, result_rows
from ncpipe.config.params import Slopes
from ncpipe.runs.differences import changed_since
from ncpipe.system.errors import InputError
from ncpipe.tables.compare import Results, WeightedRuns, compare_results, difference_interval
from ncpipe.tables.points import usable_points
from ncpipe.tables.slopes import loglog_slopes

RULE = Slopes(seed=0, level=0.95)
NC1 = [("nc1_trace_ratio", "train")]


def results(value, runs=None):
    runs = grid() if runs is None else runs
    return Results(usable_points(measure(runs, value), runs), runs)


def compared(rule=RULE, **revisions):
    return compare_results(revisions, "a", NC1, rule).set_index(["quantity", "revision"])


def terms(weights, groups, first_seed=0, depths=DEPTHS):
    return [
        WeightedRuns(depth, weight, pd.Series(values, range(first_seed, first_seed + len(values))))
        for depth, weight, values in zip(depths, weights, groups, strict=False)
    ]


def steeper(depth, seed):
    return noisy(depth, seed) * depth**-0.2 * (1 + 0.05 * math.cos(11 * depth + 3 * seed))


def test_each_revision_has_the_numbers_of_its_slopes_table():
    """Red: an interval made otherwise than that of slopes.csv, so that two tables of one result disagree."""
    runs = set_converged(grid(), {(2, 0), (13, 1)})
    table = compared(base=results(noisy), other=results(steeper, runs))
    for name, value, sweep in (("base", noisy, grid()), ("other", steeper, runs)):
        [fit] = loglog_slopes(measure(sweep, value), sweep, RULE).to_dict("records")
        row = table.loc[("slope", name)]
        assert [row["value"], row["low"], row["high"]] == pytest.approx(
            [fit["slope"], fit["low"], fit["high"]], rel=1e-12
        )
    assert table.loc[("runs", "other"), "value"] == 15
    assert table.loc[("converged", "other"), ["value", "difference"]].tolist() == [13, -2]


def test_the_difference_of_slopes_is_the_slope_of_the_differences():
    """Of pairs: log10 of the ratio of each seed's two values. Red: an interval of independent slopes."""
    row = compared(base=results(noisy), other=results(steeper)).loc[("slope", "other")]
    runs = grid()
    ratio = measure(runs, lambda depth, seed: steeper(depth, seed) / noisy(depth, seed))
    [fit] = loglog_slopes(ratio, runs, RULE).to_dict("records")
    assert row["difference"] == pytest.approx(fit["slope"], rel=1e-10)
    assert [row["difference_low"], row["difference_high"]] == pytest.approx(
        [fit["low"], fit["high"]], rel=1e-10
    )
    assert row["pairs"] == "5 of 5"


def test_equal_seeds_at_one_depth_give_the_paired_t_interval():
    generator = np.random.default_rng(0)
    before, after = generator.standard_normal((2, 5))
    interval = difference_interval(terms([1.0], [before]), terms([1.0], [after]), 0.95)
    expected = stats.ttest_rel(after, before).confidence_interval(0.95)
    assert interval == pytest.approx([(after - before).mean(), expected.low, expected.high], rel=1e-12)


def test_other_seeds_at_one_depth_give_welchs_interval():
    generator = np.random.default_rng(0)
    before, after = generator.standard_normal(3), 4 * generator.standard_normal(5)
    interval = difference_interval(terms([1.0], [before]), terms([1.0], [after], first_seed=2), 0.95)
    expected = stats.ttest_ind(after, before, equal_var=False).confidence_interval(0.95)
    assert interval == pytest.approx([after.mean() - before.mean(), expected.low, expected.high], rel=1e-12)


def test_the_same_runs_differ_by_nothing():
    """Also where one setting has a depth more: what both share cancels in the depths' means."""
    same = compared(base=results(noisy), other=results(noisy))
    for quantity in ("slope", "log10"):
        row = same.loc[(quantity, "other")]
        assert [row["difference"], row["difference_low"], row["difference_high"]] == [0, 0, 0]
    more = compared(base=results(noisy), other=results(noisy, grid(depths=(*DEPTHS, 21))))
    row = more.loc[("log10", "other")]
    assert (row["depth"], row["difference"], row["difference_high"]) == (13, 0, 0)
    row = more.loc[("slope", "other")]
    assert row["pairs"] == "5 of 6"
    lone = row["high"] - row["low"] + more.loc[("slope", "base"), "high"] - more.loc[("slope", "base"), "low"]
    assert 0 < row["difference_high"] - row["difference_low"] < lone / 2


def test_one_run_at_the_deepest_depth_gives_a_difference_without_an_interval():
    """Red: an interval of no width, or with the spread of other depths."""
    runs = grid()
    runs = runs[(runs["depth"] < 13) | (runs["seed"] == 0)]
    table = compared(base=results(noisy, runs), other=results(steeper, runs))
    for quantity in ("slope", "log10"):
        row = table.loc[(quantity, "other")]
        assert row["difference"] < 0
        assert row[["low", "high", "difference_low", "difference_high"]].isna().all()


def test_an_experiment_without_values_has_counts_only():
    runs = grid(converged=False)
    table = compared(base=results(noisy), other=results(noisy, runs))
    assert table.loc[("converged", "other"), "difference"] == -15
    assert math.isnan(table.loc[("slope", "other"), "value"])
    assert math.isnan(table.loc[("slope", "other"), "difference"])
    assert "log10" not in table.index


def varied(change=1.0, values=(2, 4, 8)):
    """Results of a study with an axis: NC1 falls as x^-0.3 at L = 2, and faster at L = 3."""
    parts = []
    for x in values:
        runs = grid(depths=(2, 3)).assign(axis="model.width", x=x)
        table = measure(runs, lambda depth, seed, x=x: noisy(depth, seed + x) * x ** (-0.15 * depth * change))
        parts.append((runs, table.assign(axis="model.width", x=x)))
    runs, measured = (pd.concat(tables, ignore_index=True) for tables in zip(*parts, strict=True))
    return Results(usable_points(measured, runs), runs), loglog_slopes(measured, runs, RULE)


def test_an_axis_has_a_slope_for_each_depth_and_a_mean_for_each_value():
    """Red: slopes that are missing; a mean over all values of the axis."""
    base, slopes = varied()
    other, _ = varied(change=2.0)
    table = compare_results({"base": base, "other": other}, "a", NC1, RULE)
    fits = table[(table["revision"] == "base") & (table["quantity"] == "slope")]
    assert fits["depth"].tolist() == slopes["depth"].tolist() == [2, 3]
    for column, fitted in (("value", "slope"), ("low", "low"), ("high", "high")):
        assert fits[column].tolist() == pytest.approx(slopes[fitted].tolist(), rel=1e-12)
    for name, revision in (("base", base), ("other", other)):
        means = table[(table["revision"] == name) & (table["quantity"] == "log10")]
        at = revision.points[revision.points["depth"] == 3]
        expected = [np.log10(at.loc[at["x"] == x, "value"]).mean() for x in (2, 4, 8)]
        assert means["x"].tolist() == [2, 4, 8]
        assert set(means["depth"]) == {3}
        assert means["value"].tolist() == pytest.approx(expected, rel=1e-12)
    shown = [row[0] for row in result_rows(table, ["base", "other"])]
    named = [f"log10 nc1_trace_ratio at L = 3, model.width = {x}" for x in (2, 4, 8)]
    assert shown == [
        "runs", "converged", *(f"slope nc1_trace_ratio at L = {depth}" for depth in (2, 3)), *named,
    ]  # fmt: skip


def test_parameters_that_differ_and_no_others():
    base = {
        "sweep": {"experiments": ["a"], "seeds": [0, 1]},
        "experiments": {"a": {"x": 1, "l": "ce"}, "b": {}},
    }
    other = {"sweep": {"experiments": ["a"], "seeds": [0]}, "experiments": {"a": {"x": 2, "l": "ce"}}}
    assert different_parameters({"base": base, "other": other}) == {
        "sweep.seeds": ["[0, 1]", "[0]"],
        "experiments.a.x": ["1", "2"],
    }
    other["experiments"]["a"]["new"] = None
    assert different_parameters({"base": base, "other": other})["experiments.a.new"] == ["-", "null"]


# The command, on files in place of DVC's revisions


@pytest.fixture
def files(monkeypatch):
    """By revision: the texts of params.yaml, points.csv and runs.csv, and of dvc.lock where there is one."""
    texts = {}
    monkeypatch.setattr("ncpipe.commands.compare.read_revision", lambda revision: [*texts[revision], ""][:4])
    return texts


def texts_of(value, names=("a",)):
    runs = grid(names).assign(loss_name="ce", last_bias=False)
    points, _ = results(value, runs)
    params = f"sweep: {{experiments: [{', '.join(names)}]}}\nslopes: {{seed: 0, level: 0.9}}\n"
    return [params, points.to_csv(index=False), runs.to_csv(index=False)]


def test_what_only_one_revision_has_is_one_line(files, capsys):
    files |= {"base": texts_of(noisy, ("a", "b")), "other": texts_of(steeper, ("c", "a"))}
    compare(["base", "other"], as_csv=False)
    out, err = capsys.readouterr()
    assert err.splitlines() == ["compare: left out b, not in other", "compare: left out c, not in base"]
    assert "90 % intervals" in out
    [slope] = [line for line in out.splitlines() if line.split()[:2] == ["slope", "nc1_trace_ratio"]]
    row = compared(Slopes(0, 0.9), base=results(noisy), other=results(steeper)).loc[("slope", "other")]
    width = (row["difference_high"] - row["difference_low"]) / 2
    places = 1 - math.floor(math.log10(width))  # two digits of the half-width
    assert places > 2
    ends = (f"{row[f'difference{end}']:.{places}f}" for end in ("_low", "_high"))
    shown = f"{row['difference']:+.{places}f} [{', '.join(ends)}]"
    assert "other − base" in out
    assert slope.split() == [*slope.split()[:-6], *shown.split(), "5", "of", "5"]
    compare(["base", "other"], as_csv=True)
    table = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert set(table["experiment"]) == {"a"}
    table = table[table["revision"] == "other"].set_index(["quantity", "series"])
    difference = table.loc[("slope", "nc1_trace_ratio"), "difference"]
    assert difference == pytest.approx(row["difference"], rel=1e-12)


def test_the_parameters_that_differ_come_first(files, capsys):
    """Red: a parameter that is left out."""
    files |= {"base": texts_of(noisy), "same": texts_of(noisy), "other": texts_of(steeper)}
    files["same"][0] += "convergence: {window: 0.2}\n"
    files["other"][0] = files["other"][0].replace("0.9", "0.8")
    for name, line in (("same", "convergence.window - 0.2"), ("other", "slopes.level 0.9 0.8")):
        compare(["base", name], as_csv=False)
        assert [" ".join(row.split()) for row in capsys.readouterr().out.splitlines()[:2]] == [
            f"parameter base {name}",
            line,
        ]


def lock_of(level, digest):
    return (
        "stages:\n  aggregate:\n    params:\n      params.yaml:\n"
        f"        slopes: {{seed: 0, level: {level}}}\n"
        f"    deps:\n    - {{path: data/code/sweep/aggregate.txt, md5: '{digest}'}}\n"
        "    - {path: data/grid, md5: b}\n"
    )


def test_tables_are_of_what_aggregate_ran_with():
    """Red: after `dvc repro code`, or a sweep that ended early, the old tables as those of a new rate."""
    stages = [
        f"  {name}:\n    params:\n      params.yaml:\n        experiments: {{x: {{rate: {rate}}}}}\n"
        "        sweep: {experiments: [x]}\n"
        for name, rate in (("code", 2), ("aggregate", 1))
    ]
    for rate, said in ((1, ""), (2, "experiments.x.rate")):
        params = {"sweep": {"experiments": ["x"]}, "experiments": {"x": {"rate": rate}}}
        assert changed_since(params, f"stages:\n{''.join(stages)}") == said


def test_results_of_other_parameters_or_code_are_said(files, capsys):
    """Red: an edit that nothing was run with, shown as a change without an effect; two rules as one."""
    files |= {"base": [*texts_of(noisy), lock_of(0.9, "0")], "edited": [*texts_of(noisy), lock_of(0.8, "0")]}
    files["older"] = [*texts_of(noisy), lock_of(0.9, "1")]
    lines = {
        "edited": "edited: DVC last ran with another slopes.level than its params.yaml has; run dvc repro",
        "older": "base and older chose and fitted their runs by different code",
    }
    for revision, line in lines.items():
        compare(["base", revision], as_csv=False)
        [said] = capsys.readouterr().err.splitlines()
        assert said.startswith(f"compare: {line}")


def test_what_cannot_be_compared_says_why(files):
    files |= {"base": texts_of(noisy), "other": texts_of(noisy, ("b",)), "bad": ["a: [", "", ""]}
    files["old"] = ["sweep: {}\n", *texts_of(noisy)[1:]]
    files["other columns"] = [files["base"][0], "a;b\n1;2\n", files["base"][2]]
    rule = "slopes: {seed: 0, level: 0.9}\n"
    files["flat"] = [f"sweep: 3\nexperiments: {{}}\n{rule}", *texts_of(noisy)[1:]]
    files["one"] = [f"sweep: {{experiments: a}}\nexperiments: {{}}\n{rule}", *texts_of(noisy)[1:]]
    files["torn"] = [files["base"][0], "", files["base"][2]]
    for revisions, message in (
        (["base", "other"], "have no experiment in common"),
        (["base", "base"], "a revision is given twice"),
        (["base", "bad"], r"bad: params\.yaml: not valid YAML"),
        (["old", "base"], r"old: params\.yaml: slopes"),
        (["base", "torn"], r"torn: data/results: damaged"),
        (["base", "other columns"], r"other columns: data/results: damaged \(no column experiment\)"),
        (["base", "flat"], r"flat: params\.yaml: sweep: not a mapping"),
        (["base", "one"], r"one: params\.yaml: sweep\.experiments: not a list of names"),
    ):
        with pytest.raises(InputError, match=message):
            compare(revisions, as_csv=False)
