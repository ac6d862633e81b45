"""Compute numbers of runs for claims with `quantity: computed`, which call these functions by name.

A function takes the claim, the tables and the claim's `args`. It returns one exact number, or a table with
the keys of runs and the column value, of which the claim takes the mean.
"""

import math

import numpy as np
import pandas as pd

from ncpipe.claims.claim import RunClaim
from ncpipe.claims.evidence import Tables
from ncpipe.config.bounds import Fraction, Number
from ncpipe.metrics.catalogue import series_name
from ncpipe.tables.keys import of_selected, run_keys


def since_fit(claim: RunClaim, tables: Tables) -> pd.DataFrame:
    """Return log10 metric at the last epoch of `history.at` less that at the first one without a train error.

    Runs without one have no row.
    """
    history = claim.side.rows(tables.history)
    column, keys = series_name(claim.split, claim.metric), run_keys(history)
    if column not in history:
        return history[keys].assign(value=math.nan).iloc[:0]
    fitted = history[(history[column] > 0) & (history["train_error"] == 0)].sort_values("epoch")
    ends = np.log10(fitted.set_index(keys)[column]).groupby(keys)
    return (ends.last() - ends.first()).rename("value").reset_index()


def layer_slope(claim: RunClaim, tables: Tables) -> pd.DataFrame:
    """Return the slope of log10 metric on the layer (separation.csv)."""
    return claim.side.of_metric(tables.separation).rename(columns={"slope": "value"})


def layer_rise(claim: RunClaim, tables: Tables) -> pd.DataFrame:
    """Return the largest rise of the train `ncc_error` from one layer to the next; NaN of a single layer."""
    errors = claim.side.rows(tables.layer_errors).sort_values("position")
    groups = errors.groupby(run_keys(errors))["value"]
    return groups.agg(lambda v: float(np.diff(v).max()) if len(v) > 1 else math.nan).reset_index()


def depth_bound(claim: RunClaim, tables: Tables, over: dict[str, Number], alpha: Fraction) -> pd.DataFrame:
    """Return an error (the metric) less an estimate of its bound by effective depths [K23 eq. 53].

    The estimate is the least over p of (1 + alpha) p, plus 1 where the mean effective depth of the experiment
    is no less than the least of the runs with the share p of random labels in the second half of their data.
    over: experiments on twice the samples, each with its p.
    """
    runs = claim.side.rows(tables.runs)
    depth = claim.depth or runs["depth"].max()
    effective_depths = of_selected(tables.effective_depth, tables.runs[tables.runs["depth"] == depth])
    depths = effective_depths.groupby("experiment")["effective_depth"]
    means, lowest = depths.mean(), depths.min()
    bounds = [
        (1 + alpha) * share + float(means[claim.experiment] >= lowest[name])
        for name, share in over.items()
        if name in lowest and claim.experiment in means
    ]
    runs = runs[runs["depth"] == depth] if bounds and claim.metric in runs else runs.iloc[:0]
    return runs.assign(value=runs.get(claim.metric, math.nan) - min(bounds, default=math.nan))


RUN_CALLS = {function.__name__: (function,) for function in (since_fit, layer_slope, layer_rise, depth_bound)}
