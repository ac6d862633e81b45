"""Judge claims about runs under every reasonable selection of runs: a verdict must not depend on it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ncpipe.claims.claim import ABSENT, RunClaim
from ncpipe.claims.evidence import Tables
from ncpipe.claims.verdicts import Judged, answer, judge
from ncpipe.tables.keys import run_keys
from ncpipe.tables.selections import ALL, select_points, selections
from ncpipe.tables.slopes import leave_out_slopes, loglog_slopes


def judge_by_selection(judged: Sequence[Judged], tables: Tables) -> list[Judged]:
    """Return the claims again; those whose verdict another selection changes are undecided and say why.

    A selection that leaves too few runs of a setting decides nothing. A verdict that no selection of settled
    runs confirms is undecided too. Claims about the extremes of all runs, identities and claims without runs
    do not depend on a selection.
    """
    claims = [claim for claim, _, _ in judged if isinstance(claim, RunClaim) and claim.depends_on_selection]
    if not claims or "loss_moved" not in tables.runs:  # runs of a paper's own stage
        return list(judged)
    others = tables_by_selection(tables, {side.metric for claim in claims for side in claim.sides()})
    return [_judge(own, others) for own in judged]


def _judge(own: Judged, others: Mapping[str, Tables]) -> Judged:
    claim = own.claim
    if not isinstance(claim, RunClaim) or not claim.depends_on_selection or claim.identity:
        return own
    if own.verdict == ABSENT:
        return own
    found = {name: judge(claim, answer(claim, tables)) for name, tables in others.items()}
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
    return Judged(claim, own.number._replace(depends=why), "undecided")


def tables_by_selection(tables: Tables, metrics: set[str]) -> dict[str, Tables]:
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
            slopes=loglog_slopes(measured, runs, tables.rule),
            slopes_leave_out=leave_out_slopes(measured, runs, tables.rule),
            layer_errors=errors,
        )
    return found
