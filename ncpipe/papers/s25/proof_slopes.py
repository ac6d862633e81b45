"""Tabulate constructed networks beside trained ones."""

import math

import numpy as np
import pandas as pd

from ncpipe.tables.points import LAST
from ncpipe.tables.slopes import least_squares_line

NOTHING = 1e-12  # below it a gap or a metric is rounding of the optimum, or of exact collapse
SLOPES_OF = ("stage_one_penalty", "stage_two_penalty", "inner_penalty", "loss_gap")


def constructed_slopes(networks: pd.DataFrame) -> pd.DataFrame:
    """Return least-squares powers of L of penalties and gap, by experiment and kind.

    networks: rows of `proofs.study_rows.constructed_row` with experiment, kind and depth. n_used: values
    above `NOTHING`; the slope is NaN with fewer than two depths.
    """
    rows = []
    for (experiment, kind), own in networks.groupby(["experiment", "kind"], sort=False):
        for column in SLOPES_OF:
            used = own[own[column] > NOTHING]
            slope = math.nan
            if used["depth"].nunique() > 1:
                x, y = (np.log10(used[name].to_numpy()) for name in ("depth", column))
                slope, _ = least_squares_line(x, y)
            rows.append((experiment, kind, column, slope, len(used)))
    return pd.DataFrame(rows, columns=["experiment", "kind", "column", "slope", "n_used"])


def with_nc2(networks: pd.DataFrame, nc2: dict[str, str]) -> pd.DataFrame:
    """Return the networks with a column nc2, the metric that `nc2` names for their experiment."""
    values = [row[nc2[row["experiment"]]] for _, row in networks.iterrows()]
    return networks.assign(nc2=values)


def trained_means(summary: pd.DataFrame, nc2: dict[str, str]) -> pd.DataFrame:
    """Return last-layer means of `tables.summary` on training samples and weights, the named nc2 as `nc2`."""
    rows = summary[(summary["layer"] == LAST) & (summary["split"] != "test")].copy()
    rows.loc[rows["metric"] == rows["experiment"].map(nc2), "metric"] = "nc2"
    return rows[["experiment", "depth", "metric", "log10_mean", "log10_std"]]
