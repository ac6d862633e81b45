"""Draw networks with a head on data with DNC and SRG of their features model [S24 Fig. 2, 4, 9, 10].

runs: those of a study, with the columns of `ncpipe.papers.s24.tables.heads`; each experiment's values of `at`
are its panels, or the places on its axis. What loses classes or diverges is drawn apart and enters no mean.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullFormatter

from ncpipe.figures.style import FAINT, INK, PAGE_WIDTH, lay_out, metric_colours, paper_style
from ncpipe.papers.s24.figures.low_rank import (
    DNC_DASHES,
    SRG_DASHES,
    count_lost,
    finish,
    layer_name,
    level_handles,
    lost_handle,
    mark_levels,
    value_ticks,
)
from ncpipe.tables.keys import run_keys

KEPT, LOST = metric_colours(2)
FLOOR = 1e-4  # of s_1: what is drawn
MOST = 7  # columns of a legend


def training(history: pd.DataFrame, runs: pd.DataFrame, spread: str, label: str, title: str) -> Figure:
    """Draw loss with the levels, and last-layer NC1, through training: a column for each value.

    spread: a column of `history`, empty where it was not measured. label: of the values. title: of all.
    """
    table = history.merge(runs[[*run_keys(runs), "kept", "at"]], on=run_keys(runs))
    values = sorted(runs["at"].unique())
    with paper_style():
        figure = Figure(figsize=(PAGE_WIDTH, 3.6), layout="constrained")
        grid = figure.subplots(2, len(values), sharex=True, sharey="row", squeeze=False)
        for column, value in enumerate(values):
            own, curves = runs[runs["at"] == value], table[table["at"] == value]
            top, below = grid[:, column]
            for (_, kept), line in curves.groupby(["seed", "kept"]):
                colour = KEPT if kept else LOST
                top.plot(line["epoch"], line["loss"], color=colour, linewidth=0.9, alpha=0.8)
                measured = line[line[spread] > 0] if spread in line else line.iloc[:0]
                below.plot(
                    measured["epoch"], measured[spread] if spread in line else [], ".-", color=colour,
                    linewidth=0.9, markersize=4, alpha=0.8,
                )  # fmt: skip
            mark_levels(top, *own[["loss_dnc", "loss_srg"]].iloc[0])
            top.set_title(f"{label} = {value:g}")
            top.set_ylim(0, 0.65)
            below.set(yscale="log", xlabel="epoch")
        grid[0, 0].set_ylabel("regularised loss")
        grid[1, 0].set_ylabel(r"tr $\Sigma_W$ / tr $\Sigma_B$ of $H_L$")
        levels = [] if runs["loss_dnc"].isna().all() else level_handles()
        finish(figure, [*_colours(runs), *levels], title, MOST)
    return figure


def singular_values(singular: pd.DataFrame, runs: pd.DataFrame, cut: float, label: str, title: str) -> Figure:
    """Draw s_i/s_1 of every layer's class means at the end, of runs that keep their classes.

    cut: the share of s_1 above which a value counts for the rank.
    """
    table = singular.merge(runs[[*run_keys(runs), "kept", "at"]], on=run_keys(runs))
    values, layers = sorted(runs["at"].unique()), list(singular["layer"].unique())
    colours = dict(zip(layers, metric_colours(len(layers)), strict=True))
    with paper_style():
        figure = Figure(figsize=(PAGE_WIDTH, 2.4), layout="constrained")
        panels = figure.subplots(1, len(values), sharey=True, squeeze=False)[0]
        for axes, value in zip(panels, values, strict=True):
            own = table[(table["at"] == value) & table["kept"] & (table["place"] <= 10)]
            for (layer, _), line in own.groupby(["layer", "seed"], sort=False):
                shares = (line["value"] / line["value"].max()).clip(lower=FLOOR)
                axes.plot(line["place"], shares, ".-", color=colours[layer], linewidth=0.6, markersize=3.5)
            axes.axhline(cut, color=INK, linewidth=0.8, linestyle=DNC_DASHES)
            lost = int((~runs[runs["at"] == value]["kept"]).sum())
            if lost:
                axes.annotate(f"{lost} lost", (0.04, 0.04), xycoords="axes fraction", fontsize=7, color=LOST)
            axes.set(yscale="log", ylim=(FLOOR / 1.5, 2), xlim=(0.5, 10.5), title=f"{label} = {value:g}")
            axes.set_xticks([1, 5, 10])
            axes.set_xlabel("place")
        panels[0].set_ylabel("$s_i / s_1$")
        handles = [
            Line2D([], [], color=colour, marker=".", linewidth=0.7, label=layer_name(layer))
            for layer, colour in colours.items()
        ]
        handles.append(Line2D([], [], color=INK, linewidth=0.8, linestyle=DNC_DASHES, label="counts above"))
        finish(figure, handles, title, MOST)
    return figure


def gram_matrices(gram: pd.DataFrame, best: pd.DataFrame, label: str, names: Mapping[str, str]) -> Figure:
    """Draw Gram matrices of M_{L-1} over their mean diagonal, of each best run: a row per experiment.

    names: of experiments, for the rows. Nothing stands where no run keeps its classes.
    """
    columns = max(best.groupby("experiment").size())
    shown = [name for name in names if (best["experiment"] == name).any()]
    with paper_style():
        width = min(PAGE_WIDTH, 1.6 * columns + 1.2)
        figure = Figure(figsize=(width, 1.75 * len(shown) + 0.5), layout="constrained")
        grid = figure.subplots(len(shown), columns, squeeze=False)
        for line, name in zip(grid, shown, strict=True):
            rows = best[best["experiment"] == name].sort_values("at").to_dict("records")
            for axes in line[len(rows) :]:
                axes.set_visible(False)
            for axes, row in zip(line, rows, strict=False):
                own = gram
                for key in run_keys(best):
                    own = own[own[key] == row[key]]
                square = own.pivot(index="row", columns="column", values="value")
                image = axes.imshow(
                    square.to_numpy(), cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest"
                )
                axes.grid(visible=False)
                axes.set(xticks=[], yticks=[], title=f"{label} = {row['at']:g}")
                axes.spines[:].set_visible(True)
                axes.set_xlabel(f"ranks {row['rank_features']:.0f}, {row['ranks_before']}", fontsize=7)
            line[0].set_ylabel(names[name], fontsize=8)
        figure.colorbar(image, ax=grid.ravel().tolist(), shrink=0.6, aspect=18, pad=0.01)
        means = layer_name(gram["layer"].iloc[0])
        title = rf"Gram matrices of {means}, ranks of $M_1$, $\tilde M_2, \ldots$"
        figure.suptitle(title, fontsize=10)
        lay_out(figure)
    return figure


def ranks_by_value(runs: pd.DataFrame, classes: int, label: str, names: Mapping[str, str]) -> Figure:
    """Draw the mean rank of M_2, ..., M_{L-1} against lambda or another key, a panel per experiment."""
    with paper_style():
        figure, panels = _panels(names, 2.3)
        for axes, name in zip(panels, names, strict=True):
            own = runs[runs["experiment"] == name]
            kept = own[own["kept"]]
            axes.plot(kept["at"], kept["mean_rank"], "o", color=KEPT, markersize=4, alpha=0.35, mew=0)
            means = kept.groupby("at")["mean_rank"].mean()
            axes.plot(means.index, means, color=KEPT, linewidth=1.3)
            axes.axhline(classes, color=INK, linewidth=1, linestyle=DNC_DASHES)
            _value_axis(axes, own, label)
            count_lost(axes, own[~own["kept"]].groupby("at").size(), 0.2, above=2)
            axes.set_ylim(0, 1.12 * classes)
            axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
            axes.set_title(names[name])
        panels[0].set_ylabel("mean rank of $M_2, \\ldots, M_{L-1}$")
        handles = [
            Line2D([], [], color=KEPT, linewidth=1.3, label="mean"),
            Line2D([], [], color=KEPT, marker="o", linewidth=0, markersize=4, alpha=0.5, label="runs"),
            Line2D([], [], color=INK, linewidth=1, linestyle=DNC_DASHES, label="K"),
            *lost_handle(runs),
        ]
        finish(figure, handles, "Rank of the head's class means", MOST)
    return figure


def losses_by_value(runs: pd.DataFrame, label: str, names: Mapping[str, str]) -> Figure:
    """Draw loss over L_DNC against lambda or another key, a panel per experiment with such a level.

    Filled: low rank; hollow: all classes, full rank. Those that lose classes stand above, near 1/2.
    """
    with paper_style():
        figure, panels = _panels(names, 2.5)
        for axes, name in zip(panels, names, strict=True):
            own = runs[runs["experiment"] == name].sort_values("at")
            for choice, style in (
                (own["kept"] & own["low_rank"], {"color": KEPT, "marker": "o"}),
                (own["kept"] & ~own["low_rank"], {"color": KEPT, "marker": "o", "markerfacecolor": "none"}),
                (~own["kept"], {"color": LOST, "marker": "x"}),
            ):
                some = own[choice]
                axes.plot(some["at"], some["loss_over_dnc"], linewidth=0, markersize=4.5, **style)  # type: ignore[arg-type]
            levels = own.groupby("at")[["loss_dnc", "loss_srg"]].first()
            axes.axhline(1, color=INK, linewidth=1, linestyle=DNC_DASHES)
            axes.plot(
                levels.index, levels["loss_srg"] / levels["loss_dnc"], color=INK, linewidth=1,
                linestyle=SRG_DASHES,
            )  # fmt: skip
            axes.plot(levels.index, 0.5 / levels["loss_dnc"], color=FAINT, linewidth=0.8)
            _value_axis(axes, own, label)
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.set_yticks([0.8, 1, 1.5, 2, 3, 5], ["0.8", "1", "1.5", "2", "3", "5"])
            axes.set_ylim(0.75, 1.1 * max(1.5, float((0.5 / levels["loss_dnc"]).max())))
            axes.set_title(names[name])
        panels[0].set_ylabel("loss / $L_{DNC}$")
        handles = [
            Line2D([], [], color=KEPT, marker="o", linewidth=0, markersize=4.5, label="low rank"),
            Line2D([], [], color=KEPT, marker="o", linewidth=0, markersize=4.5, markerfacecolor="none",
                   label="rank K"),
            Line2D([], [], color=LOST, marker="x", linewidth=0, markersize=4.5, label="loses classes"),
            *level_handles(),
            Line2D([], [], color=FAINT, linewidth=0.8, label="all zero: 1/2"),
        ]  # fmt: skip
        finish(figure, handles, "Loss against the levels of the head's features model", MOST)
    return figure


def collapse_by_layer(
    spreads: pd.DataFrame, runs: pd.DataFrame, label: str, names: Mapping[str, str]
) -> Figure:
    """Draw tr Sigma_W / tr Sigma_B of H_1, ..., H_L at the end: a panel per experiment, a colour per value.

    spreads: layer (M1, M2, ...) and value for each run that keeps its classes.
    """
    table = spreads.merge(runs[[*run_keys(runs), "kept", "at"]], on=run_keys(runs))
    layers = list(spreads["layer"].unique())
    values = sorted(runs["at"].unique())
    shades = metric_colours(9)
    with paper_style():
        figure, panels = _panels(names, 2.4)
        for axes, name in zip(panels, names, strict=True):
            own = table[(table["experiment"] == name) & table["kept"]]
            for (value, _), line in own.groupby(["at", "seed"]):
                colour = shades[values.index(value) % len(shades)]
                axes.plot(
                    [layers.index(layer) + 1 for layer in line["layer"]], line["value"], ".-", color=colour,
                    linewidth=0.8, markersize=4,
                )  # fmt: skip
            axes.set_yscale("log")
            axes.set_xticks(range(1, len(layers) + 1), [f"$H_{at}$" for at in range(1, len(layers) + 1)])
            axes.set_title(names[name])
        panels[0].set_ylabel(r"tr $\Sigma_W$ / tr $\Sigma_B$")
        handles = [
            Line2D([], [], color=shades[at % len(shades)], marker=".", linewidth=0.8, label=f"{value:g}")
            for at, value in enumerate(values)
        ]
        finish(figure, handles, f"Collapse (DNC1) by layer of the head, for each {label}", MOST)
    return figure


def _panels(names: Mapping[str, str], height: float) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(PAGE_WIDTH, height + 0.4), layout="constrained")
    return figure, figure.subplots(1, len(names), sharey=True, squeeze=False)[0].tolist()


def _value_axis(axes: Axes, runs: pd.DataFrame, label: str) -> None:
    values = sorted(runs["at"].unique())
    value_ticks(axes, values, fontsize=7)
    spread = np.log2(values[-1] / values[0]) if len(values) > 1 else 1.0
    axes.set_xlim(values[0] * 2 ** (-0.08 * spread - 0.02), values[-1] * 2 ** (0.08 * spread + 0.02))
    axes.set_xlabel(label)


def _colours(runs: pd.DataFrame) -> list[Line2D]:
    handles = [Line2D([], [], color=KEPT, linewidth=0.9, label="a run")]
    if not runs["kept"].all():
        handles.append(Line2D([], [], color=LOST, linewidth=0.9, label="a run that loses classes"))
    return handles
