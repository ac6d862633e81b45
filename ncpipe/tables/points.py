"""Measurements joined with what became of their runs: the points that every mean and slope is made of."""

import numpy as np
import pandas as pd

from ncpipe.system.errors import InputError
from ncpipe.tables.floors import floor_of
from ncpipe.tables.keys import place_keys, run_keys

SERIES = ["layer", "split", "metric"]
LAST = "last"


def usable_points(measurements: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The measurements with four more columns, ordered by experiment (as in `runs`), depth, seed, series.

    converged: that of the run. log10: log10 of the value, NaN unless 0 < value < inf. used: whether means
    and slopes take it. reason: why not, '' where used; the first that holds of

    - `run not converged` (`runs.csv` says why);
    - `not a number`, `infinite` (coincident class means), `zero` (exact collapse), which no log axis has;
    - `at the rounding floor`: |value| <= `floors.floor_of` its metric;
    - `negative`.

    Nothing else takes a value out. Where seeds of one depth lie on both sides of the floor, the mean of the
    used ones is too high; their number says so.

    Raises InputError for a value measured twice and for a measured run that `runs` lacks.
    """
    keys = run_keys(runs)
    table = measurements.astype(runs[keys].dtypes.to_dict()).astype({"value": float})
    _check_unique(table, [*keys, *SERIES], "measurements")
    _check_unique(runs, keys, "runs")
    table = table.merge(runs[[*keys, "converged"]], on=keys, how="left", validate="many_to_one")
    unknown = table[table["converged"].isna()]
    if len(unknown):
        raise InputError(f"measurements: {_name(unknown.iloc[0])} is not among the runs; measure again")
    value = table["value"].to_numpy()
    on_axis = np.isfinite(value) & (value > 0)
    table["converged"] = table["converged"].astype(bool)
    table["log10"] = np.log10(value, where=on_axis, out=np.full(len(value), np.nan))
    reason = _reasons(table)
    table["used"] = reason == ""
    table["reason"] = reason
    return in_order(table, runs)


def series_grid(points: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Every row that a table by depth owes its reader: experiment, depth (axis, x), layer, split, metric.

    A depth, or value of the axis, of an experiment has the series measured there and all last-layer series of
    the experiment (of all experiments, where nothing of this one was measured), so that a depth whose runs
    all failed keeps its rows. Other layers appear only at depths that have them.
    """
    last = points[points["layer"] == LAST]
    own_last = {name: _series(table) for name, table in last.groupby("experiment")}
    places = place_keys(runs)
    measured = {key: _series(table) for key, table in points.groupby(places)}
    anyone = _series(last)
    rows = []
    for key in runs[places].drop_duplicates().itertuples(index=False, name=None):
        series = measured.get(key, set()) | own_last.get(key[0], anyone)
        rows += [(*key, *names) for names in series]
    grid = pd.DataFrame(rows, columns=[*places, *SERIES])
    return in_order(grid.astype(runs[places].dtypes.to_dict()), runs)


def in_order(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Rows sorted by whichever key columns the table has; experiments in the order of `runs`."""
    place = {name: i for i, name in enumerate(runs["experiment"].drop_duplicates())}
    keys = [*run_keys(table), *(key for key in SERIES if key in table)]
    ranked = table.assign(experiment=table["experiment"].map(place))
    return table.loc[ranked.sort_values(keys).index].reset_index(drop=True)


def _reasons(table: pd.DataFrame) -> np.ndarray:
    floors = {metric: floor_of(metric) for metric in table["metric"].unique()}
    value, floor = table["value"], table["metric"].map(floors)
    return np.select(
        [
            ~table["converged"],
            value.isna(),
            np.isinf(value),
            value == 0,
            value.abs() <= floor,
            value < 0,
        ],
        [
            "run not converged",
            "not a number",
            "infinite",
            "zero",
            "at the rounding floor",
            "negative",
        ],
        "",
    )


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
