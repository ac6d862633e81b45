"""Slopes and verdicts over each reasonable selection of runs, against fits by NumPy."""

import numpy as np
import pandas as pd
import pytest
from made_tables import grid, measure, noisy
from test_claims import METRIC, RULE, claim, tables_of

from ncpipe.claims.evidence import answer
from ncpipe.claims.selections import judge_by_selection
from ncpipe.claims.verdicts import judge, ledger_table
from ncpipe.tables.selections import ALL, selected_slopes, selections


def moving(moved):
    """Runs of one experiment; `moved` gives how much a run's loss moved at the end; above 1 % it is out."""
    runs = grid()
    movement = [moved(depth, seed) for depth, seed in zip(runs["depth"], runs["seed"], strict=True)]
    out = np.array(movement) > 0.01
    return runs.assign(
        loss_moved=movement, converged=~out, selected=~out, reason=np.where(out, "loss moving", "")
    )


def judged(runs, value, **keys):
    tables = tables_of(runs, measure(runs, value))
    own = [judge(found, answer(found, tables, RULE)) for found in [claim(**keys)]]
    return judge_by_selection(own, tables, RULE)[0]


def test_selections_are_nested_and_leave_out_runs_without_a_fit():
    runs = moving(lambda depth, seed: 0.004 + 0.006 * seed)
    runs.loc[0, ["reason", "loss_moved", "converged", "selected"]] = ["train error", 0.0, False, False]
    runs.loc[1, ["reason", "loss_moved", "converged", "selected"]] = ["diverged", np.nan, False, False]
    counts = {name: int(counted.sum()) for name, counted in selections(runs).items()}
    assert counts == {ALL: 13, "moved <= 0.5 %": 4, "moved <= 1 %": 8, "moved <= 2 %": 13}


def test_slopes_are_those_of_polyfit_over_the_selected_runs():
    runs = moving(lambda depth, seed: 0.004 + 0.006 * seed)
    table = selected_slopes(measure(runs, noisy), runs, RULE).set_index("selection")
    for name, counted in selections(runs).items():
        own = runs[counted]
        y = np.log10([noisy(depth, seed) for depth, seed in zip(own["depth"], own["seed"], strict=True)])
        assert table.loc[name, "slope"] == pytest.approx(np.polyfit(np.log10(own["depth"]), y, 1)[0])
        assert table.loc[name, "n_used"] == len(own)


def test_a_verdict_that_depends_on_the_selection_is_undecided():
    """Deep runs still move and are the less collapsed. Red: `agrees`, by runs chosen on their outcome."""
    runs = moving(lambda depth, seed: 0.015 if depth == 13 and seed else 0.001)
    found = judged(runs, lambda depth, seed: noisy(depth, seed) * (100 if depth == 13 and seed else 1))
    assert found.verdict == "undecided"
    [row] = ledger_table([found]).to_dict("records")
    assert row["reason"].startswith("depends on which runs count (undecided: all that fit, moved <= 2 %; ")
    assert "agrees: moved <= 0.5 %, moved <= 1 %" in row["reason"]


def test_a_verdict_that_holds_in_every_selection_stays():
    """Selections with fewer than half of the runs decide nothing. Red: `undecided` for want of runs."""
    for moved in (lambda depth, seed: 0.001, lambda depth, seed: 0.006 if seed else 0.004):
        found = judged(moving(moved), noisy)
        assert (found.verdict, found.number.depends) == ("agrees", "")


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


def test_runs_of_a_papers_own_stage_have_no_selections():
    runs = grid()
    tables = tables_of(runs, measure(runs, noisy))
    own = [judge(found, answer(found, tables, RULE)) for found in [claim()]]
    assert judge_by_selection(own, tables, RULE) == own
    assert not pd.isna(own[0].number.value)
