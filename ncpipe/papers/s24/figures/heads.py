"""Draw networks with a head on data with DNC and SRG of their features model [S24 Fig. 2, 4, 9, 10].

runs: those of a study, with the columns of `ncpipe.papers.s24.tables.heads`; each experiment's values of `at`
are its panels, or the places on its axis. What loses classes or diverges is drawn apart and enters no mean.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from ncpipe.papers.s24.figures.low_rank import (
    DNC_DASHES,
    SRG_DASHES,
    count_lost,
    draw_ranks,
    layer_name,
    level_handles,
    mark_levels,
    rank_handles,
    value_ticks,
)
from ncpipe.papers.s24.tables.low_rank import run_keys
from ncpipe.study import drawing

KEPT, LOST = drawing.metric_colours(2)
FLOOR = 1e-4  # of s_1: what is drawn
MOST = 7  # columns of a legend
ENDS: dict[str, dict[str, Any]] = {  # of a run, and how it is drawn
    "low rank": {"color": KEPT, "marker": "o"},
    "rank K": {"color": KEPT, "marker": "o", "markerfacecolor": "none"},
    "loses classes": {"color": LOST, "marker": "x"},
}


def training(history: pd.DataFrame, runs: pd.DataFrame, spread: str, label: str, title: str) -> Figure:
    """Draw loss with the levels, and last-layer NC1, through training: a column for each value.

    spread: a column of `history`, empty where it was not measured. label: of the values. title: of all.
    """
    table = history.merge(runs[[*run_keys(runs), "kept", "at"]], on=run_keys(runs))
    values = sorted(runs["at"].unique())
    with drawing.row_grid(2, len(values), 1.8, title=title, sharex=True, sharey="row") as (figure, grid):
        for column, value in enumerate(values):
            group, curves = runs[runs["at"] == value], table[table["at"] == value]
            top, below = grid[:, column]
            for (_, kept), line in curves.groupby(["seed", "kept"]):
                colour = KEPT if kept else LOST
                top.plot(line["epoch"], line["loss"], color=colour, linewidth=0.9, alpha=0.8)
                measured = line[line[spread] > 0] if spread in line else line.iloc[:0].assign(**{spread: 0.0})
                style = {"color": colour, "linewidth": 0.9, "markersize": 4, "alpha": 0.8}
                below.plot(measured["epoch"], measured[spread], ".-", **style)
            mark_levels(top, *group[["loss_dnc", "loss_srg"]].iloc[0])
            top.set_title(f"{label} = {value:g}")
            top.set_ylim(0, 0.65)
            below.set(yscale="log", xlabel="epoch")
        grid[0, 0].set_ylabel("regularised loss")
        grid[1, 0].set_ylabel(r"tr $\Sigma_W$ / tr $\Sigma_B$ of $H_L$")
        handles = [drawing.key_entry("a run", KEPT, linewidth=0.9)]
        if not runs["kept"].all():
            handles.append(drawing.key_entry("a run that loses classes", LOST, linewidth=0.9))
        levels = [] if runs["loss_dnc"].isna().all() else level_handles()
        drawing.draw_key(figure, [*handles, *levels], MOST)
    return figure


def singular_values(singular: pd.DataFrame, runs: pd.DataFrame, cut: float, label: str, title: str) -> Figure:
    """Draw s_i/s_1 of every layer's class means at the end, of runs that keep their classes.

    cut: the share of s_1 above which a value counts for the rank.
    """
    table = singular.merge(runs[[*run_keys(runs), "kept", "at"]], on=run_keys(runs))
    values, layers = sorted(runs["at"].unique()), list(singular["layer"].unique())
    colours = dict(zip(layers, drawing.metric_colours(len(layers)), strict=True))
    with drawing.row_grid(1, len(values), 2.4, title=title, sharey="row") as (figure, (panels,)):
        for axes, value in zip(panels, values, strict=True):
            points = table[(table["at"] == value) & table["kept"] & (table["place"] <= 10)]
            for (layer, _), line in points.groupby(["layer", "seed"], sort=False):
                shares = (line["value"] / line["value"].max()).clip(lower=FLOOR)
                axes.plot(line["place"], shares, ".-", color=colours[layer], linewidth=0.6, markersize=3.5)
            axes.axhline(cut, color=drawing.INK, linewidth=0.8, linestyle=DNC_DASHES)
            if lost := int((~runs[runs["at"] == value]["kept"]).sum()):
                axes.annotate(f"{lost} lost", (0.04, 0.04), xycoords="axes fraction", fontsize=7, color=LOST)
            axes.set(yscale="log", ylim=(FLOOR / 1.5, 2), xlim=(0.5, 10.5), title=f"{label} = {value:g}")
            axes.set_xticks([1, 5, 10])
            axes.set_xlabel("place")
        panels[0].set_ylabel("$s_i / s_1$")
        handles = [
            drawing.key_entry(layer_name(layer), colour, marker=".", linewidth=0.7)
            for layer, colour in colours.items()
        ]
        handles.append(drawing.key_entry("counts above", linewidth=0.8, linestyle=DNC_DASHES))
        drawing.draw_key(figure, handles, MOST)
    return figure


def gram_matrices(gram: pd.DataFrame, best: pd.DataFrame, label: str, names: Mapping[str, str]) -> Figure:
    """Draw Gram matrices of M_{L-1} over their mean diagonal, of each best run: a row per experiment.

    names: of experiments, for the rows. Nothing stands where no run keeps its classes.
    """
    columns = max(best.groupby("experiment").size())
    shown = [name for name in names if (best["experiment"] == name).any()]
    width = min(drawing.PAGE_WIDTH, 1.6 * columns + 1.2)
    means = layer_name(gram["layer"].iloc[0])
    title = rf"Gram matrices of {means}, ranks of $M_1$, $\tilde M_2, \ldots$"
    with drawing.row_grid(len(shown), columns, 1.75, key=0.5, width=width, title=title) as (figure, grid):
        for line, name in zip(grid, shown, strict=True):
            rows = best[best["experiment"] == name].sort_values("at").to_dict("records")
            for axes in line[len(rows) :]:
                axes.set_visible(False)
            for axes, row in zip(line, rows, strict=False):
                entries = gram
                for key in run_keys(best):
                    entries = entries[entries[key] == row[key]]
                square = entries.pivot(index="row", columns="column", values="value")
                image = drawing.draw_image(axes, square.to_numpy(), Normalize(-1, 1))
                axes.set_title(f"{label} = {row['at']:g}")
                axes.set_xlabel(f"ranks {row['rank_features']:.0f}, {row['ranks_before']}", fontsize=7)
            line[0].set_ylabel(names[name], fontsize=8)
        figure.colorbar(image, ax=grid.ravel().tolist(), shrink=0.6, aspect=18, pad=0.01)
    return figure


def ranks_by_value(runs: pd.DataFrame, classes: int, label: str, names: Mapping[str, str]) -> Figure:
    """Draw the mean rank of M_2, ..., M_{L-1} against lambda or another key, a panel per experiment."""
    ylabel = r"mean rank of $M_2, \ldots, M_{L-1}$"
    with _panels(names, 2.3, "Rank of the head's class means", ylabel) as (figure, panels):
        for name, axes in panels.items():
            group = runs[runs["experiment"] == name]
            draw_ranks(axes, group, "at", classes, alpha=0.35)
            _value_axis(axes, group, label)
            count_lost(axes, group[~group["kept"]].groupby("at").size(), 0.2, above=2)
        drawing.draw_key(figure, rank_handles(runs), MOST)
    return figure


def losses_by_value(runs: pd.DataFrame, label: str, names: Mapping[str, str]) -> Figure:
    """Draw loss over L_DNC against lambda or another key, a panel per experiment with such a level.

    Filled: low rank; hollow: all classes, full rank. Those that lose classes stand above, near 1/2.
    """
    title = "Loss against the levels of the head's features model"
    with _panels(names, 2.5, title, "loss / $L_{DNC}$") as (figure, panels):
        for name, axes in panels.items():
            group = runs[runs["experiment"] == name].sort_values("at")
            kept, low = group["kept"], group["low_rank"]
            for mask, style in zip((kept & low, kept & ~low, ~kept), ENDS.values(), strict=True):
                points = group[mask]
                axes.plot(points["at"], points["loss_over_dnc"], linewidth=0, markersize=4.5, **style)
            levels = group.groupby("at")[["loss_dnc", "loss_srg"]].first()
            axes.axhline(1, color=drawing.INK, linewidth=1, linestyle=DNC_DASHES)
            share = levels["loss_srg"] / levels["loss_dnc"]
            axes.plot(levels.index, share, color=drawing.INK, linewidth=1, linestyle=SRG_DASHES)
            axes.plot(levels.index, 0.5 / levels["loss_dnc"], color=drawing.FAINT, linewidth=0.8)
            _value_axis(axes, group, label)
            drawing.set_log(axes, "y")
            axes.set_yticks([0.8, 1, 1.5, 2, 3, 5], ["0.8", "1", "1.5", "2", "3", "5"])
            axes.set_ylim(0.75, 1.1 * max(1.5, float((0.5 / levels["loss_dnc"]).max())))
        handles = [
            drawing.key_entry(end, linewidth=0, markersize=4.5, **style) for end, style in ENDS.items()
        ]
        handles += [*level_handles(), drawing.key_entry("all zero: 1/2", drawing.FAINT, linewidth=0.8)]
        drawing.draw_key(figure, handles, MOST)
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
    shades = drawing.metric_colours(9)
    title = f"Collapse (DNC1) by layer of the head, for each {label}"
    with _panels(names, 2.4, title, r"tr $\Sigma_W$ / tr $\Sigma_B$") as (figure, panels):
        for name, axes in panels.items():
            rows = table[(table["experiment"] == name) & table["kept"]]
            for (value, _), line in rows.groupby(["at", "seed"]):
                colour = shades[values.index(value) % len(shades)]
                places = [layers.index(layer) + 1 for layer in line["layer"]]
                axes.plot(places, line["value"], ".-", color=colour, linewidth=0.8, markersize=4)
            axes.set_yscale("log")
            axes.set_xticks(range(1, len(layers) + 1), [f"$H_{at}$" for at in range(1, len(layers) + 1)])
        handles = [
            drawing.key_entry(f"{value:g}", shades[at % len(shades)], marker=".", linewidth=0.8)
            for at, value in enumerate(values)
        ]
        drawing.draw_key(figure, handles, MOST)
    return figure


@contextmanager
def _panels(
    names: Mapping[str, str], height: float, title: str, ylabel: str
) -> Iterator[tuple[Figure, dict[str, Axes]]]:
    """Yield a panel for each experiment in one row."""
    with drawing.row_grid(1, len(names), height, key=0.4, title=title, sharey="row") as (figure, (panels,)):
        for axes, name in zip(panels, names.values(), strict=True):
            axes.set_title(name)
        panels[0].set_ylabel(ylabel)
        yield figure, dict(zip(names, panels, strict=True))


def _value_axis(axes: Axes, runs: pd.DataFrame, label: str) -> None:
    values = sorted(runs["at"].unique())
    value_ticks(axes, values, fontsize=7)
    spread = np.log2(values[-1] / values[0]) if len(values) > 1 else 1.0
    axes.set_xlim(values[0] * 2 ** (-0.08 * spread - 0.02), values[-1] * 2 ** (0.08 * spread + 0.02))
    axes.set_xlabel(label)
