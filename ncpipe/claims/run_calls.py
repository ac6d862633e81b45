"""Compute numbers of runs for claims with `quantity: computed`, which call these functions by name.

A function takes the claim, the tables and the claim's `args`. It returns one exact number, or a table with
the keys of runs and the column value, of which `ncpipe.claims.evidence` takes the mean.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ncpipe.claims.calls import Calls, check_calls, with_own
from ncpipe.claims.ledger import Claim
from ncpipe.config.bounds import Fraction, Number
from ncpipe.metrics.catalogue import series_name
from ncpipe.tables.keys import rows_at, run_keys
from ncpipe.tables.points import LAST
from ncpipe.tables.stage_tables import stage_table


@dataclass(frozen=True)
class Tables:
    """Holds the tables that `aggregate` writes; `stage` has those of the study's own stages."""

    points: pd.DataFrame
    runs: pd.DataFrame
    slopes: pd.DataFrame
    slopes_leave_out: pd.DataFrame
    separation: pd.DataFrame
    effective_depth: pd.DataFrame
    layer_errors: pd.DataFrame
    history: pd.DataFrame

    def stage(self, name: str, table: str | None = None) -> pd.DataFrame:
        """Return a table of a stage of the study, by default the one that is named as the stage."""
        return stage_table(name, table)


def rows_of(claim: Claim, table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the claim's experiment, at its depth and value where it names them."""
    keys = {"experiment": claim.experiment, "depth": claim.depth, "x": claim.value}
    return rows_at(table, {key: value for key, value in keys.items() if value is not None})


def of_metric(claim: Claim, table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the claim's metric and split, at the last layer."""
    layer = {"layer": LAST} if "layer" in table else {}
    return rows_at(table, {"metric": claim.metric, "split": claim.split} | layer)


def since_fit(claim: Claim, tables: Tables) -> pd.DataFrame:
    """Return log10 metric at the last epoch of `history.at` less that at the first one without a train error.

    Runs without one have no row.
    """
    own = rows_of(claim, tables.history)
    column, keys = series_name(claim.split, claim.metric), run_keys(own)
    if column not in own:
        return own[keys].assign(value=math.nan).iloc[:0]
    kept = own[(own[column] > 0) & (own["train_error"] == 0)].sort_values("epoch")
    ends = np.log10(kept.set_index(keys)[column]).groupby(keys)
    return (ends.last() - ends.first()).rename("value").reset_index()


def layer_slope(claim: Claim, tables: Tables) -> pd.DataFrame:
    """Return the slope of log10 metric on the layer (separation.csv)."""
    return of_metric(claim, tables.separation).rename(columns={"slope": "value"})


def layer_rise(claim: Claim, tables: Tables) -> pd.DataFrame:
    """Return the largest rise of the train `ncc_error` from one layer to the next."""
    own = rows_of(claim, tables.layer_errors).sort_values("position")
    groups = own.groupby(run_keys(own))["value"]
    return groups.agg(lambda errors: float(np.diff(errors).max())).reset_index()


def depth_bound(claim: Claim, tables: Tables, over: dict[str, Number], alpha: Fraction) -> pd.DataFrame:
    """Return an error (the metric) less an estimate of its bound by effective depths [K23 eq. 53].

    The estimate is the least over p of (1 + alpha) p, plus 1 where the mean effective depth of the experiment
    is no less than the least of the runs with the share p of random labels in the second half of their data.
    over: experiments on twice the samples, each with its p.
    """
    own = rows_of(claim, tables.runs)
    depth = claim.depth or own["depth"].max()
    deep = tables.effective_depth[tables.effective_depth["depth"] == depth]
    depths = deep.groupby("experiment")["effective_depth"]
    means, least = depths.mean(), depths.min()
    bounds = [
        (1 + alpha) * share + float(means[claim.experiment] >= least[name])
        for name, share in over.items()
        if name in least and claim.experiment in means
    ]
    own = own[own["depth"] == depth] if bounds and claim.metric in own else own.iloc[:0]
    return own.assign(value=own.get(claim.metric, math.nan) - min(bounds, default=math.nan))


RUN_CALLS = {function.__name__: (function,) for function in (since_fit, layer_slope, layer_rise, depth_bound)}


def run_calls() -> Calls:
    """Return the calls of this module and those of the study."""
    return with_own(RUN_CALLS)


def check_run_calls(claims: Iterable[Claim]) -> None:
    """Raise InputError with one line per mistake in the calls of claims with `quantity: computed`."""
    check_calls([claim for claim in claims if claim.quantity == "computed"], run_calls())
