"""Draw K23's models without networks: a panel each, closed forms as lines, numerical results as points."""

from dataclasses import dataclass
from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ncpipe.study import drawing

COLUMNS = 3
ROW_HEIGHT = 1.85


@dataclass(frozen=True)
class Panel:
    """title; labels of x and y; which axes are logarithmic; series -> label in the legend; limits of y;
    where the legend goes."""

    title: str
    x: str
    y: str
    log: str
    series: dict[str, str]
    limits: tuple[float, float] | None = None
    legend: Literal["best", "lower left"] = "best"


PANELS = {
    "subspace": Panel(
        "flow on $S$ [eq. 19]", "time $t$ (MSE: $t/N$)", "$s(t)$", "", {"se": "squared error", "mse": "MSE"}
    ),
    "strong_collapse": Panel(
        "distance from strong collapse", "size of the start", "at rest", "xy",
        {"A": r"$AA^\top$", "F": "$F$", "b": "$b$"},
    ),
    "margin": Panel(
        "cross-entropy: margin", "time $t$", "share of its bound", "x",
        {"0": "no decay", "0.01": r"$\lambda = 0.01$"},
    ),
    "nc1": Panel(
        "cross-entropy: NC1", "time $t$", "NC1", "xy", {"0": "no decay", "0.01": r"$\lambda = 0.01$"}
    ),
    "balance": Panel(
        "decay: balance of the layers", "time $t$", r"$|A^\top A - FF^\top|$, of its start", "y",
        {"0.01": r"$\lambda = 0.01$", "0.05": r"$\lambda = 0.05$"},
    ),
    "central_path": Panel(
        "central path: NC1", "time $t$", r"$1/\omega^2$", "xy",
        {"tangent": "tangent, $t^{-1/2}$", "whitening": "whitening, $t^{-1}$"},
    ),
    "etf": Panel(
        "locally elastic: NC2", "time $t$", "distance to an ETF", "y",
        {"-0.6": r"$\beta = -0.6$", "-0.3": r"$\beta = -0.3$", "0.3": r"$\beta = 0.3$"},
    ),
    "separability": Panel(
        "locally elastic: separation", "time $t$", r"$\log(|f_i - f_j|/\sqrt{t})$", "x",
        {
            "0.5 0.5": r"$0.5\,t^{-1/2}$", "1 2.6": r"$2.6\,t^{-1}$", "1 2.4": r"$2.4\,t^{-1}$",
            "1.5 9": r"$9\,t^{-3/2}$",
        },
        (-5, 2),  # c/t just above and just below K/2 lie near each other
        "lower left",
    ),
    "minorities": Panel(
        "minority classes' contrast", "imbalance $R$", "share of $W$", "x",
        {"0.02": r"$\lambda = 0.02$", "0.03": r"$\lambda = 0.03$", "0.05": r"$\lambda = 0.05$"},
    ),
    "fixed_etf": Panel(
        "the same, classifier a fixed ETF", "imbalance $R$", "NC2 of features", "x", {"": ""}, (-0.01, 0.1)
    ),
    "supcon": Panel(
        "supervised contrast", r"temperature $\tau$", "least loss", "x",
        {"with i itself": "with $i$ [eq. 32]", "without": "without $i$"},
    ),
    "two_linear": Panel("two linear layers", "strength $c$", "class logit $z$", "", {"z": ""}),
    "batch_norm": Panel("batch norm and ReLU", r"decay $\lambda$", "least loss", "", {"": ""}),
    "narrow": Panel(
        "width $K/2$: cosines", "rank of the pair", "cosine", "",
        {"4": "$K = 4$", "6": "$K = 6$", "8": "$K = 8$"},
    ),
    "smoothing": Panel("label smoothing", r"smoothing $\delta$", "least loss", "", {"": ""}),
}  # fmt: skip


def model_curves(points: pd.DataFrame) -> Figure:
    """Draw a panel for each model with rows; points: panel, series, how, x, y of `k23.curves`."""
    shown = [name for name in PANELS if name in set(points["panel"])]
    with drawing.panel_grid(len(shown), COLUMNS, ROW_HEIGHT) as (figure, grid):
        for axes, name in zip(grid, shown, strict=True):
            _draw(axes, points[points["panel"] == name], PANELS[name])
    return figure


def _draw(axes: Axes, points: pd.DataFrame, panel: Panel) -> None:
    colours = drawing.metric_colours(len(panel.series)) if len(panel.series) > 1 else [drawing.INK]
    for (series, label), colour in zip(panel.series.items(), colours, strict=True):
        rows = points[points["series"].fillna("").astype(str) == series]
        closed, numerical = rows[rows["how"] == "closed"], rows[rows["how"] == "found"]
        lone = len(closed) == 1  # a place that theory names
        if lone:
            axes.axvline(closed["x"].iloc[0], color=colour, linewidth=0.8, linestyle=":")
        elif len(closed):
            axes.plot(closed["x"], closed["y"], color=colour, linewidth=1.2, label=label)
        joined = closed.empty or lone
        axes.plot(
            numerical["x"],
            numerical["y"],
            color=colour,
            marker="o",
            markersize=2.5,
            linewidth=0.8 if joined else 0,
            label=label if joined else None,
        )
    axes.set_title(panel.title)
    axes.set(xlabel=panel.x, ylabel=panel.y)
    if panel.limits:
        axes.set_ylim(*panel.limits)
    drawing.set_log(axes, panel.log)
    if any(panel.series.values()):
        axes.legend(loc=panel.legend, handlelength=1.2, fontsize=7, labelcolor=drawing.INK, borderaxespad=0.2)
    axes.tick_params(colors=drawing.INK)
    axes.xaxis.label.set_color(drawing.INK)
    axes.grid(visible=True, color=drawing.FAINT, alpha=0.2)
