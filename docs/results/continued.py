"""Draw docs/results/stationary/continued.png: what L-BFGS in float64 makes of trained networks.

    uv run python docs/results/continued.py

Its points are those of continued.csv, which stages/stationary writes; render.py writes the same numbers into
README.md.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ncpipe.figures.panels import draw_key, key_entry, label_rows, row_grid
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
    """Draw a column per panel: log10 of the loss, NC1, NC2 and NC3 against depth, before and after."""
    colours, found = (FAINT, metric_colours(2)[1]), ends()
    with row_grid(len(COLUMNS), len(PANELS), 1.2, 0.4, sharex=True, sharey="row") as (figure, grid):
        for column, by_end in zip(grid.T, found.values(), strict=True):
            for axes, metric in zip(column, COLUMNS.values(), strict=True):
                for place, rows in enumerate(by_end.values()):
                    values = np.log10(rows[metric])
                    means = values.groupby("depth").mean()
                    axes.plot(means.index, means, color=colours[place], linewidth=1.3)
                    axes.plot(
                        values.index.get_level_values("depth"), values, "o", color=colours[place],
                        markersize=2.5, markerfacecolor="none" if place else None,
                    )  # fmt: skip
                axes.set_xscale("log")
                axes.set_xticks(list(means.index), [str(depth) for depth in means.index])
                axes.minorticks_off()
        label_rows(grid, [rf"$\log_{{10}}$ {title}" for title in COLUMNS], PANELS.values(), "depth $L$")
        last = max(next(iter(found.values())))
        labels = "end of training by Adam", f"after {last} iterations of L-BFGS"
        draw_key(
            figure,
            [key_entry(*pair, marker="o", markersize=3) for pair in zip(labels, colours, strict=True)],
            2,
        )
    return figure


if __name__ == "__main__":
    save_figure(draw(), FOLDER, "continued")
