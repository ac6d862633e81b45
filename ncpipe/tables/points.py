"""Join measurements with the convergence of their runs: the points behind every mean and slope."""

import numpy as np
import pandas as pd

from ncpipe.system.errors import InputError
from ncpipe.tables.floors import floor_of
from ncpipe.tables.keys import run_keys, setting_keys

SERIES = ["layer", "split", "metric"]
LAST = "last"


def usable_points(measurements: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the measurements with five more columns, ordered by experiment, depth, seed and series.

    converged, selected: of the run. log10: log10 of the value, NaN unless 0 < value < inf. used: whether
    means and slopes use the value. reason: why not, '' if used; the first that applies of

    - `run left out` (`runs.csv` has the reason);
    - `not a number`, `infinite` (coincident class means), `zero` (exact collapse), which have no logarithm;
    - `at the rounding floor`: |value| <= `floors.floor_of` its metric;
    - `negative`.

    If only some seeds of a depth are above the floor, the mean over these is too high; the number of used
    runs shows it. Experiments are in the order of `runs`.

    Raises InputError for a value measured twice and for a measured run that `runs` lacks.
    """
    keys = run_keys(runs)
    table = measurements.astype(runs[keys].dtypes.to_dict()).astype({"value": float})
    _check_unique(table, [*keys, *SERIES], "measurements")
    _check_unique(runs, keys, "runs")
    table = table.merge(runs[[*keys, "converged", "selected"]], on=keys, how="left", validate="many_to_one")
    unknown = table[table["converged"].isna()]
    if len(unknown):
        raise InputError(f"measurements: {_name(unknown.iloc[0])} is not among the runs; measure again")
    value = table["value"].to_numpy()
    on_axis = np.isfinite(value) & (value > 0)
    table = table.astype({"converged": bool, "selected": bool})
    table["log10"] = np.log10(value, where=on_axis, out=np.full(len(value), np.nan))
    reason = _reasons(table)
    table["used"] = reason == ""
    table["reason"] = reason
    return in_order(table, runs)


def series_grid(points: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return every row that a table by depth must have: experiment, depth (axis, x), layer, split, metric.

    A depth (or value of the axis) has the series measured there and all last-layer series of its experiment;
    those of all experiments if its experiment was not measured at all. So a depth whose runs all failed keeps
    its rows. Other layers appear only at depths that have them.
    """
    settings = setting_keys(runs)
    distinct = points[[*settings, *SERIES]].drop_duplicates()
    last = distinct[distinct["layer"] == LAST]
    own_last = {name: _series(table) for name, table in last.groupby("experiment")}
    measured = {key: _series(table) for key, table in distinct.groupby(settings)}
    any_last = _series(last)
    rows = []
    for key in runs[settings].drop_duplicates().itertuples(index=False, name=None):
        series = measured.get(key, set()) | own_last.get(key[0], any_last)
        rows += [(*key, *names) for names in series]
    grid = pd.DataFrame(rows, columns=[*settings, *SERIES])
    return in_order(grid.astype(runs[settings].dtypes.to_dict()), runs)


def run_counts(runs: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return how many runs have the same keys: n_runs, n_converged and n_selected."""
    return runs.groupby(keys, as_index=False).agg(
        n_runs=("converged", "size"), n_converged=("converged", "sum"), n_selected=("selected", "sum")
    )


def in_order(table: pd.DataFrame, runs: pd.DataFrame, keys: list[str] | None = None) -> pd.DataFrame:
    """Sort rows by experiment, in the order of `runs`, then by keys, by default all that the table has."""
    rank = {name: i for i, name in enumerate(runs["experiment"].drop_duplicates())}
    if keys is None:
        keys = [*run_keys(table)[1:], *(key for key in SERIES if key in table)]
    ranked = table.assign(experiment=table["experiment"].map(rank)).sort_values(["experiment", *keys])
    return table.loc[ranked.index].reset_index(drop=True)


def _reasons(table: pd.DataFrame) -> np.ndarray:
    floors = {metric: floor_of(metric) for metric in table["metric"].unique()}
    value, floor = table["value"], table["metric"].map(floors)
    conditions = {  # the first that applies counts
        "run left out": ~table["selected"],
        "not a number": value.isna(),
        "infinite": np.isinf(value),
        "zero": value == 0,
        "at the rounding floor": value.abs() <= floor,
        "negative": value < 0,
    }
    return np.select(list(conditions.values()), list(conditions), "")


def _series(table: pd.DataFrame) -> set[tuple[str, ...]]:
    return set(table[SERIES].itertuples(index=False, name=None))


def _check_unique(table: pd.DataFrame, keys: list[str], what: str) -> None:
    twice = table[table.duplicated(keys)]
    if len(twice):
        metric = f" {twice.iloc[0]['metric']}" if "metric" in keys else ""
        raise InputError(f"{what}: {_name(twice.iloc[0])}{metric} appears twice; concatenate each file once")


def _name(row: pd.Series) -> str:
    varied = f" {row['axis']}={row['x']}" if "axis" in row else ""
    return f"{row['experiment']} L={row['depth']}{varied} seed={row['seed']}"
