"""Singular values of the class means and of the classifier, a line per depth."""

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ncpipe.figures import drawing
from ncpipe.figures.style import FAINT, INK, PAGE_WIDTH, Colour, depth_colours
from ncpipe.figures.x_axis import XAxis, x_axis_of
from ncpipe.tables.keys import of_selected, run_keys, setting_keys
from ncpipe.tables.points import LAST

COLUMNS = {"means": "train", "weights": "weights"}
TITLES = {"means": "uncentred class means, train", "weights": r"last-layer weights $W$"}
FLOOR = 0.05  # of the largest: where panels end, unless a value that collapse keeps is below it
LEAST = 1e-16  # float64 rounding of the largest, so that an exact 0 has a logarithm


def spectra(
    measurements: pd.DataFrame,
    runs: pd.DataFrame,
    labels: Mapping[str, str],
    no_simplex: Collection[str] = (),
) -> Figure:
    """Draw s_i/s_1 against i for the last layer's train class means and for W, on a log axis.

    runs: with selected, loss_name and last_bias. labels: experiment -> row label, in the order of the rows.
    no_simplex: experiments of more than d + 1 classes, which have no collapsed spectrum.
    Lines are geometric means over the seeds used; panels say which depths have none. The dashed line is the
    collapsed spectrum (for d >= K): K-1 equal values and a zero, or K equal ones for MSE without a bias,
    whose optimum is orthogonal [S25 Def. 3.4 NC2A, NC2B]. The means are not centred: a mean of all classes
    adds to them. Panels end at 0.05 of the largest value, or below the least one that collapse keeps. The
    line of the value that goes to 0 leaves there, and a note has the least such value.
    """
    table = _spectra(measurements, runs)
    x_axis = x_axis_of(runs)
    colours = depth_colours(table[x_axis.column])
    with drawing.row_grid(len(labels), len(COLUMNS), key=0.75, width=0.75 * PAGE_WIDTH) as (figure, grid):
        for line, name in zip(grid, labels, strict=True):
            line_spectra, line_runs = table[table["experiment"] == name], runs[runs["experiment"] == name]
            for axes, matrix in zip(line, COLUMNS, strict=True):
                rows = line_spectra[line_spectra["matrix"] == matrix]
                selected = drawing.selected_by_place(line_runs, x_axis)
                equal = None if name in no_simplex or line_spectra.empty else _equal(line_spectra, line_runs)
                _draw_panel(axes, rows, x_axis, colours, selected, equal)
        titles = [f"$s_i/s_1$ of {TITLES[matrix]}" for matrix in COLUMNS]
        drawing.label_rows(grid, labels.values(), titles, "index $i$")
        _draw_key(figure, x_axis, colours, collapsed=not set(labels) <= set(no_simplex))
    return figure


def _spectra(measurements: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return experiment, depth, matrix, index, log10: the mean over the seeds used of log10 s_i/s_1."""
    measurements = measurements.reset_index(drop=True)
    names = measurements["metric"].str.extract(r"^singular_(?P<matrix>means|weights)_(?P<index>\d+)$")
    keys = run_keys(runs)
    rows = measurements[[*keys, "layer", "split", "value"]].join(names)
    rows = rows[
        (rows["layer"] == LAST) & rows["matrix"].notna() & (rows["split"] == rows["matrix"].map(COLUMNS))
    ]
    rows = of_selected(rows.astype({"index": int}), runs)
    largest = rows.groupby([*keys, "matrix"])["value"].transform("max")
    rows = rows[largest > 0].assign(log10=np.log10(np.maximum(rows["value"] / largest, LEAST)))
    return rows.groupby([*setting_keys(runs), "matrix", "index"], as_index=False).agg(log10=("log10", "mean"))


def _equal(spectra: pd.DataFrame, runs: pd.DataFrame) -> int:
    """Return how many singular values are equal at collapse: K, or K-1 where a simplex is asked for."""
    orthogonal = runs["loss_name"].iloc[0] == "mse" and not runs["last_bias"].iloc[0]
    return int(spectra["index"].max()) - (not orthogonal)


def _draw_panel(
    axes: Axes,
    spectra: pd.DataFrame,
    x_axis: XAxis,
    colours: Mapping[float, Colour],
    selected: Mapping[float, int],
    equal: int | None,
) -> None:
    if spectra.empty:
        drawing.state_absence(axes, selected)
        return
    classes = int(spectra["index"].max())
    for _, table in spectra.groupby(x_axis.column):
        axes.plot(
            table["index"],
            10 ** table["log10"],
            color=colours[table[x_axis.column].iloc[0]],
            marker="o",
            markersize=2.5,
            linewidth=1.1,
        )
    if equal is not None:
        axes.plot([1, equal], [1, 1], color=INK, linestyle=drawing.FIT_DASHES, linewidth=0.9, zorder=3)
    drawing.set_log(axes, "y")
    kept = spectra.loc[spectra["index"] <= (equal or max(classes - 1, 1)), "log10"].min()
    axes.set_ylim(min(10**kept / 1.5, FLOOR), 1.4)
    _state_lowest(axes, spectra)
    axes.set_xlim(0.6, classes + 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    drawing.state_missing(axes, x_axis, spectra[x_axis.column], selected)


def _state_lowest(axes: Axes, spectra: pd.DataFrame) -> None:
    """Write beside a line that leaves the panel the least value that is below it."""
    below = spectra[10 ** spectra["log10"] < axes.get_ylim()[0]]
    for index in below["index"].unique():
        table = below[below["index"] == index]
        label = rf"$\downarrow$ to {_rounded(10 ** table['log10'].min())}"
        where = (index - 1.1, 0.06)
        axes.annotate(label, where, xycoords=axes.get_xaxis_transform(), ha="right", fontsize=7, color=FAINT)


def _rounded(value: float) -> str:
    """Return one significant digit, as a power of ten below 0.001; in mathtext."""
    digit, power = f"{value:.0e}".split("e")
    return f"{value:.1g}" if value >= 1e-3 else rf"${digit}\cdot 10^{{{int(power)}}}$"


def _draw_key(figure: Figure, x_axis: XAxis, colours: Mapping[float, Colour], collapsed: bool) -> None:
    handles = x_axis.handles(colours)
    if collapsed:
        handles.append(drawing.key_entry("collapsed", linestyle=drawing.FIT_DASHES, linewidth=0.9))
    drawing.draw_key(figure, handles, 4)
