"""Loss, its parts, the errors and the metrics of the history against the epoch, for the runs of one line."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ncpipe.figures.drawing import draw_key, key_entry, row_grid
from ncpipe.figures.labels import LOSS_NAMES
from ncpipe.figures.style import Colour, depth_colours
from ncpipe.figures.x_axis import XAxis, x_axis_of
from ncpipe.metrics.catalogue import split_of
from ncpipe.metrics.study_metrics import series_entry
from ncpipe.tables.keys import run_keys

Dashes = Literal["-"] | tuple[float, tuple[float, ...]]

WHOLE = "regularised loss"
FIT = "fit"  # the loss without its penalty, whose panel has the loss's name
PANELS: dict[str, dict[str, Dashes]] = {
    WHOLE: {"loss": "-"},
    FIT: {"fit": "-"},
    "penalty": {"penalty": "-"},
    "error": {"train_error": "-", "test_error": (0, (3, 1.5))},
}
DASHES: dict[str, Dashes] = {
    "train": "-",
    "test": (0, (3, 1.5)),
    "true_labels": (0, (1, 1)),
}  # of metrics on these splits
LOSS_TITLES = {"ce": "cross-entropy", **LOSS_NAMES}

Colours = dict[float, Colour]


def training_curves(history: pd.DataFrame, runs: pd.DataFrame, title: str) -> Figure:
    """Draw four panels for one line: regularised loss, loss alone, penalty (log axes), train and test error.

    The last one is missing where the targets are vectors, which have no such errors; the parts of the
    loss are missing of an own loop.
    The epoch has a logarithmic axis from the first logged epoch after 0 on, and a linear one before.
    One colour per depth: the strong line is the mean over finished runs, faint lines are single runs. A
    diverged run (`finished` false) is drawn up to its last finite value and ends in a cross; it enters no
    mean. Axes show the range of the finished runs, so a cross beyond it stands at the edge. Below are the
    metrics that the history has (`history.metrics`), on the scale of the catalogue; test, if there are test
    samples, is dashed, and with noisy labels what is taken by the true ones dotted.
    """
    x_axis, keys = x_axis_of(runs), run_keys(runs)
    table = history.merge(runs[[*keys, "finished"]], on=keys).replace([np.inf, -np.inf], np.nan)
    table = table.astype({"finished": bool}).sort_values([x_axis.column, "seed", "epoch"], ignore_index=True)
    colours = depth_colours(runs[x_axis.column])
    metrics = _metric_panels(table)
    known = {name: columns for name, columns in PANELS.items() if table[list(columns)].notna().any(axis=None)}
    if FIT not in known and WHOLE in known:
        known = {"loss": known.pop(WHOLE)} | known
    shown = known | metrics or {name: PANELS[name] for name in (WHOLE, FIT)}  # of runs without a row
    with row_grid(-(-len(shown) // 2), 2, 2.0, key=0.5, title=title.replace("\n", ", "), sharex=True) as (
        figure,
        grid,
    ):
        lowest = list(grid[-1])
        if len(shown) % 2:
            grid[-1, -1].set_visible(False)
            lowest[-1] = grid[-2, -1]
            lowest[-1].tick_params(labelbottom=True)
        for axes, (name, quantities) in zip(grid.flat, shown.items(), strict=False):
            marker = "o" if name in metrics else ""
            for quantity, dashes in quantities.items():
                _draw_quantity(axes, table, x_axis, quantity, dashes, colours, marker)
            log = name != "error" and all(series_entry(quantity).scale == "log" for quantity in quantities)
            _scale_panel(axes, table, list(quantities), log)
            _mark_diverged(axes, table, x_axis, list(quantities), colours)
            axes.set(title=_fit_name(runs) if name == FIT else name, xlabel="", ylabel="")
            _draw_splits(axes, [dashes for name, dashes in quantities.items() if table[name].notna().any()])
        for axes in lowest:
            axes.set_xlabel("epoch")
        _scale_epochs(grid[0, 0], table["epoch"])
        _draw_key(figure, x_axis.handles(colours, None), diverged=not runs["finished"].astype(bool).all())
    return figure


def _metric_panels(table: pd.DataFrame) -> dict[str, dict[str, Dashes]]:
    """Return by title the columns of the history that are metrics, with the test split's dashed."""
    panels: dict[str, dict[str, Dashes]] = {}
    for column in table.columns[table.notna().any()]:
        metric = series_entry(column)
        if metric.name:
            dashes = DASHES[split_of(column)]
            panels.setdefault(metric.label or metric.name.replace("_", " "), {})[column] = dashes
    return panels


def _draw_quantity(
    axes: Axes,
    table: pd.DataFrame,
    x_axis: XAxis,
    quantity: str,
    dashes: Dashes,
    colours: Colours,
    marker: str,
) -> None:
    style: dict[str, Any] = {"linestyle": dashes}
    if marker:  # few epochs
        style |= {"marker": marker, "markersize": 3, "markeredgewidth": 0}
    drawn = table.dropna(subset=[quantity])
    for _, run in drawn.groupby([x_axis.column, "seed"]):
        colour = colours[run[x_axis.column].iloc[0]]
        axes.plot(run["epoch"], run[quantity], color=colour, linewidth=0.7, alpha=0.6, **style)
    for _, runs in drawn[drawn["finished"]].groupby(x_axis.column):
        means, colour = runs.groupby("epoch")[quantity].mean(), colours[runs[x_axis.column].iloc[0]]
        axes.plot(means.index, means, color=colour, linewidth=1.5, **style)


def _scale_panel(axes: Axes, table: pd.DataFrame, quantities: list[str], log: bool) -> None:
    """Set the y limits from finished runs alone."""
    finished = table[table["finished"]] if table["finished"].any() else table
    values = finished[quantities].to_numpy(dtype=float).ravel()
    values = values[np.isfinite(values) & ((values > 0) | (not log))]
    if len(values) == 0:
        return
    low, high = float(values.min()), float(values.max())
    if log:
        axes.set_yscale("log")
        pad = max((high / low) ** 0.05, 1.05)
        axes.set_ylim(low / pad, high * pad)
    else:
        pad = max(0.05 * (high - low), 0.01)
        axes.set_ylim(low - pad, high + pad)


def _mark_diverged(
    axes: Axes, table: pd.DataFrame, x_axis: XAxis, quantities: list[str], colours: Colours
) -> None:
    low, high = axes.get_ylim()
    for quantity in quantities:
        rows = table[~table["finished"] & table[quantity].notna()]
        ends = rows.groupby([x_axis.column, "seed"], as_index=False).last()
        heights = ends[quantity].clip(low, high)
        for place, epoch, height in zip(ends[x_axis.column], ends["epoch"], heights, strict=True):
            axes.plot(epoch, height, "x", color=colours[place], markersize=5, mew=1.4, clip_on=False)


def _fit_name(runs: pd.DataFrame) -> str:
    """Return the loss's own name, as cross-entropy."""
    return LOSS_TITLES.get(name := str(runs["loss_name"].iloc[0]), name.replace("_", " "))


def _scale_epochs(axes: Axes, epochs: pd.Series) -> None:
    """Make the epoch axis, which all panels share, logarithmic: the first epochs change most."""
    first, last = epochs[epochs > 0].min(), epochs.max()
    if last == 0:  # every run diverged before the first logged epoch
        axes.xaxis.set_major_locator(FixedLocator([0]))
    if not first < last:
        return
    axes.set_xscale("symlog", linthresh=first, linscale=0.5)
    powers = 10.0 ** np.arange(np.floor(np.log10(first)), np.floor(np.log10(last)) + 1)
    steps = (1, 2, 5) if last / first < 100 else (1,)  # as many numbers as the axis has room for
    ticks = np.sort(np.outer(powers, steps).ravel())
    axes.set_xlim(-0.04 * first, last * (last / first) ** 0.03)
    axes.xaxis.set_major_locator(FixedLocator([0, *ticks[(ticks >= first) & (ticks <= last)]]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _draw_splits(axes: Axes, splits: Sequence[Dashes]) -> None:
    """Draw the legend of a panel with several splits inside it."""
    if len(splits) < 2:
        return
    names = {dashes: split.replace("_", " ") for split, dashes in DASHES.items()}
    handles = [key_entry(names[dashes], linewidth=1.1, linestyle=dashes) for dashes in splits]
    axes.legend(handles=handles, loc="best", borderaxespad=0.2)


def _draw_key(figure: Figure, handles: list[Line2D], diverged: bool) -> None:
    handles.append(key_entry("one run", alpha=0.6, linewidth=0.7))
    if diverged:
        handles.append(key_entry("diverged", marker="x", linewidth=0, markersize=5, mew=1.4))
    draw_key(figure, handles, 7)
