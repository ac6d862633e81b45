"""Draw small multiples: the grid of panels and the key of every figure, and what several of them have inside.

`ncpipe.figures.x_axis` has the axis of depths.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from ncpipe.figures.labels import Column
from ncpipe.figures.labels import by_experiment as by_experiment
from ncpipe.figures.labels import caption as caption
from ncpipe.figures.labels import row_label as row_label
from ncpipe.figures.style import FAINT as FAINT
from ncpipe.figures.style import INK as INK
from ncpipe.figures.style import PAGE_WIDTH as PAGE_WIDTH
from ncpipe.figures.style import Colour as Colour
from ncpipe.figures.style import metric_colours as metric_colours
from ncpipe.figures.style import paper_style
from ncpipe.figures.x_axis import XAxis
from ncpipe.system.errors import InputError, shown
from ncpipe.tables.keys import rows_at
from ncpipe.tables.points import LAST

ROW_HEIGHT = 1.65  # inches
DASHES = (0, (3, 1.5))
FIT_DASHES = (0, (4.0, 2.0))  # of a fitted line
ROUNDING = -12.0  # log10 below which a float64 metric of order 1 is nothing but rounding
NOTE: dict[str, Any] = {"color": FAINT, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}}
NO_RUN = "no run used"
SHORT = 100.0  # the ends of a logarithmic axis that has numbers between powers of ten


@contextmanager
def row_grid(
    rows: int,
    columns: int,
    height: float = ROW_HEIGHT,
    key: float = 0.0,
    *,
    width: float = PAGE_WIDTH,
    title: str = "",
    sharex: bool = False,
    sharey: Literal[False, "row"] = False,
) -> Iterator[tuple[Figure, np.ndarray]]:
    """Set the style for a figure and yield it with its panels (rows, columns); lay it out at the end.

    height: of a row; key: of the legend and the titles, in inches. Raises InputError for a text with a
    formula that matplotlib cannot draw.
    """
    with paper_style():
        figure = Figure(figsize=(width, height * rows + key), layout="constrained")
        if title:
            figure.suptitle(title, fontsize=10)
        yield figure, figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey)
        if (engine := figure.get_layout_engine()) is not None:
            with _drawable():
                engine.execute(figure)  # in half the time of drawing


@contextmanager
def _drawable() -> Iterator[None]:
    """Make one line of the error of a formula between dollars, which quotes the text."""
    try:
        yield
    except ValueError as error:
        if not type(error.__context__).__module__.startswith("pyparsing"):
            raise
        text, *_ = filter(None, map(str.strip, str(error).splitlines()))
        raise InputError(
            f"{shown(text)}: a formula that cannot be drawn; close its braces, or write \\$ for a dollar"
        ) from None


@contextmanager
def panel_grid(
    count: int, columns: int, height: float, key: float = 0.0, title: str = ""
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Yield a figure with so many panels in rows, as `row_grid` does; fewer than a row make it narrower."""
    across = min(count, columns)
    width = PAGE_WIDTH * across / columns
    with row_grid(-(-count // across), across, height, key, width=width, title=title) as (figure, grid):
        for axes in grid.flat[count:]:
            axes.set_visible(False)
        yield figure, grid.flat[:count].tolist()


def key_entry(label: str, color: Colour | str = INK, **style: Any) -> Line2D:
    """Return an entry of a legend, drawn as the lines and markers of this style are."""
    return Line2D([], [], color=color, label=label, **style)


def draw_key(figure: Figure, handles: Sequence[Artist], columns: int) -> None:
    """Draw a legend of labelled handles below all panels, in at most so many columns."""
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def set_log(axes: Axes, names: str, scale: str = "log") -> None:
    """Make axes named x or y logarithmic, with numbers at powers of ten alone."""
    for name in names:
        axes.set(**{f"{name}scale": scale})
        getattr(axes, f"{name}axis").set_minor_formatter(NullFormatter())


def number_short_logs(axes: Axes) -> None:
    """Put numbers at 1, 2 and 5 times the powers of ten on logarithmic axes of less than two decades.

    Call it when everything is drawn.
    """
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        if (
            axis.get_scale() == "log"
            and high < SHORT * low
            and not isinstance(axis.get_major_locator(), FixedLocator)
        ):
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def draw_means(axes: Axes, x: Any, mean: Any, std: Any, **style: Any) -> Line2D:
    """Draw means with bars and return their line; std: one deviation, or both reaches of the bars (2, n)."""
    usual: dict[str, Any] = {
        "marker": "o",
        "markersize": 3,
        "linewidth": 1.3,
        "elinewidth": 0.9,
        "capsize": 2,
    }
    line: Line2D = axes.errorbar(x, mean, yerr=std, **(usual | style)).lines[0]
    return line


def draw_image(axes: Axes, matrix: np.ndarray, norm: Normalize, **more: Any) -> AxesImage:
    """Draw a matrix of signed values in a frame without ticks."""
    image = axes.imshow(matrix, cmap="RdBu_r", norm=norm, interpolation="nearest", **more)
    axes.grid(visible=False)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(True)
    return image


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
    keys = {"experiment": experiment, "layer": LAST, "split": column.split, "metric": column.metric}
    return rows_at(table, keys)


def draw_legend(axes: Axes, lines: list[Line2D], room: float, handlelength: float) -> None:
    """Draw a legend in the upper right corner of a panel, above everything that is drawn.

    room: by which share of its height the panel grows for the legend.
    """
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + room * (high - low))
    axes.legend(handles=lines, loc="upper right", borderaxespad=0.1, handlelength=handlelength)


def state_nothing(axes: Axes, note: str) -> None:
    """Write into an empty panel why it is empty."""
    axes.text(0.5, 0.5, note, transform=axes.transAxes, ha="center", va="center", **NOTE)
    axes.set_yticks([])


def state_absence(axes: Axes, selected: Mapping[float, int]) -> None:
    """Write into an empty panel why its line has no value; selected: `selected_by_place`."""
    axes.set_xticks([])
    state_nothing(axes, absence(sum(selected.values())))


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
