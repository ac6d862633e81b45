"""Collapse on the training samples against collapse on held-out ones, by depth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ncpipe.figures import drawing
from ncpipe.figures.style import FAINT, INK, Colour, colour_of
from ncpipe.figures.x_axis import XAxis, x_axis_of
from ncpipe.metrics.study_metrics import entry
from ncpipe.tables.keys import of_selected
from ncpipe.tables.points import LAST

# A colour stands for a metric: NC1 has that of the other figures, the rest those that no headline metric has.
NC1 = colour_of("nc1_trace_ratio", 0)
WEAK, STRONG, NC4, DEPTH = map(to_rgb, ("#5b4a9e", "#a03060", "#2f7f8f", INK))
FITS = 1.5  # of a panel's height that the curve may add to it
SPLITS: dict[str, tuple[str, Any]] = {
    "train": ("o", "-"),
    "test": ("s", drawing.DASHES),
}  # marker and line of a split


@dataclass(frozen=True)
class Series:
    """Holds a line: a last-layer metric on one split, and how it is drawn.

    label: in the legend; empty if the legend has only the split.
    """

    metric: str
    split: str
    colour: Colour
    label: str = ""
    hollow: bool = False


PANELS = {  # title -> lines
    entry("nc1_trace_ratio").title: (
        Series("nc1_trace_ratio", "train", NC1),
        Series("nc1_trace_ratio", "test", NC1),
    ),
    r"$\log_{10}$ test collapse": (
        Series("weak_test_collapse", "test", WEAK, "weak test collapse", hollow=True),
        Series("strong_test_collapse", "test", STRONG, "strong test collapse"),
    ),
    entry("nc4_mismatch").title: (
        Series("nc4_mismatch", "train", NC4),
        Series("nc4_mismatch", "test", NC4),
    ),
}


def train_against_test(
    profile: pd.DataFrame, effective: pd.DataFrame, runs: pd.DataFrame, labels: Mapping[str, str]
) -> Figure:
    """Draw NC1 on both splits, weak and strong test collapse, NC4 mismatch and effective depth against L.

    profile, effective: of `tables.profiles` (`layer_profile`, `effective_depths`); of the profile only `last`
    is drawn. runs: with selected. labels: experiment -> row label, in the order of the rows. Means ± 1 std
    over the seeds used, of log10 values in the first two columns, dashed on test samples; a depth
    without any says so in its place.
    Weak test collapse is a hollow square, so that both are seen where it equals the strong one.
    The dashed curve in the last column is effective depth = L: no layer before the last separates the
    training samples. Where it leaves the panel, a note says up to what it goes. Without any test samples
    there is no panel of test collapse.
    """
    x_axis = x_axis_of(runs)
    last, effective = profile[profile["layer"] == LAST], of_selected(effective, runs)
    tested = drawing.has_test(runs)
    panels = {title: lines for title, lines in PANELS.items() if tested or not _of_test(lines)}
    with drawing.row_grid(len(labels), len(panels) + 1, key=0.7) as (figure, grid):
        for line, name in zip(grid, labels, strict=True):
            line_profile, line_runs = (table[table["experiment"] == name] for table in (last, runs))
            selected = drawing.selected_by_place(line_runs, x_axis)
            for axes, lines in zip(line, panels.values(), strict=False):
                if _of_test(lines) and not drawing.has_test(line_runs):
                    axes.set_xticks([])
                    drawing.state_nothing(axes, "no test samples")
                else:
                    _draw_panel(axes, line_profile, x_axis, lines, selected)
            _draw_effective(line[-1], effective[effective["experiment"] == name], x_axis, selected)
        drawing.label_rows(grid, labels.values(), [*panels, "effective depth"], x_axis.label)
        _draw_key(figure, grid)
    return figure


def _of_test(lines: Sequence[Series]) -> bool:
    return all(line.split == "test" for line in lines)


def _draw_panel(
    axes: Axes, profile: pd.DataFrame, x_axis: XAxis, shown: Sequence[Series], selected: Mapping[float, int]
) -> None:
    drawn: set[float] = set()
    lines: list[Line2D] = []
    logarithmic = entry(shown[0].metric).scale == "log"
    mean, std = (f"log10_{name}" if logarithmic else name for name in ("mean", "std"))
    for series in shown:
        rows = profile[
            (profile["metric"] == series.metric) & (profile["split"] == series.split) & profile[mean].notna()
        ]
        lines += _draw_line(axes, rows[x_axis.column], rows[mean], rows[std], series)
        drawn |= set(rows[x_axis.column])
    _finish(axes, x_axis, drawn, selected)
    if drawn and not logarithmic:
        drawing.start_at_zero(axes, lines)


def _draw_line(
    axes: Axes, places: pd.Series, mean: pd.Series, std: pd.Series, series: Series
) -> list[Line2D]:
    """Draw a line with its bars; return the line alone, or nothing without values."""
    if places.empty:
        return []
    marker, dashes = SPLITS[series.split]
    hollow = {"markersize": 6, "markerfacecolor": "none"} if series.hollow else {}
    style = {"color": series.colour, "marker": marker, "linestyle": dashes, "linewidth": 1.2} | hollow
    return [drawing.draw_means(axes, places, mean, std.fillna(0), label=series.label or None, **style)]


def _draw_effective(
    axes: Axes, effective: pd.DataFrame, x_axis: XAxis, selected: Mapping[float, int]
) -> None:
    table = effective.groupby(x_axis.column, as_index=False)["effective_depth"].agg(["mean", "std"])
    series = Series("", "train", DEPTH)
    lines = _draw_line(axes, table[x_axis.column], table["mean"], table["std"], series)
    _finish(axes, x_axis, set(table[x_axis.column]), selected)
    if table.empty:
        return
    own_top = axes.get_ylim()[1]
    places = table[x_axis.column]
    whole = np.geomspace(places.min(), places.max(), 100) if x_axis.is_depth else np.array(list(selected))
    depth = whole if x_axis.is_depth else np.full(len(whole), effective["depth"].iloc[0])
    style: dict[str, Any] = {"color": FAINT, "linestyle": drawing.DASHES, "linewidth": 0.9, "zorder": 1}
    axes.plot(whole, depth, label="effective depth $= L$", **style)
    top = 1.15 * max(own_top, depth.min())
    if depth.max() <= FITS * top:
        top = max(top, 1.05 * depth.max())
    axes.set_ylim(top=top)  # a far longer curve leaves the panel, its start and the data do not
    if depth.max() > top:
        leaves = np.argmax(depth > top)
        side, offset = ("left", 4) if leaves < len(whole) / 2 else ("right", -8)
        note = rf"$\uparrow$ to {depth.max():g}"
        corner: dict[str, Any] = {"ha": side, "va": "top", "fontsize": 7, **drawing.NOTE}
        axes.annotate(note, (whole[leaves], top), (offset, -1), textcoords="offset points", **corner)
    drawing.start_at_zero(axes, lines)


def _finish(axes: Axes, x_axis: XAxis, drawn: set[float], selected: Mapping[float, int]) -> None:
    if not drawn:
        drawing.state_absence(axes, selected)
        return
    axes.margins(y=0.1)
    drawing.thin_ticks(axes)
    x_axis.scale(axes, np.array(list(selected)))
    axes.tick_params(axis="x", labelsize=7)
    for place, count in selected.items():
        if place not in drawn:
            drawing.state_gap(axes, place, count)


def _draw_key(figure: Figure, grid: np.ndarray) -> None:
    """Draw the legend: the splits in ink, and each name once, from the first panel that has it."""
    drawn = [line.get_linestyle() for axes in grid.flat for line in axes.lines if line.get_marker() in "os"]
    entries: dict[str, Artist] = {}
    for split, (marker, dashes) in SPLITS.items():
        if ("-" if dashes == "-" else "--") in drawn:
            style: dict[str, Any] = {"marker": marker, "linestyle": dashes, "markersize": 3, "linewidth": 1.2}
            entries[split] = drawing.key_entry(split, **style)
    for axes in grid.flat:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    drawing.draw_key(figure, list(entries.values()), 5)
