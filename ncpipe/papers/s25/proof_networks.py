"""Tabulate and draw networks built from S25's proofs, beside trained ones, and App. C's example."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullLocator

from ncpipe.study import drawing

NOTHING = 1e-12  # below it a gap or a metric is rounding of the optimum, or of exact collapse
SLOPES_OF = ("stage_one_penalty", "stage_two_penalty", "inner_penalty", "loss_gap")
BLUE, ORANGE, GREEN, PURPLE = drawing.metric_colours(4)
DROP = 0.05  # height, in axes, of the marks for what is 0 up to rounding
ZERO: dict[str, Any] = {"marker": "v", "markersize": 4, "markerfacecolor": "white", "linewidth": 0}


@dataclass(frozen=True)
class Kind:
    """A kind of network and how it is drawn."""

    label: str
    colour: drawing.Colour
    marker: str


KINDS = {
    "trained": Kind("trained, mean ± 1 std over seeds", BLUE, "o"),
    "sharp": Kind("proof's blocks, least strengths", ORANGE, "s"),
    "printed": Kind("proof's blocks, its strengths", PURPLE, "D"),
    "shifts": Kind("biases alone", GREEN, "^"),
}


def constructed_slopes(networks: pd.DataFrame) -> pd.DataFrame:
    """Return least-squares powers of L of penalties and gap, by experiment and kind.

    networks: rows of `study_rows.constructed_row` with experiment, kind and depth. n_used: values
    above `NOTHING`; the slope is NaN with fewer than two depths.
    """
    rows = []
    for (experiment, kind), group in networks.groupby(["experiment", "kind"], sort=False):
        for column in SLOPES_OF:
            used = group[group[column] > NOTHING]
            slope = math.nan
            if used["depth"].nunique() > 1:
                x, y = (np.log10(used[name].to_numpy()) for name in ("depth", column))
                centred = x - x.mean()
                slope = float(centred / (centred**2).sum() @ y)
            rows.append((experiment, kind, column, slope, len(used)))
    return pd.DataFrame(rows, columns=["experiment", "kind", "column", "slope", "n_used"])


def with_nc2(networks: pd.DataFrame, nc2: dict[str, str]) -> pd.DataFrame:
    """Return the networks with a column nc2, the metric that `nc2` names for their experiment."""
    values = [row[nc2[row["experiment"]]] for _, row in networks.iterrows()]
    return networks.assign(nc2=values)


def trained_means(summary: pd.DataFrame, nc2: dict[str, str]) -> pd.DataFrame:
    """Return last-layer means of `tables.summary` on training samples and weights, the named nc2 as `nc2`."""
    rows = summary[(summary["layer"] == "last") & (summary["split"] != "test")].copy()
    rows.loc[rows["metric"] == rows["experiment"].map(nc2), "metric"] = "nc2"
    return rows[["experiment", "depth", "metric", "log10_mean", "log10_std"]]


def constructed_gap(networks: pd.DataFrame, labels: Mapping[str, str]) -> Figure:
    """Draw the gap to L*_GUFM of constructed networks against L, with the proof's bound.

    networks: rows of `study_rows.constructed_row` with experiment, kind and depth. labels:
    experiment -> title, in the order of the panels. The bound is the sum of both stages' for the network of
    the printed strengths; the dotted line is L*_GUFM, the size of the loss itself.
    """
    with drawing.row_grid(-(-len(labels) // 2), 2, 1.35 * drawing.ROW_HEIGHT, key=0.7) as (figure, grid):
        for axes in grid.flat[len(labels) :]:
            axes.set_visible(False)
        for axes, (name, label) in zip(grid.flat, labels.items(), strict=False):
            rows = networks[networks["experiment"] == name]
            for kind in ("printed", "sharp", "shifts"):
                part = rows[rows["kind"] == kind]
                _draw(axes, part["depth"], part["loss_gap"], KINDS[kind])
            printed = rows[rows["kind"] == "printed"]
            bound = printed["stage_one_bound"] + printed["stage_two_bound"]
            axes.plot(printed["depth"], bound, color=drawing.INK, linestyle=drawing.DASHES, linewidth=0.9)
            if rows["loss_optimum"].notna().any():
                axes.axhline(rows["loss_optimum"].max(), color=drawing.FAINT, linestyle=":", linewidth=0.9)
            axes.set_title(label)
            _scale(axes)
        for axes in grid[:, 0]:
            axes.set_ylabel(r"loss $-\ L^*_{\mathrm{GUFM}}$")
        for axes in grid[-1]:
            axes.set_xlabel("depth $L$")
        handles = [
            *(_handle(KINDS[kind]) for kind in ("printed", "sharp", "shifts")),
            drawing.key_entry("bound of the proof", linestyle=drawing.DASHES, linewidth=0.9),
            drawing.key_entry(r"$L^*_{\mathrm{GUFM}}$ itself", drawing.FAINT, linestyle=":", linewidth=0.9),
            _zero_handle(),
        ]
        drawing.draw_key(figure, handles, 3)
    return figure


BESIDE_TRAINED = ("sharp", "shifts")
COLUMNS = {
    "loss_gap": r"loss $-\ L^*_{\mathrm{GUFM}}$",
    "nc1_trace_ratio": "NC1",
    "nc2": "NC2",
    "nc3_cosine": "NC3",
}


def trained_and_constructed(
    networks: pd.DataFrame, trained: pd.DataFrame, labels: Mapping[str, str]
) -> Figure:
    """Draw gap, NC1, NC2 and NC3 against L: trained networks, least strengths, biases alone.

    networks: as of `constructed_gap`, with nc2 the distance that the loss asks for. trained: experiment,
    depth, metric (a name of COLUMNS), log10_mean and log10_std over the seeds used. labels: experiment ->
    row label.
    """
    with drawing.row_grid(len(labels), len(COLUMNS), key=0.7, sharex=True) as (figure, grid):
        for line, name in zip(grid, labels, strict=True):
            rows = networks[networks["experiment"] == name]
            for axes, metric in zip(line, COLUMNS, strict=True):
                for kind in BESIDE_TRAINED:
                    part = rows[rows["kind"] == kind]
                    _draw(axes, part["depth"], part[metric], KINDS[kind])
                means = trained[(trained["experiment"] == name) & (trained["metric"] == metric)]
                _draw_trained(axes, means.sort_values("depth"))
                _scale(axes)
        drawing.label_rows(grid, labels.values(), list(COLUMNS.values()), "depth $L$")
        handles = [*(_handle(KINDS[kind]) for kind in ("trained", *BESIDE_TRAINED)), _zero_handle()]
        drawing.draw_key(figure, handles, 2)
    return figure


REGIMES = {
    "constant": (r"$\lambda$ constant", BLUE, "o", 6.5),
    "uniform": (r"$\lambda/L$, last layer too", ORANGE, "s", 3.5),
    "theorem_4_6": (r"$\lambda/L$, last layer $\lambda$", GREEN, "^", 3.5),
}
PLACES: dict[str, Any] = {"beside": "-", "within": drawing.DASHES}


def counterexample(table: pd.DataFrame) -> Figure:
    """Draw App. C: gain and price of collapse against epsilon, and the spread that optima keep.

    table: rows of `study_rows.counterexample_rows`. Solid lines: noise beside the span of the class
    means; dashed: within it, as in the text. The first layer is given.
    """
    with drawing.row_grid(1, 2, 2.9) as (figure, ((left, right),)):
        shallow, size = table["depth"].min(), table["size"].iloc[0]
        for place, style in PLACES.items():
            rows = table[table["place"] == place]
            sizes = rows[(rows["regime"] == "constant") & (rows["depth"] == shallow)].sort_values("size")
            for column, colour, marker in (("motionless_gap", PURPLE, "D"), ("price", drawing.INK, "")):
                shape: dict[str, Any] = {"linestyle": style, "marker": marker, "markersize": 3}
                left.plot(sizes["size"], sizes[column], color=colour, **shape)
            for regime, (_, colour, marker, large) in REGIMES.items():
                depths = rows[(rows["regime"] == regime) & (rows["size"] == size)].sort_values("depth")
                shape = {"linestyle": style, "marker": marker, "markersize": large, "clip_on": False}
                right.plot(depths["depth"], depths["kept_share"], color=colour, **shape)
        left.set(xlabel=r"$\varepsilon$", ylabel="loss", title=r"collapse under a constant $\lambda$")
        right.set(xlabel="depth $L$", ylim=(0, 1))
        right.set_title(rf"share of the spread kept at least, $\varepsilon = {size:g}$")
        left.set_yscale("log")
        for axes in (left, right):
            drawing.set_log(axes, "x")
        lines = [
            drawing.key_entry("price, at least"),
            drawing.key_entry("gain, at most", PURPLE, marker="D", markersize=3),
        ]
        left.legend(handles=lines, loc="upper left")
        handles = [
            *(
                drawing.key_entry(label, colour, marker=marker, markersize=large)
                for label, colour, marker, large in REGIMES.values()
            ),
            drawing.key_entry("noise beside the class means' span", drawing.FAINT),
            drawing.key_entry("noise within it", drawing.FAINT, linestyle=PLACES["within"]),
        ]
        drawing.draw_key(figure, handles, 3)
    return figure


def _draw(axes: Axes, depth: pd.Series, values: pd.Series, kind: Kind) -> None:
    """Draw a line of values above rounding, and a mark at the bottom for the others."""
    present = values.notna()
    small = present & (values.abs() < NOTHING)
    place = axes.get_xaxis_transform()
    axes.plot(depth[small], np.full(int(small.sum()), DROP), color=kind.colour, transform=place, **ZERO)
    large = present & ~small
    axes.plot(depth[large], values[large], color=kind.colour, marker=kind.marker, markersize=3, linewidth=1.2)


def _draw_trained(axes: Axes, means: pd.DataFrame) -> None:
    mean, std = means["log10_mean"], means["log10_std"].fillna(0)
    centre = 10**mean
    bars = np.array([centre - 10 ** (mean - std), 10 ** (mean + std) - centre])
    kind = KINDS["trained"]
    drawing.draw_means(axes, means["depth"], centre, bars, color=kind.colour, marker=kind.marker)


def _scale(axes: Axes) -> None:
    """Set log axes with few ticks."""
    axes.set(xscale="log", yscale="log")
    axes.margins(y=0.12)
    low, high = axes.get_ylim()
    axes.set_ylim(low / (high / low) ** 0.1, high)  # room for the marks at the bottom
    decades = np.log10(axes.get_ylim()[1] / axes.get_ylim()[0])
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if decades > 1.5 else (1.0, 2.0, 5.0), numticks=6))
    axes.yaxis.set_major_formatter(LogFormatterSciNotation(labelOnlyBase=False))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())


def _handle(kind: Kind) -> Line2D:
    return drawing.key_entry(kind.label, kind.colour, marker=kind.marker, markersize=3, linewidth=1.2)


def _zero_handle() -> Line2D:
    return drawing.key_entry("0, up to rounding", drawing.FAINT, **ZERO)
