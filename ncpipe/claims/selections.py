"""Judge claims about runs under every reasonable selection of runs: a verdict must not depend on it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ncpipe.claims.claim import ABSENT, RunClaim
from ncpipe.claims.evidence import Tables
from ncpipe.claims.verdicts import Judged, answer, judge
from ncpipe.tables.keys import run_keys
from ncpipe.tables.points import usable_points
from ncpipe.tables.selections import ADDED, ALL, selections


def judge_by_selection(judged: Sequence[Judged], tables: Tables) -> list[Judged]:
    """Return the claims again; those whose verdict another selection changes are undecided and say why.

    A selection that leaves too few runs of a setting decides nothing. A verdict that no selection of settled
    runs confirms is undecided too. Claims about the extremes of all runs, identities and claims without runs
    do not depend on a selection.
    """
    claims = [claim for claim, _, _ in judged if isinstance(claim, RunClaim) and claim.depends_on_selection]
    if not claims or "loss_moved" not in tables.runs:  # runs of a paper's own stage
        return list(judged)
    by_selection = tables_by_selection(tables)
    return [_judge(judgement, by_selection) for judgement in judged]


def _judge(judgement: Judged, by_selection: Mapping[str, Tables]) -> Judged:
    claim, number, verdict = judgement
    if not isinstance(claim, RunClaim) or not claim.depends_on_selection or claim.identity:
        return judgement
    if verdict == ABSENT:
        return judgement
    results = {name: judge(claim, answer(claim, tables)) for name, tables in by_selection.items()}
    selections_by_verdict: dict[str, list[str]] = {}
    for name, result in results.items():
        if result.verdict != ABSENT and not result.number.few:
            selections_by_verdict.setdefault(result.verdict, []).append(name)
    settled = [name for name in results if name != ALL]
    deciding = [name for names in selections_by_verdict.values() for name in names]
    if verdict != "undecided" and set(deciding).isdisjoint(settled):
        last = results[settled[-1]].number
        why = f"too few runs had settled ({settled[-1]}: {last.missing or last.few})"
    elif selections_by_verdict.keys() <= {verdict}:
        return judgement
    else:
        verdicts = "; ".join(f"{text}: {', '.join(names)}" for text, names in selections_by_verdict.items())
        why = f"depends on which runs count ({verdicts})"
    return Judged(claim, number._replace(depends=why), "undecided")


def tables_by_selection(tables: Tables) -> dict[str, Tables]:
    """Return the tables under each selection."""
    by_selection = {}
    points = tables.points.drop(columns=ADDED)
    keys = run_keys(tables.runs)
    for name, selected in selections(tables.runs).items():
        runs = tables.runs.assign(selected=selected)
        errors = tables.layer_errors.drop(columns="selected").merge(runs[[*keys, "selected"]], on=keys)
        by_selection[name] = replace(
            tables,
            runs=runs,
            points=usable_points(points, runs),
            layer_errors=errors,
        )
    return by_selection
