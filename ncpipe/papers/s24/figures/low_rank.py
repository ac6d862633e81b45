"""Deep features models beside DNC and SRG: the figures of S24 sec. 6, for the runs of a study.

runs: as `ncpipe.papers.s24.commands.low_rank` has them, with kept, mean_rank and classes (K).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ncpipe.figures.panels import draw_key, panel_grid
from ncpipe.figures.style import FAINT, INK, PAGE_WIDTH, lay_out, metric_colours, paper_style

COLUMNS = 3  # panels side by side
DNC_DASHES, SRG_DASHES = (0, (5, 2)), (0, (1, 1.2))
FLOOR = 1e-9  # singular values over the largest: what is below is rounding
TRAINED, DROPPED = metric_colours(2)


def loss_curves(history: pd.DataFrame, runs: pd.DataFrame) -> Figure:
    """Draw loss through training with L_DNC and L_SRG, a panel for each experiment [Fig. 2 top, left].

    Faint lines are runs, the strong one their mean, with one standard deviation about it; runs that lose
    classes or diverge are drawn in another colour and enter no mean.
    """
    keys = ["experiment", "depth", "seed", *(["x"] if "x" in runs else [])]
    table = history.merge(runs[[*keys, "kept"]], on=keys)
    table = table[table["epoch"] > 0]
    with paper_style():
        figure, panels = _panels(runs, 2.1)
        for axes, (name, own) in zip(panels, runs.groupby("experiment", sort=False), strict=True):
            curves = table[table["experiment"] == name]
            for (seed, kept), line in curves.groupby(["seed", "kept"]):
                colour = TRAINED if kept else DROPPED
                axes.plot(
                    line["epoch"], line["loss"], color=colour, linewidth=0.6, alpha=0.5, label=f"{seed}"
                )
            steady = curves[curves["kept"]].groupby("epoch")["loss"].agg(["mean", "std"]).fillna(0)
            axes.plot(steady.index, steady["mean"], color=TRAINED, linewidth=1.5)
            low, high = steady["mean"] - steady["std"], steady["mean"] + steady["std"]
            axes.fill_between(steady.index, low, high, color=TRAINED, alpha=0.2, linewidth=0)
            levels = [own["loss_dnc"].iloc[0], own["loss_srg"].iloc[0]]
            mark_levels(axes, *levels)
            shown = own[own["kept"]] if own["kept"].any() else own
            known = [*filter(math.isfinite, levels), *shown["loss"]]
            pad = 0.06 * (max(known) - min(known)) + 0.01 * max(known)
            axes.set_ylim(min(known) - pad, max(known) + 4 * pad)
            axes.set_xscale("log")
            axes.set_title(place_name(own.iloc[0].to_dict()))
        _outer_labels(panels, "step", "regularised loss")
        handles = [
            Line2D([], [], color=TRAINED, linewidth=1.5, label="mean ± 1 sd"),
            Line2D([], [], color=TRAINED, linewidth=0.6, alpha=0.6, label="one run"),
            *level_handles(),
        ]
        if not runs["kept"].all():
            handles.append(Line2D([], [], color=DROPPED, linewidth=0.6, label="loses classes, in no mean"))
        finish(figure, handles, "Loss of deep features models against deep neural collapse")
    return figure


def singular_values_by_layer(singular: pd.DataFrame, best: pd.DataFrame) -> Figure:
    """Draw singular values of every layer's class means, over the largest, at the end of the best run."""
    layers = list(singular["layer"].unique())
    colours = metric_colours(len(layers))
    with paper_style():
        figure, panels = _panels(best, 2.0)
        for axes, row in zip(panels, best.to_dict("records"), strict=True):
            own = singular[
                (singular["experiment"] == row["experiment"]) & (singular["place"] <= row["classes"])
            ]
            singular_lines(axes, own, dict(zip(layers, colours, strict=True)))
            axes.set(yscale="log", ylim=(FLOOR / 2, 3), title=place_name(row))
            axes.set_xticks([1, int(row["classes"])])
        _outer_labels(panels, "place", r"$s_i / s_1$")
        handles = [
            Line2D([], [], color=colour, marker="." if layer.startswith("~") else "o", linewidth=0.7,
                   markerfacecolor=colour if layer.startswith("~") else "none", label=layer_name(layer))
            for layer, colour in zip(layers, colours, strict=True)
        ]  # fmt: skip
        finish(figure, handles, "Singular values of the class means, runs of the lowest loss")
    return figure


def ranks_by_penalty(runs: pd.DataFrame) -> Figure:
    """Draw the mean rank of M_2, ..., M_{L-1} against lambda, a panel for each experiment [Fig. 3 middle].

    Points are runs, the line is their mean. Numbers count runs that lose classes.
    """
    with paper_style():
        figure, panels = _panels(runs, 1.9)
        for axes, (_, own) in zip(panels, runs.groupby("experiment", sort=False), strict=True):
            kept = own[own["kept"]]
            classes = int(own["classes"].iloc[0])
            values = sorted(own["penalty_value"].unique())
            axes.plot(
                kept["penalty_value"], kept["mean_rank"], "o", color=TRAINED, markersize=4, alpha=0.3, mew=0
            )
            means = kept.groupby("penalty_value")["mean_rank"].mean()
            axes.plot(means.index, means, color=TRAINED, linewidth=1.3)
            axes.axhline(classes, color=INK, linewidth=1, linestyle=DNC_DASHES)
            value_ticks(axes, values, fontsize=7)
            axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
            axes.set_ylim(0, classes * 1.12)
            axes.set_title(f"$K = {classes}$, $L = {own['depth'].iloc[0]}$")
            count_lost(axes, own[~own["kept"]].groupby("penalty_value").size())
        _outer_labels(panels, r"$\lambda$", "mean rank")
        handles = [
            Line2D([], [], color=TRAINED, linewidth=1.3, label="mean"),
            Line2D([], [], color=TRAINED, marker="o", linewidth=0, markersize=4, alpha=0.5, label="runs"),
            Line2D([], [], color=INK, linewidth=1, linestyle=DNC_DASHES, label="K"),
        ]
        handles += lost_handle(runs)
        finish(figure, handles, r"Rank of the inner layers' class means ($M_2, \ldots, M_{L-1}$)")
    return figure


def loss_split(split: pd.DataFrame) -> Figure:
    """Draw the loss by terms, of the best runs and of the closed solutions [Fig. 5 left]."""
    parts = {"fit": "error", "last_penalty": "penalty of $W_L$", "rest": "penalty of all else"}
    colours = metric_colours(len(parts))
    with paper_style():
        figure, panels = _panels(split, 2.0)
        for axes, (_, own) in zip(panels, split.groupby("experiment", sort=False), strict=True):
            bottom = np.zeros(len(own))
            for (part, _), colour in zip(parts.items(), colours, strict=True):
                axes.bar(own["solution"], own[part], bottom=bottom, color=colour, width=0.6)
                bottom += own[part].to_numpy()
            for place, total in enumerate(bottom):
                above: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 7}
                axes.annotate(f"{total:.4f}", (place, total), (0, 2), **above)
            axes.set_ylim(0, 1.15 * bottom.max())
            axes.grid(visible=False, axis="x")
            axes.set_title(f"$K = {own['classes'].iloc[0]}$")
        _outer_labels(panels, "", "loss")
        handles = [
            Patch(color=colour, label=name) for name, colour in zip(parts.values(), colours, strict=True)
        ]
        finish(figure, handles, "Loss by its terms, runs of the lowest loss")
    return figure


def level_ratios(ratios: pd.DataFrame, per_class: int, decay: float) -> Figure:
    """Draw L_SRG/L_DNC against r for several L, and its limit rho for small lambda [Fig. 3 left]."""
    with paper_style():
        figure = Figure(figsize=(0.6 * PAGE_WIDTH, 2.6), layout="constrained")
        axes = figure.subplots()
        colours = metric_colours(ratios["depth"].nunique())
        handles = []
        for (depth, own), colour in zip(ratios.groupby("depth"), colours, strict=True):
            axes.plot(own["points"], own["ratio"], "o-", color=colour, markersize=3, linewidth=1.2)
            axes.plot(own["points"], own["limit"], color=colour, linewidth=0.9, linestyle=SRG_DASHES)
            handles.append(Line2D([], [], color=colour, marker="o", markersize=3, label=f"$L = {depth}$"))
        axes.axhline(1, color=INK, linewidth=0.8)
        axes.set(xlabel="$r$, with $K = r(r-1)/2$", ylabel=r"$L_{SRG} / L_{DNC}$")
        axes.set_xticks(range(4, int(ratios["points"].max()) + 1, 4))
        handles.append(Line2D([], [], color=FAINT, linestyle=SRG_DASHES, label=r"$\rho$, $\lambda \to 0$"))
        finish(figure, handles, rf"Closed losses, $n = {per_class}$, $\lambda = {_power(decay)}$")
    return figure


def _panels(table: pd.DataFrame, height: float) -> tuple[Figure, list[Axes]]:
    """Return a panel for each experiment."""
    count = table["experiment"].nunique()
    return panel_grid(count, min(count, COLUMNS), height, key=0.5)


def _outer_labels(panels: Sequence[Axes], below: str, left: str) -> None:
    for place, axes in enumerate(panels):
        axes.set_ylabel(left if place % COLUMNS == 0 else "")
        axes.set_xlabel(below if place + COLUMNS >= len(panels) else "")


def mark_levels(axes: Axes, dnc: float, srg: float, label: bool = False) -> None:
    """Draw lines at L_DNC and L_SRG, if there is one; label: for a legend."""
    for level, dashes, name in ((dnc, DNC_DASHES, "DNC"), (srg, SRG_DASHES, "SRG")):
        if math.isfinite(level):
            axes.axhline(
                level, color=INK, linewidth=1, linestyle=dashes, label=name if label else "_nolegend_"
            )


def level_handles() -> list[Line2D]:
    """Return the legend entries of `mark_levels`."""
    dashes = {"DNC": DNC_DASHES, "SRG": SRG_DASHES}
    return [Line2D([], [], color=INK, linewidth=1, linestyle=own, label=name) for name, own in dashes.items()]


def count_lost(axes: Axes, counts: pd.Series, height: float = 0.0, above: float = 3) -> None:
    """Write how many runs lose classes at each x of the index, `above` a height in points."""
    for value, count in counts.items():
        axes.annotate(
            f"{count}\N{MULTIPLICATION SIGN}", (value, height), (0, above), textcoords="offset points",
            ha="center", fontsize=7, color=DROPPED,
        )  # fmt: skip


def lost_handle(runs: pd.DataFrame) -> list[Line2D]:
    """Return the legend entry of `count_lost`, if any run loses classes."""
    label = r"$n\times$: runs that lose classes"
    return [] if runs["kept"].all() else [Line2D([], [], linewidth=0, label=label)]


def value_ticks(axes: Axes, values: Sequence[float], **text: Any) -> None:
    """Give the x axis a logarithmic scale with a tick at each value."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [f"{value:g}" for value in values], **text)
    axes.minorticks_off()


def singular_lines(axes: Axes, singular: pd.DataFrame, colours: Mapping[str, Any]) -> None:
    """Draw singular values over the largest, a line per layer of `colours`; rings are after the ReLU."""
    for layer, colour in colours.items():
        line = singular[singular["layer"] == layer]
        shares = (line["value"] / line["value"].max()).clip(lower=FLOOR)
        after = not layer.startswith("~")
        axes.plot(
            line["place"], shares, "o" if after else ".", color=colour, markersize=6 if after else 5,
            markerfacecolor="none" if after else colour, linestyle="-", linewidth=0.7,
            label=layer_name(layer),
        )  # fmt: skip


def finish(figure: Figure, handles: Sequence[Line2D | Patch], title: str, columns: int | None = None) -> None:
    """Add the title, and a legend below with at most so many columns."""
    figure.suptitle(title, fontsize=10)
    draw_key(figure, handles, min(len(handles), columns or len(handles)))
    lay_out(figure)


def place_name(run: Mapping[Any, Any]) -> str:
    return rf"$K = {run['classes']}$, $L = {run['depth']}$, $\lambda = {run['penalty_value']:g}$"


def layer_name(name: str) -> str:
    """Return the mathtext of `~M3` or `M3`."""
    return rf"$\tilde M_{{{name[2:]}}}$" if name.startswith("~") else f"$M_{{{name[1:]}}}$"


def _power(value: float) -> str:
    exponent = math.log10(value)
    return f"10^{{{exponent:.0f}}}" if exponent == int(exponent) else f"{value:g}"
