"""Average log10 values over seeds, with the number of runs behind each mean."""

import pandas as pd

from ncpipe.tables.keys import setting_keys
from ncpipe.tables.points import SERIES, run_counts, series_grid, usable_points


def summarise(measurements: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per experiment, depth (value of the axis), layer, split and metric.

    n_runs, n_converged, n_selected: numbers of runs of that experiment and depth. n_used: number of those
    with a usable value (`points.usable_points`). log10_mean, log10_std, log10_min, log10_max: over the used
    runs, NaN if there are none; the std has ddof = 1 and is NaN for fewer than two runs. Every setting keeps
    its rows (see `points.series_grid`).

    runs: with experiment, depth, seed, converged and selected (`convergence.judge_runs`). Experiments are in
    the order of `runs`, the other keys ascending.
    """
    points = usable_points(measurements, runs)
    counts = run_counts(runs, setting_keys(runs))
    used = points[points["used"]].groupby([*setting_keys(runs), *SERIES], as_index=False)
    statistics = used.agg(
        n_used=("log10", "size"),
        log10_mean=("log10", "mean"),
        log10_std=("log10", "std"),
        log10_min=("log10", "min"),
        log10_max=("log10", "max"),
    )
    table = series_grid(points, runs).merge(counts, how="left").merge(statistics, how="left")
    return table.assign(n_used=table["n_used"].fillna(0).astype(int))
