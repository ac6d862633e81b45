"""Collapse against the layer, a row per experiment and a line per depth."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ncpipe.figures import drawing
from ncpipe.figures.style import INK, PAGE_WIDTH, Colour, depth_colours
from ncpipe.figures.x_axis import XAxis, x_axis_of
from ncpipe.metrics.study_metrics import entry
from ncpipe.tables.keys import of_selected
from ncpipe.tables.points import LAST

LAW_METRIC = "nc1_trace_ratio"
NC2, GNC2 = "nc2_means", "gnc2_spread_means"
LAW_DASHES = (0, (6.0, 1.5, 1.0, 1.5))  # not to be taken for the test split
ACROSS = 3.5  # panels of a page's width, from which on a figure is wider
FEWEST_LAYERS = 4  # of a line whose R^2 says something: any three values that fall are close to one

PANELS = {LAW_METRIC: ("train",), NC2: ("train",), "ncc_error": ("train", "test")}  # metric -> its splits
REGRESSION_PANELS = dict.fromkeys(
    ("nrc1_variance", "nrc2_cka", "nrc3_alignment", "nrc4_linear_mse", "intrinsic_dimension"),
    ("train", "test"),
)
# What joins PANELS where it was measured: beginnings of metrics, with their split.
FURTHER = {
    "nc1_tokens_of_sample": "train",
    "mahalanobis_auroc": "ood",
    "knn_auroc": "ood",
    "transfer_ncc_error": "target",
}


def layer_profiles(
    profile: pd.DataFrame, law: pd.DataFrame, runs: pd.DataFrame, labels: Mapping[str, str]
) -> Figure:
    """Draw NC1, NC2 of the class means and nearest-class-mean error against the relative layer position.

    Further panels hold the collapse of all tokens, scores of other data and few-shot errors, where layers
    have such. Of vectors these are the metrics of `ncpipe.metrics.nrc`.

    profile, law: of `tables.profiles`. runs: with selected. labels: experiment -> row label, in the order of
    the rows. The position is divided by that of the last layer: 1 is h, so that networks of all depths end at
    the same place, and the first layer of a ResNet stands at 1/L. Lines are means over the seeds used with a
    band of ± 1 std (of log10 values in the first two columns); every panel says which depths have no line,
    and why. Solid is train, dashed test. Over NC1 of the deepest network lies the law of data separation: the
    mean over seeds of the runs' lines, whose rho = 10^mean slope is per block of the network, with the mean
    of their R^2, or with the number of layers where that is only three.
    """
    x_axis = x_axis_of(runs)
    colours = depth_colours(profile[x_axis.column])
    panels = _panels(profile)
    law = of_selected(law, runs)
    width = PAGE_WIDTH * max(1.0, len(panels) / ACROSS)
    with drawing.row_grid(len(labels), len(panels), key=0.75, width=width, sharex=True) as (figure, grid):
        for line, name in zip(grid, labels, strict=True):
            line_profile = profile[profile["experiment"] == name]
            selected = drawing.selected_by_place(runs[runs["experiment"] == name], x_axis)
            for axes, (metric, drawn) in zip(line, panels.items(), strict=True):
                _draw_panel(
                    axes, line_profile[line_profile["split"].isin(drawn)], x_axis, metric, colours, selected
                )
            _draw_law(line[0], line_profile, law[law["experiment"] == name], x_axis, next(iter(panels)))
        titles = [entry(metric).title for metric in panels]
        drawing.label_rows(grid, labels.values(), titles, "relative layer position")
        tested = drawing.has_test(runs) or panels is REGRESSION_PANELS
        _draw_key(figure, x_axis, colours, next(iter(panels)), tested)
    return figure


def _panels(profile: pd.DataFrame) -> Mapping[str, tuple[str, ...]]:
    """Return the metrics with their splits: GNC2 for NC2 if no experiment has an NC2 (K > d + 1 classes)."""
    measured = sorted(set(profile["metric"]))
    if not REGRESSION_PANELS.keys().isdisjoint(measured):
        return REGRESSION_PANELS
    usable = profile.loc[profile["log10_mean"].notna(), "metric"]
    simplex = (usable == NC2).any() or not (usable == GNC2).any()
    panels = {metric if simplex or metric != NC2 else GNC2: splits for metric, splits in PANELS.items()}
    inner = set(profile.loc[profile["layer"] != LAST, "metric"])
    named = [(name, split) for start, split in FURTHER.items() for name in measured if name.startswith(start)]
    return panels | {name: (split,) for name, split in named if name in inner}


def _draw_panel(
    axes: Axes,
    profile: pd.DataFrame,
    x_axis: XAxis,
    metric: str,
    colours: Mapping[float, Colour],
    selected: Mapping[float, int],
) -> None:
    logarithmic = entry(metric).scale == "log"
    mean = "log10_mean" if logarithmic else "mean"
    rows = profile[(profile["metric"] == metric) & profile[mean].notna()]
    axes.set_xlim(-0.03, 1.03)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
    if rows.empty:
        drawing.state_nothing(axes, drawing.absence(sum(selected.values())))
        return
    if logarithmic and rows[mean].max() < drawing.ROUNDING:  # two classes: centred means are always opposite
        drawing.state_nothing(axes, "zero to rounding")
        return
    for (_, split), table in rows.groupby([x_axis.column, "split"]):
        _draw_line(axes, table, mean, colours[table[x_axis.column].iloc[0]], dashed=split == "test")
    axes.margins(y=0.08)
    if not logarithmic and entry(metric).collapse == "0":
        drawing.start_at_zero(axes, axes.lines)
    drawing.thin_ticks(axes)
    drawing.state_missing(
        axes, x_axis, rows[x_axis.column], selected, top=not logarithmic
    )  # where errors have gone down


def _draw_line(axes: Axes, table: pd.DataFrame, mean: str, colour: Colour, dashed: bool) -> None:
    x = (table["position"] / table["position"].max()).to_numpy()
    y, spread = table[mean].to_numpy(), table[mean.replace("mean", "std")].fillna(0).to_numpy()
    style = drawing.DASHES if dashed else "-"
    marker = "o" if len(x) == 1 else ""
    width = 0.9 if dashed else 1.2
    axes.plot(x, y, color=colour, linestyle=style, linewidth=width, marker=marker, markersize=3)
    axes.fill_between(x, y - spread, y + spread, color=colour, alpha=0.15, linewidth=0)


def _draw_law(axes: Axes, profile: pd.DataFrame, law: pd.DataFrame, x_axis: XAxis, metric: str) -> None:
    """Draw the law of the deepest network that has one."""
    fitted = law[(law["metric"] == metric) & (law["split"] == "train") & law["r_squared"].notna()]
    if fitted.empty:
        return
    largest = fitted[x_axis.column].max()
    mean = fitted[fitted[x_axis.column] == largest][["slope", "intercept", "r_squared", "n_layers"]].mean()
    positions = profile[(profile[x_axis.column] == largest) & (profile["metric"] == metric)]["position"]
    ends = np.array([positions.min(), positions.max()])
    quality = rf"$R^2 = {mean['r_squared']:.2f}$"
    if mean["n_layers"] < FEWEST_LAYERS:
        quality = f"{mean['n_layers']:.0f} layers"
    label = rf"$\rho = {10 ** mean['slope']:.2f}$, {quality}"
    heights = mean["intercept"] + mean["slope"] * ends
    (line,) = axes.plot(
        ends / ends.max(), heights, color=INK, linestyle=LAW_DASHES, linewidth=0.9, label=label
    )
    drawing.draw_legend(axes, [line], room=0.2, handlelength=2.3)


def _draw_key(
    figure: Figure, x_axis: XAxis, colours: Mapping[float, Colour], metric: str, tested: bool
) -> None:
    law = rf"law {entry(metric).label} $\propto \rho^{{\,l}}$ fitted to the largest ${x_axis.symbol}$"
    handles = [
        *x_axis.handles(colours),
        drawing.key_entry("train", linewidth=1.2),
        *([drawing.key_entry("test", linewidth=0.9, linestyle=drawing.DASHES)] if tested else []),
        drawing.key_entry(law, linewidth=0.9, linestyle=LAW_DASHES),
    ]
    drawing.draw_key(figure, handles, 5)
