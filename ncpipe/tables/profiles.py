"""Summarise collapse by layer in the runs used: profiles, law of data separation, effective depths."""

import math
import re

import numpy as np
import pandas as pd

from ncpipe.tables.keys import of_selected, run_keys, setting_keys
from ncpipe.tables.points import in_order, usable_points
from ncpipe.tables.slopes import least_squares_line

LAYER_KEYS = ["layer", "position", "split", "metric"]
# What is fitted along the layers; few-shot errors have a number of shots behind their names.
LAW_METRICS = re.compile(
    r"nc1_trace_ratio|nc1_pinv|nc1_tokens_of_sample|nrc1_variance|(neco|mahalanobis|knn)_auroc"
    r"|transfer_ncc_error_\d+"
)


def layer_profile(measurements: pd.DataFrame, places: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return mean and std over the selected runs per experiment, depth, layer, split and metric.

    places: experiment, depth, layer and position. A position counts blocks of the forward pass: the features
    h are at L in a ResNet and at L + 1/2 in a transformer. Layers without a position, such as
    pre-activations, are left out.

    n_used: number of runs with a finite value, over which mean and std are taken. n_log10: number of those
    with a positive value, over which log10_mean and log10_std are taken. The stds have ddof = 1 and are NaN
    for fewer than two. Experiments are in the order of `runs`, layers in that of the forward pass. An
    experiment without a selected run has no rows.
    """
    points = _positioned_rows(usable_points(measurements, runs), places)
    selected = points[points["selected"]]
    selected = selected.assign(value=selected["value"].where(np.isfinite(selected["value"])))
    profile = selected.groupby([*setting_keys(runs), *LAYER_KEYS], as_index=False).agg(
        n_used=("value", "count"),
        n_log10=("log10", "count"),
        mean=("value", "mean"),
        std=("value", "std"),
        log10_mean=("log10", "mean"),
        log10_std=("log10", "std"),
    )
    # By position, not by layer names, where X10 < X9.
    return in_order(profile, runs, [*setting_keys(runs)[1:], "position", "split", "metric"])


def separation_law(measurements: pd.DataFrame, places: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Fit the line log10 value = intercept + slope * position of each run, per split and metric.

    Of NC1, of what takes its place for tokens and vectors, and of scores of other data and transfer.

    The law of data separation [He and Su, PNAS 120(36), 2023] is D_l = rho^l D_0 for the separation
    fuzziness D = tr(Sigma_W Sigma_B^+): each layer multiplies it by the same rho = 10^slope. On balanced
    classes `nc1_pinv` is D/K, with the same rho; on others the Sigma_B of the law weighs classes by their
    samples, and that of the metric does not. `nc1_trace_ratio` applies the law to the trace ratio.

    The fit is least squares over the n_layers layers with 0 < value < inf, including h. slope, intercept and
    rho: NaN for fewer than two positions. r_squared: 1 - residual/total sum of squares; NaN for fewer than
    three positions, because any line fits two, and if all values are equal.
    """
    fuzziness = measurements[measurements["metric"].str.fullmatch(LAW_METRICS)]
    points = _positioned_rows(usable_points(fuzziness, runs), places)
    keys = [*run_keys(runs), "split", "metric"]
    used = points[points["selected"] & points["log10"].notna()].groupby(keys)
    rows = [(*key, *_law(table["position"].to_numpy(), table["log10"].to_numpy())) for key, table in used]
    columns = [*keys, "n_layers", "slope", "intercept", "rho", "r_squared"]
    return in_order(pd.DataFrame(rows, columns=columns), runs, keys[1:])


def layer_errors(measurements: pd.DataFrame, places: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return per run and layer the train `ncc_error`, by position, and whether the run is selected."""
    errors = measurements[(measurements["metric"] == "ncc_error") & (measurements["split"] == "train")]
    points = _positioned_rows(usable_points(errors, runs), places)
    columns = [*run_keys(runs), "layer", "position", "split", "metric", "value", "selected"]
    return in_order(points[columns], runs, [*run_keys(runs)[1:], "position"])


def effective_depths(errors: pd.DataFrame, runs: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    """Return per selected run the first position with an error <= tolerance, or L [K23 sec. 4.2].

    errors: from `layer_errors`. layer: the name of the layer there, or ''. reached: whether there is one.
    effective_depth: at most L, so that h of a transformer counts as its last block; 0 if the embedding
    already separates the classes (K23 starts at layer 1). fraction: effective_depth/L. n_layers: number of
    layers measured.
    """
    keys = run_keys(runs)
    selected = of_selected(errors, runs).groupby(keys)
    rows = [(*key, len(table), *_first_layer(table, tolerance)) for key, table in selected]
    columns = [*keys, "n_layers", "layer", "reached", "effective_depth"]
    table = in_order(pd.DataFrame(rows, columns=columns), runs, keys[1:])
    return table.assign(fraction=table["effective_depth"] / table["depth"])


def _positioned_rows(points: pd.DataFrame, places: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of layers that have a position, with it."""
    keys = [*setting_keys(places), "layer"]
    placed = points.merge(places[[*keys, "position"]], on=keys, how="left", validate="many_to_one")
    return placed[placed["position"].notna()]


def _law(position: np.ndarray, log10: np.ndarray) -> tuple[float, ...]:
    distinct = len(np.unique(position))
    if distinct < 2:
        return distinct, math.nan, math.nan, math.nan, math.nan
    slope, intercept = least_squares_line(position, log10)
    residual = float(np.square(log10 - intercept - slope * position).sum())
    total = float(np.square(log10 - log10.mean()).sum())
    r_squared = 1 - residual / total if distinct > 2 and total > 0 else math.nan
    return distinct, slope, intercept, 10**slope, r_squared


def _first_layer(layers: pd.DataFrame, tolerance: float) -> tuple[str, bool, float]:
    depth, within = float(layers["depth"].iloc[0]), layers[layers["value"] <= tolerance]
    if within.empty:
        return "", False, depth
    first = within.iloc[0]
    return str(first["layer"]), True, min(float(first["position"]), depth)
