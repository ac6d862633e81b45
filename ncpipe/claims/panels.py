"""Collect the values behind claims as points of a figure, with a panel for each `panel` of claims.yaml.

`ncpipe.figures.claim_panels` draws them.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from ncpipe.claims.evidence import numbers, with_along
from ncpipe.claims.ledger import Claim, Split
from ncpipe.claims.run_calls import Tables
from ncpipe.claims.verdicts import Judged
from ncpipe.metrics.catalogue import series_name
from ncpipe.tables.keys import symbol, x_column

COLUMNS = ["panel", "kind", "series", "metric", "split", "xlabel", "x", "name", "seed", "value", "verdict"]


def panel_points(judged: Sequence[Judged], tables: Tables) -> pd.DataFrame:
    """Return one row for each value behind a claim with a panel, by claim, setting and seed.

    kind: the meaning of x: `number` (of `xlabel`), `metric` (another one, `xlabel`), `epoch`, `layer`, or
    `place` for experiments side by side; `slope` for the same of slopes on the layer.
    series: name of a line: `metric (split)`, or the experiment if x is a layer. verdict: of the claim. Rows
    that two claims share appear once.
    """
    rows: list[dict[str, Any]] = []
    for claim, _, verdict in judged:
        if claim.panel:
            rows += [{"panel": claim.panel, "verdict": verdict} | row for row in _rows(claim, tables)]
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.drop_duplicates([name for name in COLUMNS if name != "verdict"], ignore_index=True)


def _rows(claim: Claim, tables: Tables) -> Iterator[dict[str, Any]]:
    if claim.call == "since_fit":
        yield from _by_epoch(claim, tables)
    elif claim.call == "layer_rise" or claim.layer:
        yield from _by_layer(claim, tables)
    elif claim.along:
        found = numbers(claim, tables)
        both = with_along(claim, found, tables) if isinstance(found, pd.DataFrame) else found
        if isinstance(both, pd.DataFrame):
            points = both.assign(at=both["value_along"], name="")
            yield from _points(points, "metric", claim.metric, claim.split, claim.along)
    elif claim.quantity in ("slope", "spearman"):
        found = numbers(claim, tables)
        if isinstance(found, pd.DataFrame):
            where, name = ("x", claim.x) if claim.over else (x_column(found), symbol(found))
            points = found.assign(at=found[where], name="")
            yield from _points(points, "number", claim.metric, claim.split, name)
    else:
        slope = claim.call == "layer_slope"
        for metric, split, experiment in _sides(claim):
            quantity = claim.quantity if claim.quantity == "computed" else "value"
            own = replace(claim, quantity=quantity, metric=metric, split=split, experiment=experiment)
            found = numbers(own, tables)
            if isinstance(found, pd.DataFrame):
                at_depth = found[found["depth"] == (claim.depth or found["depth"].max())]
                points = at_depth.assign(at=math.nan, name=experiment)
                yield from _points(points, "slope" if slope else "place", metric, split, "")


def _sides(claim: Claim) -> Iterator[tuple[str, Split, str]]:
    """Yield metric, split and experiment of each side of a claim."""
    if other := claim.versus:
        split = other.split or claim.split
        yield other.metric or claim.metric, split, other.experiment or claim.experiment
    yield claim.metric, claim.split, claim.experiment
    if claim.minus:
        yield claim.minus, claim.split, claim.experiment


def _points(table: pd.DataFrame, kind: str, metric: str, split: str, label: str) -> Iterator[dict[str, Any]]:
    """Yield the selected rows of a table with columns at, name, seed and value."""
    for row in table[table["selected"] & table["value"].notna()].itertuples():
        yield {
            "kind": kind,
            "series": metric if split == "train" else f"{metric} ({split})",
            "metric": metric,
            "split": split,
            "xlabel": label,
            "x": row.at,
            "name": row.name,
            "seed": row.seed,
            "value": row.value,
        }


def _by_epoch(claim: Claim, tables: Tables) -> Iterator[dict[str, Any]]:
    """Yield the metric through training and, as its own series, the first epochs without a train error."""
    own = tables.history[tables.history["experiment"] == claim.experiment]
    column = series_name(claim.split, claim.metric)
    if column not in own:
        return
    own = own[own[column].notna()].assign(selected=True, name="")
    points = own.assign(at=own["epoch"], value=own[column])
    yield from _points(points, "epoch", claim.metric, claim.split, "epoch")
    fitted = own[own["train_error"] == 0].groupby("seed", as_index=False)["epoch"].min()
    points = fitted.assign(at=fitted["epoch"], value=0.0, selected=True, name="")
    yield from _points(points, "epoch", "train_error", "train", "epoch")


def _by_layer(claim: Claim, tables: Tables) -> Iterator[dict[str, Any]]:
    for name in claim.over or (claim.experiment,):
        own = tables.layer_errors[tables.layer_errors["experiment"] == name]
        points = own.assign(at=own["position"], name="")
        for row in _points(points, "layer", claim.metric, claim.split, "layer"):
            yield row | {"series": name}
