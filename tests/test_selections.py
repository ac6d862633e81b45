"""Slopes and verdicts over each reasonable selection of runs, against fits by NumPy."""

import numpy as np
import pandas as pd
import pytest
from made_tables import grid, measure, noisy
from test_claims import METRIC, RULE, claim, tables_of

from ncpipe.claims.selections import judge_by_selection
from ncpipe.claims.verdicts import answer, judge, ledger_table
from ncpipe.tables.selections import ALL, selected_slopes, selections


def moving(moved, seeds=range(3)):
    """Runs of one experiment; `moved` gives how much a run's loss moved at the end; above 1 % it is out."""
    runs = grid(seeds=seeds)
    movement = [moved(depth, seed) for depth, seed in zip(runs["depth"], runs["seed"], strict=True)]
    out = np.array(movement) > 0.01
    return runs.assign(
        loss_moved=movement, converged=~out, selected=~out, reason=np.where(out, "loss moving", "")
    )


def judged(runs, value, **keys):
    tables = tables_of(runs, measure(runs, value))
    own = [judge(found, answer(found, tables)) for found in [claim(**keys)]]
    return judge_by_selection(own, tables)[0]


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
        own = runs[counted]
        y = np.log10([noisy(depth, seed) for depth, seed in zip(own["depth"], own["seed"], strict=True)])
        assert table.loc[name, "slope"] == pytest.approx(np.polyfit(np.log10(own["depth"]), y, 1)[0])
        assert table.loc[name, "n_used"] == len(own)


def worse(depth, seed):
    """The last two of four seeds collapse less, the more so the deeper."""
    return noisy(depth, seed) * (depth**2 if seed > 1 else 1)


def test_a_verdict_that_depends_on_the_selection_is_undecided():
    """Runs that still move are the less collapsed. Red: `agrees`, by runs chosen on their outcome."""
    runs = moving(lambda depth, seed: 0.015 if seed > 1 else 0.001, seeds=range(4)).assign(selected=True)
    found = judged(runs, worse)
    assert found.verdict == "undecided"
    [row] = ledger_table([found]).to_dict("records")
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
    found = judged(runs.assign(selected=True), noisy)
    assert found.verdict == verdict
    settled = (
        f"too few runs had settled (moved <= 2 %: fewer than 2 runs have a number that is used at {why})"
    )
    assert found.number.depends == (settled if why else "")


def test_every_kind_of_claim_is_asked_under_each_selection():
    runs = moving(lambda depth, seed: 0.015 if seed == 2 else 0.001)
    strange = lambda depth, seed: noisy(depth, seed) * (1e3 if seed == 2 else 1)  # noqa: E731
    for keys in (
        {"quantity": "value", "expect": {"below": 1}},
        {
            "quantity": "difference",
            "of": "log10",
            "expect": {"below": 0},
            "depth": 13,
            "versus": {"depth": 2},
        },
    ):
        assert judged(runs, strange, **keys).verdict == "undecided"
    least = judged(runs, strange, quantity="minimum", expect={"at_least": 0}, metric=METRIC)
    assert least.verdict == "agrees"


def test_a_metric_that_only_stands_beside_another_is_selected_too():
    """Red: "tcv was not measured" under every selection, so that no verdict stood."""
    runs = moving(lambda depth, seed: 0.001)
    tables = tables_of(runs, measure(runs, noisy), measure(runs, noisy, "tcv"))
    asked = claim("spearman", {"above": 0}, along="tcv")
    (found,) = judge_by_selection([judge(asked, answer(asked, tables))], tables)
    assert (found.verdict, found.number.depends) == ("agrees", "")


def test_runs_of_a_papers_own_stage_have_no_selections():
    runs = grid()
    tables = tables_of(runs, measure(runs, noisy))
    own = [judge(found, answer(found, tables)) for found in [claim()]]
    assert judge_by_selection(own, tables) == own
    assert not pd.isna(own[0].number.value)
