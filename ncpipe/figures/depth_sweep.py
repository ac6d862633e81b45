"""NC metrics against depth, a row per experiment: Figures 1 and 2 of S25."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.path import Path

from ncpipe.figures import drawing
from ncpipe.figures.labels import Column, interval_label, paper_columns, rank_label, slope_label
from ncpipe.figures.reference_slopes import ReferenceSlope, reference_slope_of
from ncpipe.figures.style import FAINT, INK, Colour, colour_of
from ncpipe.figures.x_axis import XAxis, x_axis_of
from ncpipe.tables.floors import float32_level_of
from ncpipe.tables.keys import x_column
from ncpipe.tables.slopes import turns_back
from ncpipe.tables.summary import in_two_groups

REJECTED_DASHES = (0, (1.0, 1.5))
RUN_SIZE = 2.2  # points across
LEAST_REACH = 0.5  # decades that a panel shows at least, of runs that did not converge
FITS = 5.0  # times the least range of a column's panels that their common one may be
UNKNOWN = 2.0  # width of a power's interval from which on there is no line to draw
TRIANGLE_WIDTH, TRIANGLE_HEIGHT = 0.2, 0.25  # of a panel, at most
LABEL_WIDTH, TRIANGLE_PAD = 0.15, 0.03
TRIANGLE = Path([(-0.5, 0.5), (0.5, -0.5), (-0.5, -0.5), (-0.5, 0.5)])
TRIANGLE_STYLE: dict[str, Any] = {
    "marker": TRIANGLE, "markersize": 9, "markerfacecolor": "none", "linewidth": 0,
}  # fmt: skip
LEGEND_ROOM = 0.22  # of a panel
DAGGER = r"$^{\dagger}$"

ColumnsOf = Callable[[pd.DataFrame, pd.DataFrame], tuple[Column, ...]]  # of a row's runs, and all points


def depth_sweep(
    points: pd.DataFrame,
    summary: pd.DataFrame,
    slopes: pd.DataFrame,
    runs: pd.DataFrame,
    labels: Mapping[str, str],
    columns: ColumnsOf = paper_columns,
) -> Figure:
    """Draw log10 of last-layer metrics against L (log axis): mean ± 1 std over the seeds used, and the fit.

    In a study with an axis its values take the place of L, on a log axis where they are all positive. Where
    they are not there is no fit; a panel then states Spearman's rho.

    points, summary, slopes: of `tables.points`, `tables.summary` and `tables.slopes`. runs: with converged,
    selected, loss_name, last_bias and bound. labels: experiment -> row label; its order is that of the rows.
    columns: chooses a row's columns from its runs and points.

    The line joins means of at least two runs and breaks where there is none, and where the runs fall into two
    groups (`tables.summary.in_two_groups`), between which a mean would lie. All panels have one depth axis,
    and those of a metric show equally many decades, so slopes compare by eye; if the values of one would take
    less than a fifth of that, each panel of this metric has its own scale.

    Dots to the right of the means are single runs: full those that converged, hollow the others (at the
    panel's edge where they enter no mean and lie far beyond the others). The dashed line is the
    least-squares power of L, left out where it is not known to ±1; it is dotted and its slope has a dagger
    where the test rejects that the means lie on a line. There is none where these then turn back
    (`tables.slopes.turns_back`), nor where all values are as small as rounding of float32. The grey triangle
    has the slope of the theory's bound for global optima (`reference_slopes`); its place means nothing. Every
    row says how many of its runs converged, and a depth of which nothing is drawn says why in its place.
    """
    x_axis = x_axis_of(runs)
    rows = {name: runs[runs["experiment"] == name] for name in labels}
    titles = {name: columns(line_runs, points) for name, line_runs in rows.items()}
    width = max(len(row) for row in titles.values())
    with drawing.row_grid(len(rows), width, key=0.55) as (figure, grid):
        above: tuple[Column, ...] = ()
        marks: set[str] = set()
        among = np.unique(pd.concat([line_runs[x_axis.column] for line_runs in rows.values()]))
        spans = _common_spans(points, summary, titles)
        alike: dict[Column, list[Axes]] = {column: [] for row in titles.values() for column in row}
        for line, (name, line_runs) in zip(grid, rows.items(), strict=True):
            for axes in line[len(titles[name]) :]:
                axes.set_visible(False)
            for i, (axes, column) in enumerate(zip(line, titles[name], strict=False)):
                x_axis.scale(axes, np.unique(line_runs[x_axis.column]), among)
                marks |= _draw_panel(
                    axes,
                    drawing.last_layer(points, name, column),
                    drawing.last_layer(summary, name, column),
                    drawing.last_layer(slopes, name, column),
                    x_axis,
                    reference_slope_of(column.metric, line_runs) if x_axis.is_depth else None,
                    colour_of(column.metric, i),
                    spans[column],
                )
                if spans[column]:
                    alike[column].append(axes)
                if above[i : i + 1] != (column,):
                    axes.set_title(column.title)
            above = titles[name]
        for panels in alike.values():
            _equal_heights(panels)
        row_labels = [
            f"{labels[name]}\n{int(line_runs['converged'].sum())} of {len(line_runs)} runs converged"
            for name, line_runs in rows.items()
        ]
        drawing.label_rows(grid, row_labels, x_label=x_axis.label)
        _draw_key(figure, marks, slopes["level"].iloc[0] if len(slopes) else math.nan, x_axis.symbol)
    return figure


def _draw_panel(
    axes: Axes,
    points: pd.DataFrame,
    summary: pd.DataFrame,
    slopes: pd.DataFrame,
    x_axis: XAxis,
    reference: ReferenceSlope | None,
    colour: Colour,
    span: float,
) -> set[str]:
    """Return what the key has to name. span: decades that the data's part shows at least."""
    used, failed = _drawn_runs(points)
    if used.empty and failed.empty:
        drawing.state_nothing(axes, drawing.absence(int(summary["n_selected"].sum())))
        return set()
    # not seaborn's lineplot: it joins the neighbours of a missing depth
    means = _of_several(summary, used)
    drawing.draw_means(axes, means[x_axis.column], means["log10_mean"], means["log10_std"], color=colour)
    among = summary[x_axis.column].to_numpy()
    for marked, face in (
        (used[used["converged"]], colour),
        (used[~used["converged"]], "white"),
        (failed, "white"),
    ):
        x = x_axis.beside(marked[x_axis.column], among)  # beside the mean, which would hide them
        axes.scatter(
            x, marked["log10"], s=RUN_SIZE**2, facecolor=face, edgecolor=colour, linewidth=0.7, zorder=3
        )
    gaps = summary[(summary["n_used"] == 0) & ~summary[x_axis.column].isin(failed[x_axis.column])]
    for place, selected in zip(gaps[x_axis.column], gaps["n_selected"], strict=True):
        drawing.state_gap(axes, place, selected)
    axes.margins(y=0.1)
    low, high = axes.get_ylim()
    grown = max(0.0, 1.2 * span - (high - low)) / 2
    axes.set_ylim(low - grown, high + grown)
    drawing.thin_ticks(axes)
    marks = set() if failed.empty else {"moved"}
    if used.empty:
        return marks
    marks |= {"mean"} if used["converged"].all() else {"mean", "moved"}
    marks |= {"groups"} if _grouped(used) else set()
    if (10 ** used["log10"] <= float32_level_of(used["metric"].iloc[0])).all():
        _note(axes, "size of float32 rounding")
        return marks
    marks |= _draw_fit(axes, slopes, x_axis, used)
    if reference is None:
        return marks
    whiskers = means.assign(log10=means["log10_mean"] - means["log10_std"])
    drawn = pd.concat([table[["depth", "log10"]] for table in (whiskers, used, failed)])
    bounded = _draw_reference(axes, drawn.groupby("depth")["log10"].min().dropna(), reference)
    return marks | {"bound"} if bounded else marks


def _of_several(summary: pd.DataFrame, used: pd.DataFrame) -> pd.DataFrame:
    """Return means and deviations, NaN where they are of fewer than two runs or between two groups."""
    shown = ["log10_mean", "log10_std"]
    known = (summary["n_used"] >= 2) & ~summary[x_column(summary)].isin(_grouped(used))
    return summary.assign(**{name: summary[name].where(known) for name in shown})


def _grouped(used: pd.DataFrame) -> list[Any]:
    """Return the places where the runs fall into two groups."""
    by_place = used.groupby(x_column(used))["log10"]
    return [place for place, values in by_place if in_two_groups(values.to_numpy())]


def _drawn_runs(points: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the runs used, and the others that did not converge, moved to within reach."""
    used = points[points["used"]]
    failed = points[~points["used"] & ~points["converged"] & points["log10"].notna()]
    return used, failed.assign(log10=_within_reach(failed["log10"], used["log10"]))


def _common_spans(
    points: pd.DataFrame, summary: pd.DataFrame, titles: Mapping[str, Sequence[Column]]
) -> dict[Column, float]:
    """Return the decades that the panels of each column show in common; 0 where one would be too flat."""
    spans: dict[Column, list[float]] = {}
    for name, columns in titles.items():
        for column in columns:
            used, failed = _drawn_runs(drawing.last_layer(points, name, column))
            means = _of_several(drawing.last_layer(summary, name, column), used)
            ends = [means["log10_mean"] + side * means["log10_std"] for side in (-1, 1)]
            runs = [used["log10"], failed["log10"]]
            values = pd.concat([*ends, *runs]).dropna()
            spans.setdefault(column, []).append(float(np.ptp(values)) if len(values) else 0.0)
    return {
        column: max(decades) if max(decades) <= FITS * min(filter(None, decades), default=0.0) else 0.0
        for column, decades in spans.items()
    }


def _equal_heights(panels: Sequence[Axes]) -> None:
    """Raise the upper end of panels until all show as many decades as the one that shows most."""
    most = max((float(np.ptp(axes.get_ylim())) for axes in panels), default=0.0)
    for axes in panels:
        low, _ = axes.get_ylim()
        axes.set_ylim(low, low + most)


def _within_reach(failed: pd.Series, used: pd.Series) -> pd.Series:
    """Return values clipped so that the runs used take at least a third of the panel's height."""
    if used.empty:
        return failed
    reach = max(used.max() - used.min(), LEAST_REACH)
    return failed.clip(used.min() - reach, used.max() + reach)


def _draw_fit(axes: Axes, slopes: pd.DataFrame, x_axis: XAxis, used: pd.DataFrame) -> set[str]:
    if not x_axis.log:
        ranked = slopes[slopes["rho"].notna()]
        for _, fit in ranked.iterrows():
            _note(axes, rank_label(fit["rho"], fit["rho_p_value"]))
        return {"rank"} if len(ranked) else set()
    fitted = slopes[slopes["slope"].notna()]
    if fitted.empty:
        return set()
    fit = fitted.iloc[0]
    if fit["high"] - fit["low"] > UNKNOWN:
        _note(axes, interval_label(fit["low"], fit["high"], x_axis.symbol))
        return {"unknown"}
    means = used.groupby(x_axis.column)["log10"].mean()
    if fit["rejected"] and turns_back(means.tolist(), fit["slope"]):
        _note(axes, f"turns back: no power{DAGGER}")
        return {"turned"}
    mark, dashes = (DAGGER, REJECTED_DASHES) if fit["rejected"] else ("", drawing.FIT_DASHES)
    ends = np.array([means.index.min(), means.index.max()])
    heights = fit["intercept"] + fit["slope"] * np.log10(ends)
    label = slope_label(fit["slope"], fit["low"], fit["high"], x_axis.symbol) + mark
    (line,) = axes.plot(ends, heights, label=label, linewidth=0.9, color=INK, linestyle=dashes)
    drawing.draw_legend(axes, [line], LEGEND_ROOM, handlelength=1.9)
    return {"rejected" if fit["rejected"] else "fit"}


def _note(axes: Axes, text: str) -> None:
    drawing.draw_legend(axes, [drawing.key_entry(text, linewidth=0)], LEGEND_ROOM, handlelength=0)


def _draw_reference(axes: Axes, lows: pd.Series, reference: ReferenceSlope) -> bool:
    """Draw a triangle with the bound's slope, in the lower corner with more room, and below all data there.

    lows: the lowest that is drawn at each depth. Returns False where the bound does not fall over them.
    """
    places, bound = np.log10(lows.index.to_numpy(dtype=float)), reference.log10(lows.index.to_numpy())
    x, bound = places[np.isfinite(bound)], bound[np.isfinite(bound)]
    if len(x) < 2 or bound[-1] >= bound[0]:
        return False
    steepness = (bound[0] - bound[-1]) / (x[-1] - x[0])  # the mean one, where there is a logarithm
    (low, high), (bottom, top) = np.log10(axes.get_xlim()), axes.get_ylim()
    width = min(TRIANGLE_WIDTH * (high - low), TRIANGLE_HEIGHT * (top - bottom) / steepness)
    pads = TRIANGLE_PAD * (high - low), 2 * TRIANGLE_PAD * (top - bottom)
    spot = 2 * pads[0] + width + LABEL_WIDTH * (high - low)
    beneath_left, beneath_right = lows[places < low + spot].min(), lows[places > high - spot].min()
    on_left = not beneath_left < beneath_right
    room = (beneath_left if on_left else beneath_right) - bottom
    bottom -= max(0.0, width * steepness + 2 * pads[1] - room)
    left = low + pads[0] if on_left else high - pads[0] - width
    foot = bottom + pads[1]
    across, up = np.array([0, width, 0, 0]), np.array([width, 0, 0, width]) * steepness
    axes.plot(10 ** (left + across), foot + up, color=FAINT, linewidth=0.8, zorder=1)
    axes.set_ylim(bottom, top)
    beside, side = (left + width, "left") if on_left else (left, "right")
    note: dict[str, Any] = {"textcoords": "offset points", "ha": side, "fontsize": 7, **drawing.NOTE}
    axes.annotate(reference.label, (10**beside, foot), (3 if on_left else -3, 0), **note)
    return True


def _draw_key(figure: Figure, marks: set[str], level: float, symbol: str) -> None:
    """Draw the figure's legend, with an entry for each kind of mark that is there.

    level: of intervals. symbol: of the x axis.
    """
    run: dict[str, Any] = {"marker": "o", "markersize": RUN_SIZE, "markeredgewidth": 0.7, "linewidth": 0}
    fit = "" if math.isnan(level) else f" [{100 * level:g} % CI]"
    shorter = f"fit{DAGGER}, " if marks & {"fit", "unknown"} else f"least-squares fit{DAGGER}{fit},\n"
    no_line = f"log-linearity rejected ($p < {1 - level:g}$)"
    rejected = f"{shorter if 'rejected' in marks else DAGGER}{no_line}"
    entries = [
        ("mean", "mean ± 1 std over seeds", {"marker": "o", "markersize": 3, "linewidth": 1.3}),
        ("mean", "one run", run),
        (
            "moved",
            f"{'one' if 'mean' in marks else 'run'} that did not converge",
            run | {"markerfacecolor": "white"},
        ),
        ("groups", "no mean: runs in two groups", {"linewidth": 0}),
        ("fit", f"least-squares fit{fit}", {"linestyle": drawing.FIT_DASHES, "linewidth": 0.9}),
        ("unknown", rf"${symbol}^p$: least-squares power{fit}", {"linewidth": 0}),
        ("rank", r"$\rho_S$: Spearman's rank correlation", {"linewidth": 0}),
        ("bound", "slope of the bound for global optima", {"color": FAINT} | TRIANGLE_STYLE),
        ("rejected", rejected, {"linestyle": REJECTED_DASHES, "linewidth": 0.9}),
        ("turned", rejected if "rejected" not in marks else "", {"linewidth": 0}),
    ]
    handles = [drawing.key_entry(label, **style) for mark, label, style in entries if mark in marks and label]
    drawing.draw_key(figure, handles, 2 if len(handles) == 4 else 3)
