"""The metrics of a study.py against depth, or the study's axis: a row per experiment, a column per metric."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ncpipe.figures import drawing
from ncpipe.figures.labels import Column
from ncpipe.figures.style import PAGE_WIDTH, Colour, metric_colours
from ncpipe.figures.x_axis import XAxis, x_axis_of
from ncpipe.metrics.study_metrics import entry

WIDEST = 4  # columns of a page
LONGEST = 30  # characters of a line of a title, as mathtext; more would overlap the next title


def own_metrics_figure(
    points: pd.DataFrame, runs: pd.DataFrame, labels: Mapping[str, str], columns: Sequence[Column]
) -> Figure:
    """Draw means over the runs used at the last layer, and single runs, hollow if they did not converge.

    A metric whose scale is `log` is drawn as its log10, any other as it is. points: of `tables.points`.
    labels: experiment -> row label, in the order of the rows.
    """
    x_axis = x_axis_of(runs)
    measured = set(zip(points["metric"], points["split"], strict=True))  # there may be no test samples
    columns = [column for column in columns if (column.metric, column.split) in measured] or columns[:1]
    colours = metric_colours(len(columns))
    width = PAGE_WIDTH * max(1.0, len(columns) / WIDEST)
    with drawing.row_grid(len(labels), len(columns), key=0.55, width=width) as (figure, grid):
        for line, name in zip(grid, labels, strict=True):
            places = np.unique(runs.loc[runs["experiment"] == name, x_axis.column])
            for axes, column, colour in zip(line, columns, colours, strict=True):
                _draw(axes, drawing.last_layer(points, name, column), places, x_axis, column, colour)
        titles = [
            "\n".join(textwrap.fill(line, LONGEST) for line in column.title.split(", ")) for column in columns
        ]
        drawing.label_rows(grid, labels.values(), titles, x_axis.label)
        handles = [
            drawing.key_entry("mean", "0.3", marker="o", markersize=4),
            drawing.key_entry("one run", "0.3", marker="o", markersize=3, linewidth=0),
        ]
        drawing.draw_key(figure, handles, 2)
    return figure


def _draw(
    axes: Axes, points: pd.DataFrame, places: np.ndarray, x_axis: XAxis, column: Column, colour: Colour
) -> None:
    x_axis.scale(axes, places)
    height = "log10" if entry(column.metric).scale == "log" else "value"
    usable = points[np.isfinite(points[height])]
    if usable.empty:
        drawing.state_nothing(axes, "no usable value")
        return
    for converged, part in usable.groupby("converged"):
        face = colour if converged else "none"
        beside = x_axis.beside(part[x_axis.column], places)
        axes.plot(beside, part[height], "o", color=colour, markerfacecolor=face, markersize=2.2)
    used = usable[usable["selected"]].groupby(x_axis.column)[height]
    mean = used.mean().where(used.count() >= 2)
    axes.plot(mean.index, mean, "o-", color=colour, markersize=3.5, linewidth=1.0)
    drawing.thin_ticks(axes)
