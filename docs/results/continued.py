"""Draw docs/results/stationary/continued.png: what L-BFGS in float64 makes of trained networks.

    uv run python docs/results/continued.py

Its points are those of continued.csv, which stages/stationary writes; render.py writes the same numbers into
README.md.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ncpipe.figures.drawing import DASHES, draw_key, key_entry, label_rows, row_grid
from ncpipe.figures.save import save_figure
from ncpipe.figures.style import FAINT, metric_colours

FOLDER = Path(__file__).resolve().parent / "stationary"
PANELS = {
    "cifar10_rn1": "L-RN1, CIFAR-10",
    "mnist_rn1": "L-RN1, MNIST",
    "mnist_rn2": r"L-RN2, $\lambda/L$",
    "mnist_rn2_uniform": r"L-RN2, all $\lambda/L$",
    "mnist_rn2_constant": r"L-RN2, $\lambda$ constant",
}
COLUMNS = {"loss": "loss", "NC1": "nc1_trace_ratio", "NC2": "nc2_etf", "NC3": "nc3_cosine"}


def ends() -> dict[str, dict[int, pd.DataFrame]]:
    """Return by panel and number of iterations, 0 and the last, the rows with an index of depth and seed."""
    rows = pd.read_csv(FOLDER / "continued.csv")
    last = rows["iterations"].max()
    return {
        name: {
            n: own[own["iterations"] == n].set_index(["depth", "seed"]).sort_index() for n in (0, int(last))
        }
        for name in PANELS
        for own in [rows[rows["experiment"] == name]]
    }


def draw() -> Figure:
    """Draw what L-BFGS leaves of the loss, NC1, NC2 and NC3 of each run against depth, a column per panel."""
    colours = metric_colours(len(COLUMNS))
    with row_grid(len(COLUMNS), len(PANELS), 1.2, 0.4, sharex=True, sharey="row") as (figure, grid):
        for column, (before, after) in zip(grid.T, map(dict.values, ends().values()), strict=True):
            for axes, metric, colour in zip(column, COLUMNS.values(), colours, strict=True):
                ratios = after[metric] / before[metric]
                means = np.exp(np.log(ratios).groupby("depth").mean())
                axes.axhline(1, color=FAINT, linewidth=0.8, linestyle=DASHES)
                axes.plot(means.index, means, color=colour, linewidth=1.3)
                axes.plot(
                    ratios.index.get_level_values("depth"), ratios, "o", color=colour, markersize=2.5,
                    markerfacecolor="none",
                )  # fmt: skip
                axes.set_xscale("log")
                axes.set_xticks(list(means.index), [str(depth) for depth in means.index])
                axes.minorticks_off()
        label_rows(grid, COLUMNS, PANELS.values(), "depth $L$")
        last = max(next(iter(ends().values())))
        label = f"value after {last} iterations of L-BFGS, over that at the end of training by Adam"
        mark = key_entry(
            f"{label}: runs and their geometric mean", marker="o", markersize=3, markerfacecolor="none"
        )
        draw_key(figure, [mark], 1)
    return figure


if __name__ == "__main__":
    save_figure(draw(), FOLDER, "continued")
