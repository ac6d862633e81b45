"""The few numbers and curves that `dvc metrics` and `dvc plots` show."""

import math
from typing import Any

import pandas as pd

from ncpipe.tables.points import LAST, RUN, series_name


def dvc_metrics(summary: pd.DataFrame, slopes: pd.DataFrame, runs: pd.DataFrame) -> dict[str, Any]:
    """Per experiment: runs, converged, slope_<series> and, under `deepest`, depth and log10_<series>.

    Series are those of the last layer, named by `points.series_name`. `deepest` is the deepest depth with a
    used run and is absent when there is none. JSON has no NaN, so a number that does not exist is left out.
    """
    return {
        str(name): {
            "runs": len(table),
            "converged": int(table["converged"].sum()),
            **_finite(slopes, str(name), "slope", "slope"),
            **_deepest(summary, str(name)),
        }
        for name, table in runs.groupby("experiment", sort=False)
    }


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


def _deepest(summary: pd.DataFrame, experiment: str) -> dict[str, dict[str, float]]:
    own = summary[
        (summary["experiment"] == experiment) & (summary["layer"] == LAST) & (summary["n_used"] > 0)
    ]
    if own.empty:
        return {}
    depth = int(own["depth"].max())
    values = _finite(own[own["depth"] == depth], experiment, "log10_mean", "log10")
    return {"deepest": {"depth": depth, **values}}


def _finite(table: pd.DataFrame, experiment: str, column: str, prefix: str) -> dict[str, float]:
    own = table[(table["experiment"] == experiment) & (table["layer"] == LAST)]
    rows = zip(own["split"], own["metric"], own[column], strict=True)
    return {
        f"{prefix}_{series_name(split, metric)}": float(value)
        for split, metric, value in rows
        if math.isfinite(value)
    }
