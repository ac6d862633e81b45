"""Further runs of a deep features model: what an axis does to rank and DNC, and training with its spread.

runs: `data/series/NAME/runs.csv`, with kept and mean_rank.
"""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ncpipe.figures.style import FAINT, INK, PAGE_WIDTH, metric_colours, paper_style
from ncpipe.papers.s24.figures.low_rank import (
    DNC_DASHES,
    TRAINED,
    count_lost,
    finish,
    level_handles,
    lost_handle,
    mark_levels,
    value_ticks,
)

SHARE = "share or mean, 95 % interval"
LEAST = 1e-30  # where exact collapse is drawn
FORMS = {
    "dnc1_trace_pinv": r"tr($\Sigma_W$) / tr($\Sigma_B^+$)",
    "nc1_trace_ratio": r"tr($\Sigma_W$) / tr($\Sigma_B$)",
}


def against_axis(runs: pd.DataFrame, counts: pd.DataFrame, label: str, title: str) -> Figure:
    """Draw the share of runs that find DNC, with its interval, and mean rank, against an axis [Fig. 3, 9].

    counts: `tables.low_rank.counts_by_value` of the runs. label: the axis. Numbers at the lower edge count
    runs that lose classes or diverge; they are no runs that find DNC, and have no rank.
    """
    classes = int(runs["classes"].iloc[0])
    with paper_style():
        figure = Figure(figsize=(PAGE_WIDTH, 2.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        reach = np.abs(counts[["low", "high"]].to_numpy().T - counts["share"].to_numpy())
        left.errorbar(
            counts["x"], counts["share"], reach, fmt="o-", color=TRAINED, markersize=4, linewidth=1.2,
            capsize=2, elinewidth=0.9,
        )  # fmt: skip
        left.set(ylim=(-0.08, 1.05), ylabel="share of runs that find DNC")
        kept = runs[runs["kept"]]
        right.plot(kept["x"], kept["mean_rank"], "o", color=TRAINED, markersize=4, alpha=0.25, mew=0)
        right.plot(counts["x"], counts["mean_rank"], color=TRAINED, linewidth=1.3)
        right.axhline(classes, color=INK, linewidth=1, linestyle=DNC_DASHES)
        right.set(ylim=(0, 1.1 * classes), ylabel=r"mean rank of $M_2, \ldots, M_{L-1}$")
        for axes in (left, right):
            value_ticks(axes, counts["x"].tolist())
            axes.set_xlabel(label)
        lost = (counts["runs"] - counts["kept"]).set_axis(counts["x"])
        count_lost(right, lost[lost > 0])
        handles = [
            Line2D([], [], color=TRAINED, marker="o", markersize=4, linewidth=1.2, label=SHARE),
            Line2D([], [], color=TRAINED, marker="o", markersize=4, linewidth=0, alpha=0.4, label="runs"),
            Line2D([], [], color=INK, linewidth=1, linestyle=DNC_DASHES, label="K"),
        ]
        finish(figure, [*handles, *lost_handle(runs)], title)
    return figure


def through_training(
    history: pd.DataFrame, spread: pd.DataFrame, singular: pd.DataFrame, runs: pd.DataFrame, title: str
) -> Figure:
    """Draw loss with the levels, DNC1 of every layer in two forms, singular values at the end [Fig. 2 top].

    Lines are means over the runs that keep all samples (over all if none does), with one standard deviation
    about them (of log10, for DNC1); thin lines are runs, dark those that give samples up, of whose layers the
    last one's DNC1 is drawn. tr(Sigma_B^+) is as large as the least singular value is small: where ranks
    fall, the form with it is near 0 whatever the samples do, and that with tr(Sigma_B) is not.
    """
    kept = runs[runs["kept"]] if runs["kept"].any() else runs
    lost = set(runs["seed"]) - set(kept["seed"])
    with paper_style():
        figure = Figure(figsize=(PAGE_WIDTH, 4.6), layout="constrained")
        loss, values, printed, plain = figure.subplots(2, 2).ravel()
        history = history[history["epoch"] > 0]
        for seed, line in history.groupby("seed"):
            colour = INK if seed in lost else TRAINED
            loss.plot(line["epoch"], line["loss"], color=colour, linewidth=0.6, alpha=0.5)
        _band(loss, _of(history, kept), "epoch", "loss", TRAINED)
        levels = runs["loss_dnc"].iloc[0], runs["loss_srg"].iloc[0]
        mark_levels(loss, *levels)
        known = [*filter(math.isfinite, levels), *kept["loss"]]
        low, high = min(known), max(known)
        loss.set(
            xscale="log",
            xlabel="step",
            ylabel="regularised loss",
            ylim=(low - 0.1 * (high - low), high + (high - low)),
        )
        spread = spread[spread["epoch"] > 0]
        layers = sorted(spread["layer"].unique())
        colours = dict(zip(layers, metric_colours(len(layers) + 1)[1:], strict=True))
        for axes, (form, said) in zip((printed, plain), FORMS.items(), strict=True):
            table = spread.assign(value=np.log10(spread[form].clip(lower=LEAST)))
            for layer, own in _of(table, kept).groupby("layer"):
                _band(axes, own, "epoch", "value", colours[layer])
            last = table[(table["layer"] == layers[-1]) & table["seed"].isin(lost)]
            for _, line in last.groupby("seed"):
                axes.plot(line["epoch"], line["value"], color=INK, linewidth=0.7, alpha=0.8)
            axes.set(xscale="log", xlabel="step", ylabel=f"log$_{{10}}$ {said}")
        largest = singular.groupby(["seed", "layer"])["value"].transform("max")
        scaled = _of(singular.assign(value=singular["value"] / largest), kept)
        for layer in layers[1:]:
            _band(values, scaled[scaled["layer"] == f"~M{layer[1:]}"], "place", "value", colours[layer])
        values.set(xlabel="place", ylabel=r"$s_i / s_1$ of $\tilde M_l$", xlim=(1, runs["classes"].iloc[0]))
        values.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles = [
            *level_handles(),
            *(
                Line2D([], [], color=colours[layer], linewidth=1.5, label=f"$l = {layer[1:]}$")
                for layer in layers
            ),
            Line2D([], [], color=FAINT, linewidth=5, alpha=0.3, label="1 sd"),
        ]
        if lost:
            title = f"{title}; {len(lost)} of them, thin and dark, give samples up"
        finish(figure, handles, title)
    return figure


def _of(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of these runs."""
    return table[table["seed"].isin(runs["seed"])]


def _band(axes: Axes, table: pd.DataFrame, x: str, y: str, colour: object) -> None:
    """Draw the mean of y at each x, and one standard deviation about it."""
    steady = table.groupby(x)[y].agg(["mean", "std"]).fillna(0)
    axes.plot(steady.index, steady["mean"], color=colour, linewidth=1.5)
    low, high = steady["mean"] - steady["std"], steady["mean"] + steady["std"]
    axes.fill_between(steady.index, low, high, color=colour, alpha=0.2, linewidth=0)
