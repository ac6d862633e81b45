"""Build the data of the report's charts as plain JSON values, with every run once, in the order of runs.csv.

A line of a chart is an experiment, or an experiment at one depth. Its name is that of `keys.name_of`. The
page's script (`templates/page.js`) draws the charts.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from ncpipe.metrics.catalogue import SINGULAR, split_of
from ncpipe.metrics.study_metrics import entry, series_entry
from ncpipe.report.first_screen import letter
from ncpipe.tables.headlines import HEADLINES
from ncpipe.tables.keys import line_names, run_keys, setting_keys, symbol, x_column
from ncpipe.tables.points import usable_points
from ncpipe.tables.rates import CHANGES, rate, tendency

DIGITS = 5
LAYER_DIGITS = 4  # of values by layer, of which there are most
MOST_EPOCHS = 200  # of a run in a chart; longer histories show every second, third, ... row
SERIES = ["metric", "split"]
# Colours of the lines, with a contrast of 3 or more to the page's light and dark background.
COLOURS = ("#3b7cb8", "#c8560a", "#24935a", "#a55ac8", "#c2447d", "#8a7a10", "#1295a8", "#7a6a5c")
NOT_CURVES = {"epoch", "learning_rate"}


def chart_data(
    runs: pd.DataFrame,
    points: pd.DataFrame,
    slopes: pd.DataFrame,
    history: pd.DataFrame,
    measurements: pd.DataFrame,
    places: pd.DataFrame,
) -> dict[str, Any]:
    """Return all data of the charts, from the tables of `aggregate` and `measure`."""
    names = line_names(runs)
    lines = list(dict.fromkeys(names))
    return {
        "x": {
            "label": "depth L" if x_column(runs) == "depth" else symbol(runs),
            "symbol": symbol(runs),
            "letter": letter(symbol(runs)),
            "log": bool((runs[x_column(runs)] > 0).all()),
        },
        "lines": lines,
        "colours": [COLOURS[place % len(COLOURS)] for place in range(len(lines))],
        "runs": {
            "line": [lines.index(name) for name in names],
            "x": numbers(runs[x_column(runs)]),
            "seed": runs["seed"].tolist(),
            "converged": runs["converged"].astype(int).tolist(),
            "selected": runs["selected"].astype(int).tolist(),
            "reason": runs["reason"].fillna("").tolist(),
        },
        "series": _series(runs, points, slopes, lines),
        "layers": _layers(runs, measurements, places),
        "history": _history(runs, history),
    }


def plain(metric: str) -> str:
    """Return a metric's label without mathtext."""
    label = entry(metric).label.replace("$", "")
    return label if label and "\\" not in label else metric.replace("_", " ")


def title(metric: str, split: str) -> str:
    return plain(metric) + {"train": "", "weights": ""}.get(split, f", {split}")


def numbers(values: Iterable[float]) -> list[float | None]:
    """Return rounded values; None for infinity and NaN, which JSON does not have."""
    return [number(value) for value in values]


def number(value: float, digits: int = DIGITS) -> float | int | None:
    """Return a value rounded to so many significant digits; None for infinity and NaN."""
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def _series(
    runs: pd.DataFrame, points: pd.DataFrame, slopes: pd.DataFrame, lines: Sequence[str]
) -> list[dict[str, Any]]:
    """Return one series for each metric and split of the last layer, the headline metrics first.

    means: what the metric measures, in words.
    """
    place = {key: i for i, key in enumerate(runs[run_keys(runs)].itertuples(index=False, name=None))}
    fits = dict(iter(slopes.groupby(SERIES, sort=False)))
    series = []
    groups = {(str(name), str(split)): rows for (name, split), rows in points.groupby(SERIES, sort=False)}
    for (metric, split), rows in sorted(groups.items(), key=lambda item: _rank(*item[0])):
        values: list[float | None] = [None] * len(runs)
        reasons = {}
        keys = rows[run_keys(runs)].itertuples(index=False, name=None)
        for key, value, used, reason in zip(keys, rows["value"], rows["used"], rows["reason"], strict=True):
            values[place[key]] = number(value)
            if not used and isinstance(reason, str):
                reasons[place[key]] = reason
        said = _fits(fits[metric, split], lines, runs) if (metric, split) in fits else []
        log = entry(metric).scale == "log"
        series.append(
            {"metric": metric, "split": split, "title": title(metric, split), "log": log}
            | {"means": entry(metric).meaning}
            | {"values": values, "reasons": reasons, "fits": said}
        )
    return series


def _rank(metric: str, split: str) -> tuple[int, str, str]:
    """Return a sort key that puts headline metrics on the training set first."""
    first = HEADLINES.index(metric) if metric in HEADLINES and split != "test" else len(HEADLINES)
    return first, plain(metric).lower(), split


def _fits(slopes: pd.DataFrame, lines: Sequence[str], runs: pd.DataFrame) -> list[dict[str, Any]]:
    fits = []
    for line, (_, row) in zip(line_names(slopes), slopes.iterrows(), strict=True):
        level = f" ({100 * row['level']:g} % CI)" if row["low"] == row["low"] else ""
        power = ": ".join(filter(None, (CHANGES[tendency(row)], f"{rate(row, symbol(runs))}{level}")))
        says = f"{line} {power}; {row['n_used']} of {row['n_runs']} runs used"
        fits.append(
            {
                "line": lines.index(line),
                "slope": number(row["slope"]),
                "at": number(row["intercept"]),
                "says": says,
            }
        )
    return fits


def _layers(runs: pd.DataFrame, measurements: pd.DataFrame, places: pd.DataFrame) -> dict[str, Any]:
    """Return each run's value at each layer that has a position.

    nets: the distinct networks, with names and positions of their layers in the order of the forward pass.
    which: the index into `nets` of each run.
    series: a metric on a split, with `values[run][layer]`, and `reasons[run][layer name]` for values of
    selected runs that enter no slope although a log scale shows them.
    """
    keys = run_keys(runs)
    positions = [*setting_keys(runs), "layer"]
    placed = usable_points(measurements[~measurements["metric"].str.startswith(SINGULAR)], runs).merge(
        places[[*positions, "position"]], on=positions
    )
    nets: dict[tuple[tuple[str, float], ...], int] = {}
    rows: dict[tuple[Any, ...], tuple[int, int]] = {}
    which = []
    sizes = []
    layers = dict(iter(placed[[*keys, "layer", "position"]].drop_duplicates().groupby(keys, sort=False)))
    for i, key in enumerate(runs[keys].itertuples(index=False, name=None)):
        forward = layers[key].sort_values(["position", "layer"]) if key in layers else placed.iloc[:0]
        net = tuple(zip(forward["layer"], forward["position"], strict=True))
        which.append(nets.setdefault(net, len(nets)))
        sizes.append(len(net))
        rows |= {(*key, layer): (i, j) for j, (layer, _) in enumerate(net)}
    series = []
    for (metric, split), table in placed.groupby(SERIES, sort=False):
        values: list[list[float | None]] = [[None] * size for size in sizes]
        for *place, value in table[[*keys, "layer", "value"]].itertuples(index=False, name=None):
            i, j = rows[tuple(place)]
            values[i][j] = number(value, LAYER_DIGITS)
        reasons: dict[int, dict[str, str]] = {}
        if entry(str(metric)).scale == "log":
            unused = table[table["selected"] & ~table["used"] & table["log10"].notna()]
            for *place, reason in unused[[*keys, "layer", "reason"]].itertuples(index=False, name=None):
                reasons.setdefault(rows[tuple(place)][0], {})[place[-1]] = reason
        series.append({"metric": metric, "split": split, "values": values, "reasons": reasons})
    return {
        "nets": [
            {"layer": [name for name, _ in net], "position": [number(place) for _, place in net]}
            for net in nets
        ],
        "which": which,
        "series": series,
    }


def _history(runs: pd.DataFrame, history: pd.DataFrame) -> dict[str, Any]:
    """Return the logged epochs of each run (an index into `epochs`) and the values of each column."""
    drawn = history.drop(columns=[*run_keys(runs), *NOT_CURVES], errors="ignore").select_dtypes("number")
    named = list(map(str, drawn.columns[drawn.notna().any()]))
    columns = [*(n for n in HEADLINES if n in named), *(n for n in named if n not in HEADLINES)]
    by_run = dict(iter(history.groupby(run_keys(runs), sort=False)))
    grids: dict[tuple[int, ...], int] = {}
    which = []
    values: dict[str, list[list[float | None]]] = {name: [] for name in columns}
    for key in runs[run_keys(runs)].itertuples(index=False, name=None):
        rows = by_run.get(key, history.iloc[:0]).sort_values("epoch")
        rows = rows.iloc[kept(len(rows))]
        which.append(grids.setdefault(tuple(rows["epoch"].tolist()), len(grids)))
        for name, curve in values.items():
            curve.append(numbers(rows[name]))
    titles = {name: _column_title(name) for name in values}
    return {"epochs": list(map(list, grids)), "which": which, "columns": values, "titles": titles}


def _column_title(column: str) -> str:
    """Return the title of a column of the history: a metric by its label."""
    metric = series_entry(column)
    if not metric.name:
        return column.replace("_", " ")
    return title(metric.name, split_of(column))


def kept(rows: int) -> list[int]:
    """Return the indices of the rows that a chart shows, evenly spaced, with the first and the last."""
    step = max(1, math.ceil(rows / MOST_EPOCHS))
    return sorted({*range(0, rows, step), rows - 1}) if rows else []
