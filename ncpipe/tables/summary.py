"""Average log10 values over seeds, with the number of runs behind each mean."""

import numpy as np
import pandas as pd

from ncpipe.tables.keys import setting_keys
from ncpipe.tables.points import SERIES, run_counts, series_grid, usable_points

GROUP_FACTOR = 2.0
GROUP_GAP = 2.0


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


def in_two_groups(log10: np.ndarray) -> bool:
    """Return whether the runs of a setting fall into two groups, so that their mean describes neither.

    log10: (runs,). Each group has two runs or more, and the gap between the groups is a factor GROUP_FACTOR
    or more and over GROUP_GAP times as wide as either group. Of 4, 5 and 10 runs from one Gaussian whose
    spread is wide enough, 12, 8 and 0.1 % look so.
    """
    ordered = np.sort(log10)
    gaps = np.diff(ordered)[1:-1]  # those with two runs on either side
    if not len(gaps):
        return False
    split = 1 + int(np.argmax(gaps))
    widest = max(ordered[split] - ordered[0], ordered[-1] - ordered[split + 1])
    gap = ordered[split + 1] - ordered[split]
    return bool(gap >= np.log10(GROUP_FACTOR) and gap > GROUP_GAP * widest)
