"""Run the stage claims: compare the claims of claims.yaml with this sweep's numbers (`ncpipe.claims`)."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ncpipe.claims.claim import RunClaim
from ncpipe.claims.evidence import Tables
from ncpipe.claims.ledger import load_claims
from ncpipe.claims.panels import panel_points
from ncpipe.claims.quantities import check_calls
from ncpipe.claims.selections import judge_by_selection
from ncpipe.claims.verdicts import Judged, answer, counts, judge, ledger_page, ledger_table, line
from ncpipe.config.params import load_params
from ncpipe.config.study import Study, load_study, study_errors
from ncpipe.system.artifacts import (
    CLAIMS,
    CLAIMS_FILE,
    CLAIMS_PAGE,
    CLAIMS_POINTS,
    CLAIMS_TABLE,
    RESULTS,
    publish_folder,
)
from ncpipe.system.console import say
from ncpipe.system.errors import InputError
from ncpipe.tables.files import read_table
from ncpipe.tables.stage_tables import stage_table


def claims() -> None:
    """Compare the claims of claims.yaml with this sweep's numbers; write data/claims.

    These are claims.csv and claims.md. Claims with a panel are also drawn in panels.png and panels.svg, from
    panels.csv. If a claim that is a proven identity does not hold, raises InputError after everything is
    written.
    """
    study, ledger = load_study(Path()), load_claims()
    check_calls(ledger, study.calls)
    theories = [claim for claim in ledger if not isinstance(claim, RunClaim)]
    if theories:
        from ncpipe.training.device import fix_sums

        fix_sums(1)  # the matrices are small, so threads would wait for each other
    tables = _tables(study) if len(ledger) > len(theories) else None
    with study_errors():
        judged = [judge(claim, answer(claim, tables)) for claim in ledger]
        if tables is not None:
            judged = judge_by_selection(judged, tables)
    with publish_folder(CLAIMS) as folder:
        ledger_table(judged).to_csv(folder / CLAIMS_TABLE, index=False, lineterminator="\n")
        (folder / CLAIMS_PAGE).write_text(ledger_page(judged), encoding="utf-8")
        if tables is not None:
            _draw(judged, tables, folder)
    say(f"{counts(judged)}; see {CLAIMS / CLAIMS_PAGE}")
    for result in judged:
        if result.verdict == "disagrees":
            say(line(result))
    if failed := [claim.id for claim, _, verdict in judged if claim.identity and verdict == "disagrees"]:
        raise InputError(
            f"{CLAIMS_FILE}: {', '.join(failed)}: a proven identity does not hold, so the code that computes "
            f"it is wrong; see {CLAIMS / CLAIMS_PAGE}"
        )


def _tables(study: Study) -> Tables:
    """Return the tables of the sweep, with the runs of a stage of the study if it has `claimed` ones."""
    names = [field.name for field in dataclasses.fields(Tables) if field.name != "rule"]
    tables = {name: read_table(RESULTS / f"{name}.csv", "aggregate") for name in names}
    for name, stage in study.stages.items():
        if stage.claimed:
            tables["runs"] = stage_table(name, "claimed")
    return Tables(**tables, rule=load_params().slopes)


def _draw(judged: Sequence[Judged], tables: Tables, folder: Path) -> None:
    """Write panels.csv, panels.png and panels.svg, if any claim names a panel."""
    panels = [(claim.panel, verdict) for claim, _, verdict in judged if isinstance(claim, RunClaim)]
    points = panel_points(judged, tables)
    if points.empty:
        return
    from ncpipe.figures.claim_panels import claim_panels, verdict_lines  # takes a second to import
    from ncpipe.figures.save import save_figure

    points.to_csv(folder / CLAIMS_POINTS, index=False, lineterminator="\n")
    scales = {claim.scale for claim, _, _ in judged if getattr(claim, "panel", "") and claim.scale}
    figure = claim_panels(points, verdict_lines(panels), scale="; ".join(sorted(scales)))
    save_figure(figure, folder, "panels")
