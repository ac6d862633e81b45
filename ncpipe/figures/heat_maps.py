"""Cosines between class means, and between the classifier's rows and them, as matrices."""

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure

from ncpipe.figures.drawing import NO_RUN, draw_image, label_rows, row_grid, state_nothing
from ncpipe.figures.x_axis import XAxis, x_axis_of
from ncpipe.tables.keys import of_selected

ROW_HEIGHT = 1.75  # inches
MATRICES = {"means": "class means", "duality": "$W$ with means"}
LEAST_RANGE = 0.1  # cosines: below it, a collapsed matrix would show rounding in full colour


def heat_maps(
    gram: pd.DataFrame, runs: pd.DataFrame, labels: Mapping[str, str], no_simplex: Collection[str] = ()
) -> Figure:
    """Draw cosines of centred class means, and of W_i with them, at the shallowest and the deepest L.

    gram: experiment, depth, seed, matrix (`means` or `duality`), row, column, value. runs: with selected;
    the run shown is the selected one of the lowest seed. labels: experiment -> row label, in the order of
    the rows. no_simplex: experiments of more than d + 1 classes, whose colour bar does not name an ETF. A
    simplex ETF has -1/(K-1) off the diagonal and 1 on it. White is -1/(K-1) and the colours
    reach as far on both sides as the row's off-diagonal cosines do, so that those are told apart; the
    diagonal is beyond the bar and is stated below each matrix, with mean and std off the diagonal.
    """
    x_axis, table = x_axis_of(runs), of_selected(gram, runs)
    with row_grid(len(labels), 2 * len(MATRICES), key=0.2, height=ROW_HEIGHT) as (figure, grid):
        for line, name in zip(grid, labels, strict=True):
            _draw_row(
                figure, line, table[table["experiment"] == name], x_axis, simplex=name not in no_simplex
            )
        label_rows(grid, labels.values())
    return figure


def _draw_row(figure: Figure, line: np.ndarray, gram: pd.DataFrame, x_axis: XAxis, simplex: bool) -> None:
    shown = _column_matrices(gram, x_axis)
    if not shown:
        for axes in line:
            axes.set_xticks([])
            state_nothing(axes, NO_RUN)
        return
    norm = _norm([matrix for _, _, matrix in shown.values()])
    for place, axes in enumerate(line):
        if place in shown:
            _draw_matrix(axes, *shown[place], norm)
        else:
            axes.set_visible(False)
    (image,) = line[min(shown)].images
    bar = figure.colorbar(image, ax=line.tolist(), extend="max", shrink=0.8, aspect=14, pad=0.015)
    etf = norm.vcenter
    low, high = max(etf - norm.halfrange, -1), etf + norm.halfrange  # there is no cosine below -1
    bar.ax.set_ylim(low, high)
    ticks = {low: _number(low), etf: f"{'ETF ' * simplex}{_number(etf)}", high: _number(high)}
    bar.set_ticks(list(ticks), labels=list(ticks.values()))
    bar.ax.tick_params(labelsize=7)


def _column_matrices(gram: pd.DataFrame, x_axis: XAxis) -> dict[int, tuple[str, str, np.ndarray]]:
    """Return by column of the figure a title, the value of the x axis and the matrix (K, K)."""
    shown = {}
    ends = sorted({gram[x_axis.column].min(), gram[x_axis.column].max()}) if len(gram) else []
    for i, matrix in enumerate(MATRICES):
        for j, end in enumerate(ends):
            rows = gram[(gram[x_axis.column] == end) & (gram["matrix"] == matrix)]
            if len(rows):
                first = rows[rows["seed"] == rows["seed"].min()]
                square = first.pivot(index="row", columns="column", values="value").to_numpy()
                shown[2 * i + j] = (MATRICES[matrix], x_axis.equal_to([end]).replace(" ", ""), square)
    return shown


def _norm(matrices: list[np.ndarray]) -> CenteredNorm:
    etf = -1 / (len(matrices[0]) - 1)
    apart = np.abs(np.concatenate([_off_diagonal(matrix) for matrix in matrices]) - etf)
    reach = apart.max(where=np.isfinite(apart), initial=0)  # W = 0 has no cosines
    return CenteredNorm(etf, max(np.ceil(20 * reach) / 20, LEAST_RANGE))


def _draw_matrix(axes: Axes, title: str, where: str, matrix: np.ndarray, norm: CenteredNorm) -> None:
    beside = _off_diagonal(matrix)
    elsewhere = f"elsewhere {_number(beside.mean())} ± {beside.std():.2f}"
    draw_image(axes, matrix, norm)
    axes.set_title(f"{title}, {where}", fontsize=9)
    axes.set_xlabel(f"diagonal {_number(np.diag(matrix).mean())}\n{elsewhere}", fontsize=7.5)
    ends = [0, len(matrix) - 1]
    axes.set_yticks(ends, [str(end) for end in ends])
    axes.tick_params(length=2, labelsize=7)


def _number(value: float) -> str:
    return f"{value:z.2f}".replace("-", "\N{MINUS SIGN}")


def _off_diagonal(matrix: np.ndarray) -> np.ndarray:
    return matrix[~np.eye(len(matrix), dtype=bool)]
