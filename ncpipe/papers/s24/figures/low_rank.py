"""Deep features models beside DNC and SRG: the figures of S24 sec. 6, for the runs of a study.

runs: as `ncpipe.papers.s24.low_rank` has them, with kept, mean_rank and classes (K).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ncpipe.study import drawing

COLUMNS = 3  # panels side by side
DNC_DASHES, SRG_DASHES = (0, (5, 2)), (0, (1, 1.2))
FLOOR = 1e-9  # singular values over the largest: what is below is rounding
TRAINED, DROPPED = drawing.metric_colours(2)


def ranks_by_penalty(runs: pd.DataFrame) -> Figure:
    """Draw the mean rank of M_2, ..., M_{L-1} against lambda, a panel for each experiment [Fig. 3 middle].

    Points are runs, the line is their mean. Numbers count runs that lose classes.
    """
    title = r"Rank of the inner layers' class means ($M_2, \ldots, M_{L-1}$)"
    with _panels(runs, 1.9, title, r"$\lambda$", "mean rank") as (figure, panels):
        for axes, (_, group) in zip(panels, runs.groupby("experiment", sort=False), strict=True):
            classes = int(group["classes"].iloc[0])
            draw_ranks(axes, group, "penalty_value", classes, alpha=0.3)
            value_ticks(axes, sorted(group["penalty_value"].unique()), fontsize=7)
            axes.set_title(f"$K = {classes}$, $L = {group['depth'].iloc[0]}$")
            count_lost(axes, group[~group["kept"]].groupby("penalty_value").size())
        drawing.draw_key(figure, rank_handles(runs), 4)
    return figure


def draw_ranks(axes: Axes, runs: pd.DataFrame, x: str, classes: int, alpha: float) -> None:
    """Draw the mean rank of each run that keeps its classes against a column, their means, and K."""
    kept = runs[runs["kept"]]
    axes.plot(kept[x], kept["mean_rank"], "o", color=TRAINED, markersize=4, alpha=alpha, mew=0)
    means = kept.groupby(x)["mean_rank"].mean()
    axes.plot(means.index, means, color=TRAINED, linewidth=1.3)
    axes.axhline(classes, color=drawing.INK, linewidth=1, linestyle=DNC_DASHES)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_ylim(0, classes * 1.12)


def rank_handles(runs: pd.DataFrame) -> list[Line2D]:
    """Return the legend entries of `draw_ranks` and of `count_lost`."""
    return [
        drawing.key_entry("mean", TRAINED, linewidth=1.3),
        drawing.key_entry("runs", TRAINED, marker="o", linewidth=0, markersize=4, alpha=0.5),
        drawing.key_entry("K", linewidth=1, linestyle=DNC_DASHES),
        *lost_handle(runs),
    ]


def loss_split(split: pd.DataFrame) -> Figure:
    """Draw the loss by terms, of the best runs and of the closed solutions [Fig. 5 left]."""
    parts = {"fit": "error", "last_penalty": "penalty of $W_L$", "rest": "penalty of all else"}
    colours = drawing.metric_colours(len(parts))
    with _panels(split, 2.0, "Loss by its terms, runs of the lowest loss", "", "loss") as (figure, panels):
        for axes, (_, solutions) in zip(panels, split.groupby("experiment", sort=False), strict=True):
            bottom = np.zeros(len(solutions))
            for (part, _), colour in zip(parts.items(), colours, strict=True):
                axes.bar(solutions["solution"], solutions[part], bottom=bottom, color=colour, width=0.6)
                bottom += solutions[part].to_numpy()
            for place, total in enumerate(bottom):
                above: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 7}
                axes.annotate(f"{total:.4f}", (place, total), (0, 2), **above)
            axes.set_ylim(0, 1.15 * bottom.max())
            axes.grid(visible=False, axis="x")
            axes.set_title(f"$K = {solutions['classes'].iloc[0]}$")
        handles = [
            Patch(color=colour, label=name) for name, colour in zip(parts.values(), colours, strict=True)
        ]
        drawing.draw_key(figure, handles, len(handles))
    return figure


def level_ratios(ratios: pd.DataFrame, per_class: int, decay: float) -> Figure:
    """Draw L_SRG/L_DNC against r for several L, and its limit rho for small lambda [Fig. 3 left]."""
    title = rf"Closed losses, $n = {per_class}$, $\lambda = {_power(decay)}$"
    with drawing.row_grid(1, 1, 2.6, width=0.6 * drawing.PAGE_WIDTH, title=title) as (figure, ((axes,),)):
        colours = drawing.metric_colours(ratios["depth"].nunique())
        handles = []
        for (depth, curve), colour in zip(ratios.groupby("depth"), colours, strict=True):
            axes.plot(curve["points"], curve["ratio"], "o-", color=colour, markersize=3, linewidth=1.2)
            axes.plot(curve["points"], curve["limit"], color=colour, linewidth=0.9, linestyle=SRG_DASHES)
            handles.append(drawing.key_entry(f"$L = {depth}$", colour, marker="o", markersize=3))
        axes.axhline(1, color=drawing.INK, linewidth=0.8)
        axes.set(xlabel="$r$, with $K = r(r-1)/2$", ylabel=r"$L_{SRG} / L_{DNC}$")
        axes.set_xticks(range(4, int(ratios["points"].max()) + 1, 4))
        handles.append(drawing.key_entry(r"$\rho$, $\lambda \to 0$", drawing.FAINT, linestyle=SRG_DASHES))
        drawing.draw_key(figure, handles, len(handles))
    return figure


@contextmanager
def _panels(
    table: pd.DataFrame, height: float, title: str, below: str, left: str
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Yield a panel for each experiment; the outer ones get labels below and at the left."""
    count = table["experiment"].nunique()
    with drawing.panel_grid(count, min(count, COLUMNS), height, key=0.5, title=title) as (figure, panels):
        for axes in panels[::COLUMNS]:
            axes.set_ylabel(left)
        for axes in panels[-COLUMNS:]:
            axes.set_xlabel(below)
        yield figure, panels


def mark_levels(axes: Axes, dnc: float, srg: float, label: bool = False) -> None:
    """Draw lines at L_DNC and L_SRG, if there is one; label: for a legend."""
    for level, dashes, name in ((dnc, DNC_DASHES, "DNC"), (srg, SRG_DASHES, "SRG")):
        if math.isfinite(level):
            axes.axhline(
                level, color=drawing.INK, linewidth=1, linestyle=dashes, label=name if label else None
            )


def level_handles() -> list[Line2D]:
    """Return the legend entries of `mark_levels`."""
    dashes = {"DNC": DNC_DASHES, "SRG": SRG_DASHES}
    return [drawing.key_entry(name, linewidth=1, linestyle=style) for name, style in dashes.items()]


def count_lost(axes: Axes, counts: pd.Series, height: float = 0.0, above: float = 3) -> None:
    """Write how many runs lose classes at each x of the index, `above` a height in points."""
    for value, count in counts.items():
        axes.annotate(
            f"{count}\N{MULTIPLICATION SIGN}", (value, height), (0, above), textcoords="offset points",
            ha="center", fontsize=7, color=DROPPED,
        )  # fmt: skip


def lost_handle(runs: pd.DataFrame) -> list[Line2D]:
    """Return the legend entry of `count_lost`, if any run loses classes."""
    return (
        [] if runs["kept"].all() else [drawing.key_entry(r"$n\times$: runs that lose classes", linewidth=0)]
    )


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
        style = {"markersize": 5 if layer.startswith("~") else 6} | _marker(layer)
        axes.plot(line["place"], shares, color=colour, linewidth=0.7, label=layer_name(layer), **style)


def _marker(layer: str) -> dict[str, Any]:
    return {"marker": "."} if layer.startswith("~") else {"marker": "o", "markerfacecolor": "none"}


def place_name(run: Mapping[Any, Any]) -> str:
    return rf"$K = {run['classes']}$, $L = {run['depth']}$, $\lambda = {run['penalty_value']:g}$"


def layer_name(name: str) -> str:
    """Return the mathtext of `~M3` or `M3`."""
    return rf"$\tilde M_{{{name[2:]}}}$" if name.startswith("~") else f"$M_{{{name[1:]}}}$"


def _power(value: float) -> str:
    exponent = math.log10(value)
    return f"10^{{{exponent:.0f}}}" if exponent == int(exponent) else f"{value:g}"
