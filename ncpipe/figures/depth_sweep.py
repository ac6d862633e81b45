"""NC metrics against depth, a row per experiment: Figures 1 and 2 of S25."""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ncpipe.figures.guides import Guide, guide_of
from ncpipe.figures.labels import Column, paper_columns, slope_label
from ncpipe.figures.panels import (
    FIT_DASHES,
    NOTE,
    ROW_HEIGHT,
    Colour,
    absence,
    scale_depth_axis,
    state_gap,
    state_nothing,
    thin_ticks,
)
from ncpipe.figures.style import FAINT, INK, PAGE_WIDTH, metric_colours, paper_style
from ncpipe.tables.points import LAST

REJECTED_DASHES = (0, (1.0, 1.5))
DAGGER = r"$^{\dagger}$"


def depth_sweep(
    points: pd.DataFrame,
    summary: pd.DataFrame,
    slopes: pd.DataFrame,
    runs: pd.DataFrame,
    labels: Mapping[str, str],
    columns: Callable[[str, bool], tuple[Column, ...]] = paper_columns,
) -> Figure:
    """log10 of last-layer metrics against L (log axis): mean ± 1 std over converged seeds, and the fit.

    points, summary, slopes: of `tables.points`, `tables.summary` and `tables.slopes`. runs: with converged,
    loss_name and last_bias; the latter two choose an experiment's columns. labels: experiment -> row label;
    its order is that of the rows. Faint dots are single runs, the dashed line is the least-squares power of
    L; it is dotted and its slope has a dagger where the test rejects that the means lie on a line. The grey
    line is the slope of the theory's bound for global optima (`guides`), from the first mean on. Every row
    says how many of its runs converged, and a depth without a usable run says so in its place.
    """
    rows = {name: runs[runs["experiment"] == name] for name in labels}
    titles = {name: columns(*_objective(own)) for name, own in rows.items()}
    guides = {name: [guide_of(c.metric, own) for c in titles[name]] for name, own in rows.items()}
    width = max(len(row) for row in titles.values())
    colours = metric_colours(width)
    with paper_style():
        figure = Figure(figsize=(PAGE_WIDTH, ROW_HEIGHT * len(rows) + 0.55), layout="constrained")
        grid = figure.subplots(len(rows), width, squeeze=False)
        above: tuple[Column, ...] = ()
        for line, (name, own) in zip(grid, rows.items(), strict=True):
            for i, (axes, column) in enumerate(zip(line, titles[name], strict=True)):
                scale_depth_axis(axes, np.unique(own["depth"]))
                _draw_panel(
                    axes,
                    _series(points, name, column),
                    _series(summary, name, column),
                    _series(slopes, name, column),
                    guides[name][i],
                    colours[i],
                )
                if above[i : i + 1] != (column,):
                    axes.set_title(column.title)
            line[0].set_ylabel(f"{labels[name]}\n{_tally(own)}", labelpad=6, linespacing=1.25)
            above = titles[name]
        for axes in grid[-1]:
            axes.set_xlabel("depth $L$")
        figure.align_ylabels(grid[:, 0])
        shown = [_series(slopes, name, column) for name in rows for column in titles[name]]
        rejected = any(own["rejected"].any() for own in shown)
        _draw_key(figure, slopes, rejected, guided=any(any(row) for row in guides.values()))
        figure.draw_without_rendering()
    return figure


def _objective(own: pd.DataFrame) -> tuple[str, bool]:
    return str(own["loss_name"].iloc[0]), bool(own["last_bias"].iloc[0])


def _series(table: pd.DataFrame, experiment: str, column: Column) -> pd.DataFrame:
    return table[
        (table["experiment"] == experiment)
        & (table["layer"] == LAST)
        & (table["split"] == column.split)
        & (table["metric"] == column.metric)
    ]


def _tally(own: pd.DataFrame) -> str:
    return f"{int(own['converged'].sum())} of {len(own)} runs converged"


def _draw_panel(
    axes: Axes,
    points: pd.DataFrame,
    summary: pd.DataFrame,
    slopes: pd.DataFrame,
    guide: Guide | None,
    colour: Colour,
) -> None:
    used = points[points["used"]]
    if used.empty:
        state_nothing(axes, absence(int(summary["n_converged"].sum())))
        return
    sns.scatterplot(
        data=used, x="depth", y="log10", ax=axes, color=colour, alpha=0.35, s=9, linewidth=0, legend=False
    )
    # not seaborn's lineplot: it joins the neighbours of a missing depth
    axes.errorbar(
        summary["depth"],
        summary["log10_mean"],
        yerr=summary["log10_std"],
        color=colour,
        marker="o",
        markersize=3,
        linewidth=1.3,
        elinewidth=0.9,
        capsize=2,
    )
    gaps = summary[summary["n_used"] == 0]
    for depth, converged in zip(gaps["depth"], gaps["n_converged"], strict=True):
        state_gap(axes, depth, converged)
    axes.set(xlabel="", ylabel="")
    axes.margins(y=0.1)
    thin_ticks(axes)
    _draw_fit(axes, slopes, used["depth"].to_numpy())
    if guide is not None:
        _draw_guide(axes, summary[summary["n_used"] > 0], guide)


def _draw_fit(axes: Axes, slopes: pd.DataFrame, depths: np.ndarray) -> None:
    fitted = slopes[slopes["slope"].notna()]
    if fitted.empty:
        return
    fit = fitted.iloc[0]
    ends = np.array([depths.min(), depths.max()])
    label, dashes = slope_label(fit["slope"], fit["low"], fit["high"]), FIT_DASHES
    if fit["rejected"]:
        label, dashes = label + DAGGER, REJECTED_DASHES
    heights = fit["intercept"] + fit["slope"] * np.log10(ends)
    (line,) = axes.plot(ends, heights, color=INK, linestyle=dashes, linewidth=0.9, label=label)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.22 * (high - low))  # room for the legend, wherever the curve goes
    axes.legend(handles=[line], loc="upper right", frameon=False, borderaxespad=0.1, handlelength=1.9)


def _draw_guide(axes: Axes, summary: pd.DataFrame, guide: Guide) -> None:
    """From the shallowest mean on; it may leave the panel, which is scaled to the data."""
    depths, means = summary["depth"].to_numpy(), summary["log10_mean"].to_numpy()
    bound = guide.log10(depths)
    start = int(np.argmax(np.isfinite(bound)))
    heights = means[start] + bound[start:] - bound[start]
    if len(heights) < 2:
        return
    limits = axes.get_ylim()
    axes.plot(depths[start:], heights, color=FAINT, linewidth=0.7, zorder=1)
    axes.set_ylim(limits)
    x, side = (0.03, "left") if means[-1] < means[0] else (0.97, "right")  # where the curve is not
    axes.text(x, 0.04, guide.label, transform=axes.transAxes, ha=side, va="bottom", fontsize=7, **NOTE)


def _draw_key(figure: Figure, slopes: pd.DataFrame, rejected: bool, guided: bool) -> None:
    level = f" [{100 * slopes['level'].iloc[0]:g} % CI]" if len(slopes) else ""
    handles = [
        Line2D([], [], color=INK, marker="o", markersize=3, linewidth=1.3, label="mean ± 1 std over seeds"),
        Line2D([], [], color=INK, alpha=0.35, marker="o", markersize=3, linewidth=0, label="one run"),
        Line2D([], [], color=INK, linestyle=FIT_DASHES, linewidth=0.9, label=f"least-squares fit{level}"),
    ]
    if guided:
        handles.append(Line2D([], [], color=FAINT, linewidth=0.7, label="bound for global optima (slope)"))
    if rejected:
        p = f"$p < {1 - slopes['level'].iloc[0]:g}$"
        label = f"fit{DAGGER}, log-linearity rejected ({p})"
        handles.append(Line2D([], [], color=INK, linestyle=REJECTED_DASHES, linewidth=0.9, label=label))
    columns = {3: 3, 4: 2 if rejected else 4, 5: 3}[len(handles)]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
