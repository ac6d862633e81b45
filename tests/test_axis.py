"""A study that varies one more key than depth: its runs and its tables; test_new.py has its pipeline."""

import csv
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import experiment_tree, params_tree, refused_by, write_params
from dvc.parsing.interpolate import to_str
from dvc.utils.serialize._yaml import loads_yaml
from figure_cases import by_axis
from hypothesis import given
from hypothesis import strategies as st
from made_tables import grid, measure, noisy
from scipy import stats

from ncpipe.commands.grid import write_grid
from ncpipe.config.params import Slopes, load_params, parse_params
from ncpipe.config.run import Run
from ncpipe.config.yaml_file import parse_number
from ncpipe.runs.grid import read_grid
from ncpipe.system.errors import InputError
from ncpipe.tables.points import usable_points
from ncpipe.tables.ranks import PERMUTATIONS, rank_correlation
from ncpipe.tables.rates import rate_table
from ncpipe.tables.results import depth_series, dvc_metrics
from ncpipe.tables.slopes import leave_out_slopes, loglog_slopes
from ncpipe.tables.summary import summarise

RULE = Slopes(seed=0, level=0.95)


def tree(axis: Any = "penalty.value", values: Any = (0.1, 1e-3), **changes: Any) -> dict[str, Any]:
    whole = params_tree([3, 2], [1, 0], one=experiment_tree(epochs=100, **changes))
    whole["sweep"] |= {"axis": axis, "values": list(values)}
    whole["convergence"]["window"] = 0.1
    return whole


# Runs


def test_runs_are_depth_by_value_by_seed() -> None:
    runs = parse_params(tree()).grid()
    assert [(run.depth, run.value, run.seed) for run in runs] == [
        (depth, value, seed) for depth in (2, 3) for value in (1e-3, 0.1) for seed in (0, 1)
    ]
    assert {run.value: run.spec.penalty.value for run in runs} == {1e-3: 1e-3, 0.1: 0.1}
    run = runs[0]
    assert run.name == "one L=2 penalty.value=0.001 seed=0"
    assert (run.path, run.data) == (Path("one/L2/x0.001/s0"), Path("one/x0.001"))


def test_a_value_is_written_as_in_the_sweep() -> None:
    """Red: the path x1.0 of a run whose data are below x1."""
    run = parse_params(tree(values=[1, 0.5])).run("one", 2, 0, 1.0)
    assert (str(run.value), run.path.as_posix()) == ("1", "one/L2/x1/s0")
    assert parse_params(tree(values=[1, 0.5])).run("one", 2, 0, 2.0).path.as_posix() == "one/L2/x2.0/s0"


def test_a_value_is_all_that_it_changes() -> None:
    """It is checked as its key is: a whole number becomes one with a point where the key takes such."""
    plain = tree(values=[1])
    del plain["sweep"]["axis"], plain["sweep"]["values"]
    plain["experiments"]["one"]["penalty"]["value"] = 1.0
    (varied, *_), (written, *_) = parse_params(tree(values=[1])).grid(), parse_params(plain).grid()
    assert repr(varied.spec) == repr(written.spec)
    assert written == Run("one", 2, 0, written.spec)


@pytest.mark.parametrize(
    ("axis", "values", "lines"),
    [
        ("penalty.valu", [1, 2], ["sweep.axis: experiments.one.penalty.valu: unknown key; did you mean 'va"]),
        ("penalty.value", [], ["sweep.values: empty"]),
        (None, [1], ["sweep: values without an axis"]),
        ("penalty.value", [1, 1.0], ["sweep.values: 1 is listed twice"]),
        ("penalty.value", [-1, 2, -3], ["sweep.values: experiments.one.penalty.value: -1 is out of range",
                                        "sweep.values: experiments.one.penalty.value: -3 is out of range"]),
        ("model.width", [4.5], ["sweep.values: experiments.one.model.width: expected a whole number"]),
        ("penalty.value", [True, "x", math.inf], ["sweep.values[0]: expected a number, got true or false",
                                                  "sweep.values[1]: expected a number, got text ('x')",
                                                  "sweep.values[2]: inf is out of range; it must be finite"]),
        ("penalty", [1], ["sweep.values: experiments.one.penalty: expected keys with values"]),
        ("loss.name", [1], ["sweep.values: experiments.one.loss.name: 1 is unknown"]),
        ("model.mlp_width", [4], ["sweep.axis: experiments.one.model: mlp_width does not apply"]),
        ("epochs", [20], ["experiments.one.log_every: 5 is too coarse"]),
        (["epochs"], [20], ["sweep.axis: expected text, got a list"]),
    ],
)  # fmt: skip
def test_mistakes_are_named(axis: Any, values: list[Any], lines: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        parse_params(tree(axis, values))
    said = str(caught.value).splitlines()
    assert len(said) == len(lines), said
    assert all(line.startswith(start) for line, start in zip(said, lines, strict=True)), said


def test_what_is_wrong_in_every_experiment_is_said_of_the_first() -> None:
    """Red: a line for each of 31 experiments."""
    both = tree("penalty.valu", [1, 2])
    both["experiments"]["two"] = both["experiments"]["one"]
    both["sweep"]["experiments"] = ["two", "one"]
    message = refused_by(parse_params, both)
    assert message.startswith("sweep.axis: experiments.two.penalty.valu: unknown key")


def test_a_value_is_asked_for_where_there_is_an_axis_and_only_there() -> None:
    with pytest.raises(InputError, match=r"sweep\.axis is penalty\.value: name one of its values, --value"):
        parse_params(tree()).run("one", 2, 0)
    plain = tree()
    del plain["sweep"]["axis"], plain["sweep"]["values"]
    with pytest.raises(InputError, match=r"value 3: sweep\.axis of params\.yaml names no key"):
        parse_params(plain).run("one", 2, 0, 3)
    with pytest.raises(InputError, match=r"penalty\.value: -1 is out of range"):
        parse_params(tree()).run("one", 2, 0, -1)


@given(st.one_of(st.integers(-(10**20), 10**20), st.floats(allow_nan=False, allow_infinity=False)))
def test_a_value_is_written_as_dvc_writes_it(value: float) -> None:
    """In folders, stage names and arguments: DVC's item of a matrix and ncpipe's are one text."""
    text = f"{value!r}" if isinstance(value, int) else f"{value:e}"
    written = to_str(loads_yaml(f"a: {text}")["a"])
    assert written == str(parse_number(text))
    assert str(parse_number(written)) == written


@pytest.mark.parametrize("text", ["", "x", "0x", "true", "~", ".inf", ".nan", "[1]", "2020-01-01", "1 2"])
def test_what_is_no_value(text: str) -> None:
    with pytest.raises(InputError):
        parse_number(text)


def test_the_grid_names_the_axis_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_params([2, 3], [0, 1], one=experiment_tree(epochs=100))
    text = Path("params.yaml").read_text()
    write_grid()
    assert Path("data/grid/one.csv").read_text() == "depth,seed\n2,0\n2,1\n3,0\n3,1\n"
    Path("params.yaml").write_text(text.replace("sweep:", "sweep:\n  axis: data.noise\n  values: [0.5, 1]"))
    params = load_params()
    with pytest.raises(InputError, match=r"one\.csv: damaged; run ncpipe grid"):
        read_grid(params, "one")
    write_grid()
    with Path("data/grid/one.csv").open() as file:
        assert next(csv.reader(file)) == ["depth", "data.noise", "seed"]
    assert read_grid(params, "one") == list(params.grid())


# Tables: x plays the part of depth


def both(shift: float = 0.0) -> tuple[Any, Any]:
    runs = grid(("b", "a"))
    table = measure(runs, noisy)
    return (table, runs), (by_axis(table, shift=shift), by_axis(runs, shift=shift))


def test_means_and_slopes_against_x_are_those_against_depth() -> None:
    """Depth in x's place gives the same numbers."""
    plain, varied = both()
    for table, axis in (
        (summarise(*plain), summarise(*varied)),
        (usable_points(*plain), usable_points(*varied)),
    ):
        renamed = by_axis(table)
        pd.testing.assert_frame_equal(axis[renamed.columns], renamed, check_dtype=False)
    slopes, by_x = loglog_slopes(*plain, RULE), loglog_slopes(*varied, RULE)
    assert by_x[["experiment", "depth", "axis"]].values.tolist() == [
        ["b", 6, "data.noise"],
        ["a", 6, "data.noise"],
    ]
    same = ["slope", "intercept", "p_value", "n_used", "n_depths", "n_runs", "n_converged"]
    pd.testing.assert_frame_equal(by_x[same], slopes[same])
    assert np.allclose(by_x[["low", "high"]], slopes[["low", "high"]], atol=0.02)
    assert by_x["rho"].isna().all()
    assert leave_out_slopes(*varied, RULE).empty


def test_each_depth_is_a_line_of_its_own() -> None:
    """Networks of two depths whose metrics go as x^-0.4 and as x^0.3 do not enter one fit."""
    runs = grid(("a",))
    parts = [(by_axis(runs, depth), by_axis(measure(runs, value), depth))
             for depth, value in ((2, lambda x, _: x**-0.4), (8, lambda x, _: x**0.3))]  # fmt: skip
    whole, table = (pd.concat(tables, ignore_index=True) for tables in zip(*parts, strict=True))
    slopes = loglog_slopes(table, whole, RULE)
    assert dict(zip(slopes["depth"], slopes["slope"].round(12), strict=True)) == {2: -0.4, 8: 0.3}
    assert list(depth_series(summarise(table, whole))) == ["a-L2", "a-L8"]
    shown = dvc_metrics(summarise(table, whole), slopes, whole, {"a": {("nc1_trace_ratio", "train")}})
    assert {name: round(values["slope_nc1_trace_ratio"], 12) for name, values in shown.items()} == {
        "a-L2": -0.4,
        "a-L8": 0.3,
    }


def test_where_x_has_no_logarithm_ranks_take_the_place_of_a_power() -> None:
    """x = 0 among the values: Spearman's rho of the runs, against scipy's."""
    _, (table, runs) = both(shift=2)
    slopes = loglog_slopes(table, runs, RULE)
    rows = table[table["experiment"] == "a"]
    assert slopes["slope"].isna().all()
    assert not slopes["rejected"].any()
    row = slopes[slopes["experiment"] == "a"].iloc[0]
    assert row["rho"] == pytest.approx(stats.spearmanr(rows["x"], rows["value"]).statistic, abs=1e-12)
    assert row["rho_p_value"] == 1 / (PERMUTATIONS + 1)  # no assignment does as well
    assert (row["n_used"], row["n_depths"], row["level"]) == (15, 5, 0.95)


def test_ranks_do_not_depend_on_scale_and_know_their_ends() -> None:
    x = np.array([0.0, 1.0, 2.0])
    rising = [np.array([0.0]), np.array([1.0]), np.array([5.0])]
    assert rank_correlation(x, rising, "s", RULE)[0] == pytest.approx(1)
    assert np.isnan(rank_correlation(x[:1], rising[:1], "s", RULE)).all()
    assert np.isnan(rank_correlation(x, [np.ones(2)] * 3, "s", RULE)).all()  # all values are equal
    groups = [np.array([0.1, 0.3]), np.array([0.2, 0.5]), np.array([0.4, 0.45])]
    assert rank_correlation(x, groups, "s", RULE) == rank_correlation(x**3, groups, "s", RULE)
    mirrored = rank_correlation(-x[::-1], groups[::-1], "s", RULE)
    assert mirrored[0] == pytest.approx(-rank_correlation(x, groups, "s", RULE)[0])


@pytest.mark.parametrize("values", [[1, 3, 2, 6, 4, 5], [1, 1, 2, 2, 2, 3], [3, 1, 2, 1, 3, 2]])
def test_the_p_value_is_the_share_of_all_orders_that_do_as_well(values: list[int]) -> None:
    """Against SciPy's rank correlation of all 720 orders, with ties too. Red: one side alone."""
    x = np.array([0.0, 1.0, 2.0])
    where = np.repeat(x, 2)
    observed = abs(stats.spearmanr(where, values).statistic)
    orders = [abs(stats.spearmanr(where, order).statistic) for order in itertools.permutations(values)]
    groups = list(np.array(values, dtype=float).reshape(3, 2))
    exact = np.mean(np.array(orders) >= observed - 1e-9)
    assert rank_correlation(x, groups, "s", RULE)[1] == pytest.approx(exact, abs=0.015)


@pytest.mark.parametrize(("shift", "said"), [(0, "data.noise^-0.4"), (2, "rank correlation -0.9")])
def test_rates_name_the_key(shift: float, said: str) -> None:
    _, (table, runs) = both(shift)
    runs = runs.assign(loss_name="ce", last_bias=False, loss_gap=math.nan)
    slopes, fewer = (fit(table, runs, RULE) for fit in (loglog_slopes, leave_out_slopes))
    rows = rate_table(slopes, fewer, runs, slopes).to_numpy().tolist()
    (rate,) = (row[3] for row in rows if row[:3] == ["a at L = 6", "NC1", "improves"])
    assert rate.startswith(said)
