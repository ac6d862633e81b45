"""Collect the values behind claims as points of a figure, with a panel for each `panel` of claims.yaml.

`ncpipe.figures.claim_panels` draws them.
"""

import contextlib
from collections.abc import Sequence

import pandas as pd

from ncpipe.claims.claim import RunClaim
from ncpipe.claims.evidence import NoNumberError, Points, Tables
from ncpipe.claims.verdicts import Judged

COLUMNS = ["panel", "kind", "series", "metric", "split", "xlabel", "x", "name", "seed", "value", "verdict"]

ONSET = " at "  # between a metric and the onset at which it is taken, in the name of a series


def panel_points(judged: Sequence[Judged], tables: Tables) -> pd.DataFrame:
    """Return one row for each value behind a claim with a panel, by claim, setting and seed.

    kind: the meaning of x: `number` (of `xlabel`), `metric` (another one, `xlabel`), `epoch`, `layer`, or
    `place` for experiments side by side; `slope` for the same of slopes on the layer.
    series: name of a line: `metric (split)`, `metric at onset` where a claim has `when`, or the experiment if
    x is a layer. verdict: of the claim. Rows that two claims share appear once.
    """
    parts = [pd.DataFrame(columns=COLUMNS)]
    for claim, _, verdict in judged:
        if isinstance(claim, RunClaim) and claim.panel:
            with contextlib.suppress(NoNumberError):
                rows = [_rows(points) for points in claim.points(tables)]
                parts += [part.assign(panel=claim.panel, verdict=verdict)[COLUMNS] for part in rows]
    table = pd.concat(parts[1:] or parts)
    return table.drop_duplicates([name for name in COLUMNS if name != "verdict"], ignore_index=True)


def _rows(points: Points) -> pd.DataFrame:
    """Return the selected rows of a table as rows of the panel."""
    side, table = points.side, points.table[points.table["selected"] & points.table["value"].notna()]
    return table.assign(
        kind=points.kind,
        series=(points.series or side.series) + (f"{ONSET}{side.when}" if side.when else ""),
        metric=side.metric,
        split=side.split,
        xlabel=points.label,
        x=table["at"],
    )
