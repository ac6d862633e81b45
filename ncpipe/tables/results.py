"""Choose the few numbers and curves that `dvc metrics` and `dvc plots` show."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ncpipe.metrics.catalogue import series_name
from ncpipe.metrics.study_metrics import series_entry
from ncpipe.tables.keys import distinct, line_keys, name_of, rows_at, run_keys, setting_keys, x_column
from ncpipe.tables.points import LAST


def dvc_metrics(
    summary: pd.DataFrame,
    slopes: pd.DataFrame,
    runs: pd.DataFrame,
    series: Mapping[str, Collection[tuple[str, str]]],
) -> dict[str, Any]:
    """Return per experiment runs, converged and slope_<series>, each a column of `dvc exp show`.

    series: the last-layer series to show, as (metric, split) by experiment; `catalogue.series_name` names
    them. If there is no slope, for example with one depth, `deepest` has the deepest depth with a used run
    and its log10_<series>. JSON has no NaN, so missing numbers are left out.

    In a study with an axis, per experiment and depth: runs, converged, slope_<series> and rho_<series>.
    """
    metrics = {}
    for line in distinct(runs, line_keys(runs)):
        table, shown = rows_at(runs, line), series[str(line["experiment"])]
        fits, means = (_selected_rows(rows_at(values, line), shown) for values in (slopes, summary))
        rates = _finite(fits, "slope", "slope") | (_finite(fits, "rho", "rho") if "x" in runs else {})
        metrics[name_of(line)] = {
            "runs": len(table),
            "converged": int(table["converged"].sum()),
            **(rates or ({} if "x" in runs else _deepest_means(means))),
        }
    return metrics


def depth_series(summary: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return a wide table for `dvc plots` by name of a line: depth, or x, and log10_mean of each series."""
    last = summary[summary["layer"] == LAST]
    return {name_of(line): _widen(rows_at(last, line)) for line in distinct(last, line_keys(last))}


def curve_series(history: pd.DataFrame, runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return a table for `dvc plots` by name of a setting: epoch and the mean of every quantity.

    A setting is an experiment at one depth (and value), as `rn1-L8` or `rn1-L8-x0.1`. The mean is over its
    finished runs, so that a curve does not jump where a diverged run ends. A setting without a finished run
    has no table.
    """
    keys = run_keys(runs)
    finished = history.merge(runs.loc[runs["finished"].astype(bool), keys], on=keys)
    return {
        name_of(setting): _without_others_metrics(rows_at(finished, setting).drop(columns=keys))
        .groupby("epoch", as_index=False)
        .mean()
        for setting in distinct(finished, setting_keys(runs))
    }


def _without_others_metrics(rows: pd.DataFrame) -> pd.DataFrame:
    """Drop the columns of metrics that only other experiments' histories have."""
    missing = rows.columns[rows.isna().all()]
    return rows.drop(columns=[name for name in missing if series_entry(name).name])


def _widen(table: pd.DataFrame) -> pd.DataFrame:
    names = [
        series_name(split, metric) for split, metric in zip(table["split"], table["metric"], strict=True)
    ]
    wide = table.assign(series=names).pivot(index=x_column(table), columns="series", values="log10_mean")
    return wide.rename_axis(columns=None).reset_index()


def _selected_rows(table: pd.DataFrame, series: Collection[tuple[str, str]]) -> pd.DataFrame:
    last = table[table["layer"] == LAST]
    selected = [pair in series for pair in zip(last["metric"], last["split"], strict=True)]
    return last[np.array(selected, dtype=bool)]


def _deepest_means(means: pd.DataFrame) -> dict[str, dict[str, float]]:
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
