"""Further runs of a deep features model: what an axis does to rank and DNC, and training with its spread.

runs: `data/series/NAME/runs.csv`, with kept and mean_rank.
"""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ncpipe.papers.s24.figures.low_rank import (
    DNC_DASHES,
    TRAINED,
    count_lost,
    level_handles,
    lost_handle,
    mark_levels,
    value_ticks,
)
from ncpipe.study import drawing

SHARE = "share or mean, 95 % interval"
LEAST = 1e-30  # where exact collapse is drawn
FORMS = {
    "dnc1_trace_pinv": r"tr($\Sigma_W$) / tr($\Sigma_B^+$)",
    "nc1_trace_ratio": r"tr($\Sigma_W$) / tr($\Sigma_B$)",
}


def draw_band(axes: Axes, table: pd.DataFrame, x: str, y: str, colour: drawing.Colour) -> None:
    """Draw the mean of y at each x, and one standard deviation about it, within the range of the runs."""
    steady = table.groupby(x)[y].agg(["mean", "std", "min", "max"]).fillna(0)
    axes.plot(steady.index, steady["mean"], color=colour, linewidth=1.5)
    low = (steady["mean"] - steady["std"]).clip(lower=steady["min"])
    high = (steady["mean"] + steady["std"]).clip(upper=steady["max"])
    axes.fill_between(steady.index, low, high, color=colour, alpha=0.2, linewidth=0)


def against_axis(runs: pd.DataFrame, counts: pd.DataFrame, label: str, title: str) -> Figure:
    """Draw the share of runs that find DNC, with its interval, and mean rank, against an axis [Fig. 3, 9].

    counts: `tables.low_rank.counts_by_value` of the runs. label: the axis. Numbers at the lower edge count
    runs that lose classes or diverge; they are no runs that find DNC, and have no rank.
    """
    classes = int(runs["classes"].iloc[0])
    with drawing.row_grid(1, 2, 2.6, title=title) as (figure, ((left, right),)):
        reach = np.abs(counts[["low", "high"]].to_numpy().T - counts["share"].to_numpy())
        drawing.draw_means(
            left, counts["x"], counts["share"], reach, color=TRAINED, markersize=4, linewidth=1.2
        )
        left.set(ylim=(-0.08, 1.05), ylabel="share of runs that find DNC")
        kept = runs[runs["kept"]]
        right.plot(kept["x"], kept["mean_rank"], "o", color=TRAINED, markersize=4, alpha=0.25, mew=0)
        right.plot(counts["x"], counts["mean_rank"], color=TRAINED, linewidth=1.3)
        right.axhline(classes, color=drawing.INK, linewidth=1, linestyle=DNC_DASHES)
        right.set(ylim=(0, 1.1 * classes), ylabel=r"mean rank of $M_2, \ldots, M_{L-1}$")
        for axes in (left, right):
            value_ticks(axes, counts["x"].tolist())
            axes.set_xlabel(label)
        lost = (counts["runs"] - counts["kept"]).set_axis(counts["x"])
        count_lost(right, lost[lost > 0])
        handles = [
            drawing.key_entry(SHARE, TRAINED, marker="o", markersize=4, linewidth=1.2),
            drawing.key_entry("runs", TRAINED, marker="o", markersize=4, linewidth=0, alpha=0.4),
            drawing.key_entry("K", linewidth=1, linestyle=DNC_DASHES),
        ]
        drawing.draw_key(figure, [*handles, *lost_handle(runs)], 4)
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
    if lost:
        title = f"{title}; {len(lost)} of them, thin and dark, give samples up"
    with drawing.row_grid(2, 2, 2.3, title=title) as (figure, ((loss, values), (printed, plain))):
        history = history[history["epoch"] > 0]
        for seed, line in history.groupby("seed"):
            colour = drawing.INK if seed in lost else TRAINED
            loss.plot(line["epoch"], line["loss"], color=colour, linewidth=0.6, alpha=0.5)
        draw_band(loss, _rows_of(history, kept), "epoch", "loss", TRAINED)
        levels = runs["loss_dnc"].iloc[0], runs["loss_srg"].iloc[0]
        mark_levels(loss, *levels)
        known = [*filter(math.isfinite, levels), *kept["loss"]]
        low, high = min(known), max(known)
        loss.set(xscale="log", xlabel="step", ylabel="regularised loss")
        loss.set_ylim(low - 0.1 * (high - low), high + (high - low))
        spread = spread[spread["epoch"] > 0]
        layers = sorted(spread["layer"].unique())
        colours = dict(zip(layers, drawing.metric_colours(len(layers) + 1)[1:], strict=True))
        for axes, (form, formula) in zip((printed, plain), FORMS.items(), strict=True):
            table = spread.assign(value=np.log10(spread[form].clip(lower=LEAST)))
            for layer, rows in _rows_of(table, kept).groupby("layer"):
                draw_band(axes, rows, "epoch", "value", colours[layer])
            last = table[(table["layer"] == layers[-1]) & table["seed"].isin(lost)]
            for _, line in last.groupby("seed"):
                axes.plot(line["epoch"], line["value"], color=drawing.INK, linewidth=0.7, alpha=0.8)
            axes.set(xscale="log", xlabel="step", ylabel=f"log$_{{10}}$ {formula}")
        largest = singular.groupby(["seed", "layer"])["value"].transform("max")
        scaled = _rows_of(singular.assign(value=singular["value"] / largest), kept)
        for layer in layers[1:]:
            rows = scaled[scaled["layer"] == f"~M{layer[1:]}"]
            draw_band(values, rows, "place", "value", colours[layer])
        values.set(xlabel="place", ylabel=r"$s_i / s_1$ of $\tilde M_l$", xlim=(1, runs["classes"].iloc[0]))
        values.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles = [
            *level_handles(),
            *(drawing.key_entry(f"$l = {layer[1:]}$", colours[layer], linewidth=1.5) for layer in layers),
            drawing.key_entry("1 sd", drawing.FAINT, linewidth=5, alpha=0.3),
        ]
        drawing.draw_key(figure, handles, len(handles))
    return figure


def _rows_of(table: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of these runs."""
    return table[table["seed"].isin(runs["seed"])]
