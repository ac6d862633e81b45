"""Draw what several figures share: grids of panels and their key, notes in empty ones, fitted lines, ticks.

`ncpipe.figures.x_axis` has the axis of depths.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ncpipe.figures.labels import Column, slope_label
from ncpipe.figures.style import FAINT, PAGE_WIDTH, lay_out, paper_style
from ncpipe.figures.x_axis import XAxis
from ncpipe.tables.points import LAST

ROW_HEIGHT = 1.65  # inches
DASHES = (0, (3, 1.5))
FIT_DASHES = (0, (4.0, 2.0))  # of a fitted line
ROUNDING = -12.0  # log10 below which a float64 metric of order 1 is nothing but rounding
NOTE: dict[str, Any] = {"color": FAINT, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}}
NO_RUN = "no run used"


def panel_grid(count: int, columns: int, height: float, key: float = 0.0) -> tuple[Figure, list[Axes]]:
    """Return a figure of `count` panels, so many columns of them. height: of a row; key: of the legend.

    Fewer panels than columns make a narrower figure.
    """
    width, columns = PAGE_WIDTH * min(1.0, count / columns), min(count, columns)
    rows = -(-count // columns)
    figure = Figure(figsize=(width, height * rows + key), layout="constrained")
    panels: list[Axes] = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


@contextmanager
def row_grid(
    rows: int,
    columns: int,
    key: float,
    *,
    height: float = ROW_HEIGHT,
    width: float = PAGE_WIDTH,
    sharex: bool = False,
) -> Iterator[tuple[Figure, np.ndarray]]:
    """Set the style for a figure and yield it with its panels (rows, columns); lay it out at the end.

    height: of a row; key: of the legend and the titles, in inches.
    """
    with paper_style():
        figure = Figure(figsize=(width, height * rows + key), layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False, sharex=sharex)
        lay_out(figure)


def draw_key(figure: Figure, handles: Sequence[Artist], columns: int) -> None:
    """Draw a legend of labelled handles below all panels, in so many columns."""
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)


def label_rows(
    grid: np.ndarray, labels: Iterable[str], titles: Iterable[str] = (), x_label: str = ""
) -> None:
    """Write the rows' labels, the columns' titles and the label of the x axis on a grid of panels."""
    for line, label in zip(grid, labels, strict=True):
        line[0].set_ylabel(label, labelpad=6, linespacing=1.25)
    for axes, title in zip(grid[0], titles, strict=False):
        axes.set_title(title)
    for axes in grid[-1] if x_label else ():
        axes.set_xlabel(x_label)
    grid[0, 0].figure.align_ylabels(grid[:, 0])


def last_layer(table: pd.DataFrame, experiment: str, column: Column) -> pd.DataFrame:
    """Return the rows of a column's metric and split at one experiment's last layer."""
    own = (table["experiment"] == experiment) & (table["layer"] == LAST)
    return table[own & (table["split"] == column.split) & (table["metric"] == column.metric)]


def draw_power(
    axes: Axes, fit: pd.Series, places: np.ndarray, x_axis: XAxis, *, mark: str = "", **style: Any
) -> Line2D:
    """Draw a row of `tables.slopes` as a line over the x that it was fitted to, labelled by its slope.

    mark: behind the label.
    """
    ends = np.array([places.min(), places.max()])
    heights = fit["intercept"] + fit["slope"] * np.log10(ends)
    label = slope_label(fit["slope"], fit["low"], fit["high"], x_axis.symbol) + mark
    (line,) = axes.plot(ends, heights, label=label, linewidth=0.9, **style)
    return line


def draw_legend(axes: Axes, lines: list[Line2D], room: float, handlelength: float) -> None:
    """Draw a legend in the upper right corner of a panel, above everything that is drawn.

    room: by which share of its height the panel grows for the legend.
    """
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + room * (high - low))
    axes.legend(handles=lines, loc="upper right", frameon=False, borderaxespad=0.1, handlelength=handlelength)


def state_nothing(axes: Axes, note: str) -> None:
    """Write into an empty panel why it is empty."""
    axes.text(0.5, 0.5, note, transform=axes.transAxes, ha="center", va="center", **NOTE)
    axes.set_yticks([])


def absence(selected: int) -> str:
    """Return why nothing is drawn at a depth with that many selected runs."""
    return "no usable value" if selected else NO_RUN


def state_gap(axes: Axes, place: float, selected: int) -> None:
    """Write where the point of a depth, or other x, would be why there is none."""
    note = absence(selected)
    where = axes.get_xaxis_transform()
    axes.text(place, 0.04, note, transform=where, rotation=90, ha="center", va="bottom", fontsize=7, **NOTE)


def state_missing(
    axes: Axes, x_axis: XAxis, drawn: Iterable[float], selected: Mapping[float, int], top: bool = False
) -> None:
    """Write which depths, or other x, have no line, and why; lower left, or upper right.

    selected: `selected_by_place`.
    """
    missing = {place: absence(count) for place, count in selected.items() if place not in set(drawn)}
    for line, why in enumerate(sorted(set(missing.values()))):
        places = [place for place, reason in missing.items() if reason == why]
        axes.text(
            0.98 if top else 0.02,
            0.97 - 0.12 * line if top else 0.03 + 0.12 * line,
            f"{why}: {x_axis.equal_to(places)}",
            transform=axes.transAxes,
            ha="right" if top else "left",
            va="top" if top else "bottom",
            fontsize=7,
            zorder=1.5,  # above the grid, below the lines
            **NOTE,
        )


def selected_by_place(runs: pd.DataFrame, x_axis: XAxis) -> dict[float, int]:
    """Return how many runs of one line are used at each depth, or other x, in rising order."""
    counts = runs.groupby(x_axis.column)["selected"].sum()
    return {place: int(count) for place, count in zip(counts.index.tolist(), counts, strict=True)}


def has_test(runs: pd.DataFrame) -> bool:
    """Return whether any of these runs had test samples."""
    return bool(runs["test_error"].notna().any())


def start_at_zero(axes: Axes, lines: Iterable[Line2D]) -> None:
    """Let a y axis of shares start at 0, and show lines and markers on it whole."""
    axes.set_ylim(bottom=0)
    for line in lines:
        line.set(clip_on=False, zorder=3)  # above the axis, on which a share of 0 lies


def thin_ticks(axes: Axes) -> None:
    """Put few round values on the y axis of a small panel."""
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, min_n_ticks=3, steps=[1, 2, 5, 10]))
