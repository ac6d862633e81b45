"""The few numbers and curves that `dvc metrics` and `dvc plots` show."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ncpipe.tables.points import LAST, RUN, series_name


def dvc_metrics(
    summary: pd.DataFrame,
    slopes: pd.DataFrame,
    runs: pd.DataFrame,
    series: Mapping[str, Collection[tuple[str, str]]],
) -> dict[str, Any]:
    """Per experiment: runs, converged, slope_<series> and, under `deepest`, depth and log10_<series>.

    series: by experiment (metric, split) of the last-layer series to show, each a column of `dvc exp show`;
    named by `points.series_name`. `deepest` is the deepest depth with a used run and is absent when there is
    none. JSON has no NaN, so a number that does not exist is left out.
    """
    found = {}
    for name, table in runs.groupby("experiment", sort=False):
        fits, means = (_chosen(own, str(name), series[str(name)]) for own in (slopes, summary))
        found[str(name)] = {
            "runs": len(table),
            "converged": int(table["converged"].sum()),
            **_finite(fits, "slope", "slope"),
            **_deepest(means),
        }
    return found


def depth_series(summary: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Per experiment a wide table for `dvc plots`: depth and log10_mean of each last-layer series."""
    last = summary[summary["layer"] == LAST]
    return {str(name): _widen(table) for name, table in last.groupby("experiment", sort=False)}


def curve_series(history: pd.DataFrame, runs: pd.DataFrame) -> dict[tuple[str, int], pd.DataFrame]:
    """Per experiment and depth a table for `dvc plots`: epoch, and the mean over seeds of every quantity.

    The mean is over finished runs, so that a curve does not jump where a diverged run ends; a depth with
    no finished run has no table.
    """
    finished = history.merge(runs.loc[runs["finished"].astype(bool), RUN], on=RUN)
    keys = finished[["experiment", "depth"]].drop_duplicates().itertuples(index=False, name=None)
    tables = dict(iter(finished.groupby(["experiment", "depth"])))
    return {key: tables[key].drop(columns=RUN).groupby("epoch", as_index=False).mean() for key in keys}


def _widen(table: pd.DataFrame) -> pd.DataFrame:
    names = [
        series_name(split, metric) for split, metric in zip(table["split"], table["metric"], strict=True)
    ]
    wide = table.assign(series=names).pivot(index="depth", columns="series", values="log10_mean")
    return wide.rename_axis(columns=None).reset_index()


def _chosen(table: pd.DataFrame, experiment: str, series: Collection[tuple[str, str]]) -> pd.DataFrame:
    own = table[(table["experiment"] == experiment) & (table["layer"] == LAST)]
    asked = [pair in series for pair in zip(own["metric"], own["split"], strict=True)]
    return own[np.array(asked, dtype=bool)]


def _deepest(means: pd.DataFrame) -> dict[str, dict[str, float]]:
    used = means[means["n_used"] > 0]
    if used.empty:
        return {}
    depth = int(used["depth"].max())
    return {"deepest": {"depth": depth, **_finite(used[used["depth"] == depth], "log10_mean", "log10")}}


def _finite(table: pd.DataFrame, column: str, prefix: str) -> dict[str, float]:
    rows = zip(table["split"], table["metric"], table[column], strict=True)
    return {
        f"{prefix}_{series_name(split, metric)}": float(value)
        for split, metric, value in rows
        if math.isfinite(value)
    }
