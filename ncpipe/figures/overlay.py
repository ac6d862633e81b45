"""The same experiments under several settings in one figure, a colour for each setting."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ncpipe.figures.labels import GAP_COLUMNS, Column, paper_columns
from ncpipe.figures.panels import (
    FIT_DASHES,
    ROW_HEIGHT,
    draw_power,
    last_layer,
    state_nothing,
    thin_ticks,
)
from ncpipe.figures.style import INK, PAGE_WIDTH, Colour, lay_out, metric_colours, paper_style
from ncpipe.figures.x_axis import XAxis, with_lines, x_axis_of

MARKERS = ("o", "s", "^", "v", "D")
LEGEND_LINE = 11  # points that a line of a panel's legend is high


class Sweep(NamedTuple):
    """Tables of `aggregate` under one setting."""

    runs: pd.DataFrame
    summary: pd.DataFrame
    slopes: pd.DataFrame


def overlay(sweeps: Mapping[str, Sweep], experiments: Sequence[str]) -> Figure:
    """Draw log10 of NC1, NC2, NC3 and the loss gap at the last layer against L (or the axis), on log axes.

    A row for each experiment (each of its depths, in a study with an axis), a colour for each setting: mean
    ± 1 std over the seeds used, and the least-squares power as a dashed line. A legend above each panel has
    slopes and intervals, and says which curves are identical to another setting's, which hides them.
    What a setting lacks it has no curve for.
    """
    x_axis = x_axis_of(next(iter(sweeps.values())).runs)
    lined = {name: Sweep(*map(with_lines, sweep)) for name, sweep in sweeps.items()}
    first = next(iter(sweeps.values())).runs
    own = with_lines(first)[first["experiment"].isin(experiments)]
    lines = list(dict.fromkeys(own["experiment"]))
    measured = next(iter(lined.values())).summary
    columns = {
        line: (*paper_columns(own[own["experiment"] == line], measured), GAP_COLUMNS[0]) for line in lines
    }
    colours = dict(zip(sweeps, metric_colours(len(sweeps)), strict=True))
    with paper_style():
        figure = Figure(
            figsize=(PAGE_WIDTH, (ROW_HEIGHT + 0.2 + LEGEND_LINE * len(sweeps) / 72) * len(lines) + 0.55),
            layout="constrained",
        )
        grid = figure.subplots(len(lines), len(columns[lines[0]]), squeeze=False)
        runs = pd.concat([sweep.runs[["experiment", x_axis.column]] for sweep in lined.values()])
        for row, line in zip(grid, lines, strict=True):
            places = np.unique(runs.loc[runs["experiment"] == line, x_axis.column])
            for axes, column in zip(row, columns[line], strict=True):
                x_axis.scale(axes, places)
                _draw(axes, lined, line, column, x_axis, colours)
                axes.set_title(column.title, pad=6 + LEGEND_LINE * len(sweeps))
            row[0].set_ylabel(line)
        for axes in grid[-1]:
            axes.set_xlabel(x_axis.label)
        figure.align_ylabels(grid[:, 0])
        handles = [
            Line2D([], [], color=colours[name], marker=MARKERS[i % len(MARKERS)], markersize=3, label=name)
            for i, name in enumerate(sweeps)
        ]
        handles.append(Line2D([], [], color=INK, linestyle=FIT_DASHES, linewidth=0.9, label="least squares"))
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 4), frameon=False)
        lay_out(figure)
    return figure


def _draw(
    axes: Axes,
    sweeps: Mapping[str, Sweep],
    line: str,
    column: Column,
    x_axis: XAxis,
    colours: Mapping[str, Colour],
) -> None:
    fits = []
    drawn: dict[str, np.ndarray] = {}
    for i, (name, sweep) in enumerate(sweeps.items()):
        means = last_layer(sweep.summary, line, column)
        means = means[means["n_used"] > 0]
        if means.empty:
            continue
        axes.errorbar(
            means[x_axis.column], means["log10_mean"], yerr=means["log10_std"], color=colours[name],
            marker=MARKERS[i % len(MARKERS)], markersize=3, linewidth=0, elinewidth=0.9, capsize=2,
        )  # fmt: skip
        several = means["log10_mean"].where(means["n_used"] >= 2)
        axes.plot(means[x_axis.column], several, color=colours[name], linewidth=1.2)
        points = means[[x_axis.column, "log10_mean", "log10_std"]].to_numpy(dtype=float)
        twin = next((one for one, own in drawn.items() if np.array_equal(own, points, equal_nan=True)), None)
        drawn[name] = points
        if twin is not None:
            label = f"identical to {twin}"
            fits.append(Line2D([], [], color=colours[name], marker=MARKERS[i % len(MARKERS)], label=label))
            continue
        fit = last_layer(sweep.slopes, line, column)
        if x_axis.log and len(fit) and fit["slope"].notna().all():
            places, colour = means[x_axis.column].to_numpy(), colours[name]
            fits.append(draw_power(axes, fit.iloc[0], places, x_axis, color=colour, linestyle=FIT_DASHES))
    if not axes.lines and not axes.containers:
        state_nothing(axes, "no usable value")
        return
    axes.margins(y=0.1)
    thin_ticks(axes)
    if fits:
        axes.legend(
            handles=fits, loc="lower left", bbox_to_anchor=(0, 1), frameon=False, borderaxespad=0.1,
            handlelength=1.2, fontsize=7, markerscale=0.5,
        )  # fmt: skip
