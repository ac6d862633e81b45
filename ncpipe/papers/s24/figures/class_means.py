"""Draw class means of low-rank solutions as images, with their Gram matrices [S24 Fig. 1, 5-8].

means: columns of `papers.s24.head_columns.mean_rows` (layer, class, unit, value), and experiment.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from ncpipe.papers.s24.figures.low_rank import FLOOR, layer_name, mark_levels, place_name, singular_lines
from ncpipe.study import drawing

SILENT = 1e-3  # of the largest entry: units that stay below it are left out
TERMS = {"loss": "loss", "penalty": "penalty", "fit": "error"}
DEEP = 6  # layers from which on the first and the last ReLU are shown in place of a Gram matrix


def class_means(means: pd.DataFrame, rows: Mapping[str, str], title: str) -> Figure:
    """Draw M_{L-1} and M~_L, each with its Gram matrix, a row for each experiment [Fig. 1, 5].

    rows: a label for each experiment. A column is a class. Units that respond to no class are left out, the
    others are ordered by the classes that they respond to. Colours go from minus to plus the largest entry;
    Gram matrices are divided by their mean diagonal.
    """
    with drawing.row_grid(len(rows), 4, 1.45, key=0.6, title=title) as (figure, grid):
        for index, (line, (name, label)) in enumerate(zip(grid, rows.items(), strict=True)):
            run_means = means[means["experiment"] == name]
            depth = int(run_means["layer"].str.removeprefix("~").str[1:].astype(int).max())
            for at, layer in enumerate((f"M{depth - 1}", f"~M{depth}")):
                matrix = matrix_of(run_means, layer)
                show_means(line[2 * at], matrix)
                line[2 * at].set_box_aspect(1)
                image = show_gram(line[2 * at + 1], matrix)
                if index == 0:
                    line[2 * at].set_title(layer_name(layer))
                    line[2 * at + 1].set_title(f"Gram of {layer_name(layer)}")
            line[0].set_ylabel(label, fontsize=8)
        figure.colorbar(image, ax=grid.ravel().tolist(), shrink=0.6 / len(rows) ** 0.5, aspect=18, pad=0.02)
    return figure


def run_figure(
    history: pd.DataFrame, singular: pd.DataFrame, means: pd.DataFrame, run: Mapping[Any, Any]
) -> Figure:
    """Draw one run: loss by terms through training, singular values by layer, class means [Fig. 5-8].

    history, singular, means: of this run alone. run: its row, with loss_dnc, loss_srg, ranks, structure.
    Up to five layers the matrices are the Gram matrix of M~_{L-1}, M~_{L-1} and M~_L, beyond it M~_2,
    M~_{L-1} and M_{L-1}, which differ.
    """
    depth = int(run["depth"])
    inner = f"~M{depth - 1}"
    share = f"{run['loss_over_dnc']:.4f} of DNC"
    title = f"{place_name(run)}: ranks {run['ranks']}, {share}, {run['structure']}"
    with drawing.row_grid(2, 3, 2.15, title=title) as (figure, panels):
        grid = panels.ravel()
        if depth < DEEP:
            show_gram(grid[0], matrix_of(means, inner))
            grid[0].set_title(f"Gram of {layer_name(inner)}")
        shown = [inner, f"~M{depth}"] if depth < DEEP else ["~M2", inner, f"M{depth - 1}"]
        for axes, layer in zip(grid[3 - len(shown) : 3], shown, strict=True):
            show_means(axes, matrix_of(means, layer))
            axes.set_title(layer_name(layer))
            axes.set_xlabel("class")
        _loss_by_terms(grid[3], history, run)
        for axes, before, where in ((grid[4], True, "before"), (grid[5], False, "after")):
            layers = singular["layer"].unique()
            _singular_values(axes, singular, [layer for layer in layers if (layer[0] == "~") == before])
            axes.set_title(f"{where} the ReLU")
    return figure


def matrix_of(means: pd.DataFrame, layer: str) -> np.ndarray:
    """Return class means of one layer as a matrix (units, K), units in the order of the network."""
    layer_means = means[means["layer"] == layer]
    matrix: np.ndarray = layer_means.pivot(index="unit", columns="class", values="value").to_numpy()
    return matrix


def ordered(matrix: np.ndarray) -> np.ndarray:
    """Return the units (rows) that respond to some class, those with the same classes side by side."""
    size = np.abs(matrix).max()
    loud = matrix[np.abs(matrix).max(axis=1) > SILENT * size]
    order = np.lexsort((np.abs(loud) > 0.3 * np.abs(loud).max(axis=1, keepdims=True)).T[::-1].astype(int))
    rows: np.ndarray = loud[order[::-1]]
    return rows


def show_means(axes: Axes, matrix: np.ndarray) -> AxesImage:
    """Draw a matrix of class means (units, K) as an image with colours symmetric about 0."""
    rows = ordered(matrix)
    size = np.abs(rows).max() if rows.size else 1.0
    return drawing.draw_image(axes, rows, Normalize(-size, size), aspect="auto")


def show_gram(axes: Axes, matrix: np.ndarray) -> AxesImage:
    """Draw the Gram matrix of the class means, the columns of (units, K), over its mean diagonal."""
    gram = matrix.T @ matrix
    image = drawing.draw_image(axes, gram / np.diagonal(gram).mean(), Normalize(-1, 1), aspect="auto")
    axes.set_box_aspect(1)
    return image


def _loss_by_terms(axes: Axes, history: pd.DataFrame, run: Mapping[Any, Any]) -> None:
    """Draw loss, error and penalty against the step, and the levels."""
    rows = history[history["epoch"] > 0]
    colours = drawing.metric_colours(3)
    for (column, label), colour in zip(TERMS.items(), colours, strict=True):
        axes.plot(rows["epoch"], rows[column], color=colour, linewidth=1.2, label=label)
    mark_levels(axes, run["loss_dnc"], run["loss_srg"], label=True)
    axes.set(xscale="log", xlabel="step", ylim=(0, 1.6 * run["loss_dnc"]), title="loss by its terms")
    axes.legend(fontsize=7, ncols=2, loc="best", handlelength=1.4, columnspacing=1)


def _singular_values(axes: Axes, singular: pd.DataFrame, layers: Sequence[str]) -> None:
    colours = drawing.metric_colours(
        int(singular["layer"].str.removeprefix("~").str[1:].astype(int).max()) - 1
    )
    singular_lines(axes, singular, {layer: colours[int(layer.removeprefix("~")[1:]) - 2] for layer in layers})
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(yscale="log", ylim=(FLOOR / 2, 3), xlabel="place", ylabel=r"$s_i / s_1$")
    axes.legend(fontsize=7, loc="lower left", handlelength=1.2)
