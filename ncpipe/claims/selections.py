"""Judge claims about runs under every reasonable selection of runs: a verdict must not depend on it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ncpipe.claims.evidence import answer
from ncpipe.claims.ledger import EXTREMES, Claim
from ncpipe.claims.run_calls import Tables
from ncpipe.claims.verdicts import ABSENT, Judged, judge
from ncpipe.config.params import Slopes
from ncpipe.tables.keys import run_keys
from ncpipe.tables.selections import ALL, select_points, selections
from ncpipe.tables.slopes import leave_out_slopes, loglog_slopes


def judge_by_selection(judged: Sequence[Judged], tables: Tables, rule: Slopes) -> list[Judged]:
    """Return the claims again; those whose verdict another selection changes are undecided and say why.

    A selection that leaves too few runs of a setting decides nothing. A verdict that no selection of settled
    runs confirms is undecided too. Claims about the extremes of all runs, identities and claims without runs
    do not depend on a selection.
    """
    asked = [claim for claim, _, _ in judged if _depends_on_runs(claim)]
    if not asked or "loss_moved" not in tables.runs:  # runs of a paper's own stage
        return list(judged)
    others = tables_by_selection(tables, rule, {claim.metric for claim in asked})
    return [_judge(own, others, rule) if _depends_on_runs(own.claim) else own for own in judged]


def _depends_on_runs(claim: Claim) -> bool:
    return claim.of_runs and claim.quantity not in EXTREMES and not claim.identity


def _judge(own: Judged, others: Mapping[str, Tables], rule: Slopes) -> Judged:
    if own.verdict == ABSENT:
        return own
    found = {name: judge(own.claim, answer(own.claim, tables, rule)) for name, tables in others.items()}
    counted = {name: each for name, each in found.items() if each.verdict != ABSENT and not each.number.few}
    groups: dict[str, list[str]] = {}
    for name, each in counted.items():
        groups.setdefault(each.verdict, []).append(name)
    settled = [name for name in found if name != ALL]
    if own.verdict != "undecided" and counted.keys().isdisjoint(settled):
        last = found[settled[-1]].number
        why = f"too few runs had settled ({settled[-1]}: {last.missing or last.few})"
    elif set(groups) <= {own.verdict}:
        return own
    else:
        told = "; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in groups.items())
        why = f"depends on which runs count ({told})"
    return Judged(own.claim, own.number._replace(depends=why), "undecided")


def tables_by_selection(tables: Tables, rule: Slopes, metrics: set[str]) -> dict[str, Tables]:
    """Return the tables under each selection, their points and slopes of the given metrics alone."""
    found = {}
    own = tables.points[tables.points["metric"].isin(metrics)]
    measured = own[[*run_keys(tables.runs), "layer", "split", "metric", "value"]]
    for name, selected in selections(tables.runs).items():
        runs = tables.runs.assign(selected=selected)
        keys = run_keys(runs)
        errors = tables.layer_errors.drop(columns="selected").merge(runs[[*keys, "selected"]], on=keys)
        found[name] = replace(
            tables,
            runs=runs,
            points=select_points(own, runs, selected),
            slopes=loglog_slopes(measured, runs, rule),
            slopes_leave_out=leave_out_slopes(measured, runs, rule),
            layer_errors=errors,
        )
    return found
