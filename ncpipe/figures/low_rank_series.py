"""Further runs of a deep features model: what an axis does to rank and DNC, and training with its spread.

runs: `data/series/NAME/runs.csv`, with kept and mean_rank.
"""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ncpipe.figures.low_rank import DNC_DASHES, DROPPED, SRG_DASHES, TRAINED, finish, mark_levels
from ncpipe.figures.style import FAINT, INK, PAGE_WIDTH, metric_colours, paper_style

LEAST = 1e-30  # where exact collapse is drawn


def against_axis(runs: pd.DataFrame, counts: pd.DataFrame, label: str, title: str) -> Figure:
    """Share of runs that find DNC, with its interval, and mean rank, against an axis [Fig. 3, 9].

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
            axes.set_xscale("log", base=2)
            axes.set_xticks(counts["x"], [f"{value:g}" for value in counts["x"]])
            axes.minorticks_off()
            axes.set_xlabel(label)
        lost = counts[counts["runs"] > counts["kept"]]
        for row in lost.to_dict("records"):
            right.annotate(
                f"{row['runs'] - row['kept']}\N{MULTIPLICATION SIGN}", (row["x"], 0), (0, 3),
                textcoords="offset points", ha="center", fontsize=7, color=DROPPED,
            )  # fmt: skip
        handles = [
            Line2D([], [], color=TRAINED, marker="o", markersize=4, linewidth=1.2, label="mean, interval"),
            Line2D([], [], color=TRAINED, marker="o", markersize=4, linewidth=0, alpha=0.4, label="runs"),
            Line2D([], [], color=INK, linewidth=1, linestyle=DNC_DASHES, label="K"),
        ]
        if len(lost):
            handles.append(Line2D([], [], linewidth=0, label=r"$n\times$: runs that lose classes"))
        finish(figure, handles, title)
    return figure


def through_training(
    history: pd.DataFrame, spread: pd.DataFrame, singular: pd.DataFrame, runs: pd.DataFrame, title: str
) -> Figure:
    """Loss against the levels, DNC1 of every layer, singular values at the end [Fig. 2 top].

    Lines are means over the runs that keep their classes (over all if none does), with one standard deviation
    about them (of log10, for DNC1); faint lines are runs.
    """
    kept = runs[runs["kept"]] if runs["kept"].any() else runs
    kept = kept[["seed", "loss"]].rename(columns={"loss": "end"})
    history, spread, singular = (table.merge(kept, on="seed") for table in (history, spread, singular))
    with paper_style():
        figure = Figure(figsize=(PAGE_WIDTH, 2.7), layout="constrained")
        loss, within, values = figure.subplots(1, 3)
        history = history[history["epoch"] > 0]
        for _, line in history.groupby("seed"):
            loss.plot(line["epoch"], line["loss"], color=TRAINED, linewidth=0.6, alpha=0.4)
        _band(loss, history, "epoch", "loss", TRAINED)
        levels = runs["loss_dnc"].iloc[0], runs["loss_srg"].iloc[0]
        mark_levels(loss, *levels)
        known = [*filter(math.isfinite, levels), *kept["end"]]
        low, high = min(known), max(known)
        loss.set(
            xscale="log",
            xlabel="step",
            ylabel="regularised loss",
            ylim=(low - 0.1 * (high - low), high + (high - low)),
        )
        spread = spread.assign(value=np.log10(spread["dnc1_trace_pinv"].clip(lower=LEAST)))
        spread = spread[spread["epoch"] > 0]
        layers = sorted(spread["layer"].unique())
        colours = dict(zip(layers, metric_colours(len(layers)), strict=True))
        for layer, own in spread.groupby("layer"):
            _band(within, own, "epoch", "value", colours[layer])
        within.set(xscale="log", xlabel="step", ylabel=r"log$_{10}$ tr($\Sigma_W$) / tr($\Sigma_B^+$)")
        scaled = singular.assign(
            value=singular["value"] / singular.groupby(["seed", "layer"])["value"].transform("max")
        )
        for layer in layers[1:]:
            own = scaled[(scaled["layer"] == f"~M{layer[1:]}")]
            _band(values, own, "place", "value", colours[layer])
        values.set(xlabel="place", ylabel=r"$s_i / s_1$ of $\tilde M_l$", xlim=(1, runs["classes"].iloc[0]))
        handles = [
            Line2D([], [], color=INK, linewidth=1, linestyle=DNC_DASHES, label="DNC"),
            Line2D([], [], color=INK, linewidth=1, linestyle=SRG_DASHES, label="SRG"),
            *(
                Line2D([], [], color=colours[layer], linewidth=1.5, label=f"$l = {layer[1:]}$")
                for layer in layers
            ),
            Line2D([], [], color=FAINT, linewidth=5, alpha=0.3, label="1 sd"),
        ]
        finish(figure, handles, title)
    return figure


def _band(axes: Axes, table: pd.DataFrame, x: str, y: str, colour: object) -> None:
    """Mean of y at each x, and one standard deviation about it."""
    steady = table.groupby(x)[y].agg(["mean", "std"]).fillna(0)
    axes.plot(steady.index, steady["mean"], color=colour, linewidth=1.5)
    low, high = steady["mean"] - steady["std"], steady["mean"] + steady["std"]
    axes.fill_between(steady.index, low, high, color=colour, alpha=0.2, linewidth=0)
