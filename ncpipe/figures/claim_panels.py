"""A panel for each regime that claims are about: the values behind them, and what became of the claims."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ncpipe.claims.panels import ONSET
from ncpipe.claims.verdicts import counted_verdict
from ncpipe.figures.drawing import draw_key, key_entry, number_short_logs, panel_grid, set_log
from ncpipe.figures.style import FAINT, INK, depth_colours, metric_colours
from ncpipe.figures.x_axis import NAMES
from ncpipe.metrics.study_metrics import entry

COLUMNS = 3
TOGETHER = 3  # metrics against another one that a panel can tell apart
ROW_HEIGHT = 2.2
LOG_FROM = 5  # the largest over the smallest x from which on the axis is logarithmic
MARKERS = "os^vDP"
NAMED = ("name", "series")  # columns that may hold the name of an experiment
SPLITS = {"test": ", test", "true_labels": ", true labels"}


def claim_panels(
    points: pd.DataFrame,
    verdicts: Mapping[str, str],
    labels: Mapping[str, str] = MappingProxyType({}),
    scale: str = "",
) -> Figure:
    """Draw a panel for each regime that claims name.

    points: `claims.panels.panel_points`. verdicts: by panel, the line below its title. labels: of experiments
    whose names are not for readers. scale: of the runs, written below all panels.

    Small marks are single runs; lines go through means, of at least two runs each. Experiments side by side
    are rows, so that their names are read without turning. Marks against another metric have the colour of
    their depth where a panel shows that metric by depth. By epoch a vertical line
    stands where the first run misclassifies nothing. Many metrics against another one have a panel each, on
    one scale, with the verdict of its own claim.
    """
    points = points.assign(
        **{column: points[column].map(lambda name: labels.get(name, name)) for column in NAMED}
    )
    depths = _depths(points)
    shown = [part for name, rows in points.groupby("panel", sort=False) for part in _parts(str(name), rows)]
    with panel_grid(len(shown), 2 if len(shown) == 4 else COLUMNS, ROW_HEIGHT) as (figure, grid):
        for axes, (title, rows) in zip(grid, shown, strict=True):
            _draw(axes, rows, depths)
            number_short_logs(axes)
            axes.set_title(f"{title}\n" if verdicts else title, fontsize=9)
            verdict = verdicts.get(title, rows["verdict"].iloc[0] if verdicts else "")
            axes.text(
                0.5, 1.02, verdict, transform=axes.transAxes, ha="center", va="bottom",
                fontsize=7, color=FAINT,
            )  # fmt: skip
        _share_heights(grid, [rows for _, rows in shown])
        if any(rows["kind"].iloc[0] == "metric" for _, rows in shown) and depths:
            draw_key(figure, _depth_handles(depths), len(depths))
            figure.legends[0].set_title(scale, prop=FontProperties(size=8))
        elif scale:
            figure.supxlabel(scale, fontsize=8, color=FAINT)
    return figure


def _parts(panel: str, rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the title and the rows of a panel, or of each of its metrics where these are too many."""
    if rows["kind"].iloc[0] != "metric" or rows["series"].nunique() <= TOGETHER:
        return [(panel, rows)]
    return [(_label(part, several=True), part) for _, part in rows.groupby("series", sort=False)]


def _depths(points: pd.DataFrame) -> dict[tuple[str, float], float]:
    """Return the depth of each run by a metric that a panel shows by depth, and by its value."""
    by_depth = points[(points["kind"] == "number") & (points["xlabel"] == "L")]
    keys = zip(by_depth["metric"], by_depth["value"], strict=True)
    return dict(zip(keys, by_depth["x"], strict=True))


def _depth_handles(depths: Mapping[tuple[str, float], float]) -> list[Line2D]:
    colours = depth_colours(depths.values())
    return [
        key_entry(f"$L = {depth:g}$", colour, marker="o", markersize=4, linewidth=0)
        for depth, colour in colours.items()
    ]


def _share_heights(grid: Sequence[Axes], parts: Sequence[pd.DataFrame]) -> None:
    """Give the metrics that one panel of claims.yaml holds one range of y."""
    panels: dict[str, list[Axes]] = {}
    for axes, rows in zip(grid, parts, strict=True):
        panels.setdefault(rows["panel"].iloc[0], []).append(axes)
    for shared in panels.values():
        low, high = zip(*(axes.get_ylim() for axes in shared), strict=True)
        for axes in shared:
            axes.set_ylim(min(low), max(high))


def _draw(axes: Axes, points: pd.DataFrame, depths: Mapping[tuple[str, float], float]) -> None:
    marked = points[(points["kind"] == "epoch") & (points["metric"] == "train_error")]
    points = points.drop(marked.index)
    kind, slopes = points["kind"].iloc[0], bool((points["kind"] == "slope").any())
    kind = "place" if slopes else kind
    if kind == "place":
        names = list(dict.fromkeys(points["name"]))
        points = points.assign(x=points["name"].map(names.index).astype(float))
    series = list(dict.fromkeys(points["series"]))
    several = points["metric"].nunique() > 1
    shades = depth_colours(depths.values())
    for index, (name, colour) in enumerate(zip(series, metric_colours(len(series)), strict=True)):
        mine = points[points["series"] == name]
        label = name if kind == "layer" else _label(mine, several)
        shift = 0.2 * (index - (len(series) - 1) / 2) if kind == "place" else 0.0
        values = mine.groupby("x")["value"]
        means = values.mean().where(values.count() >= 2)
        marker = MARKERS[index % len(MARKERS)]
        if kind == "metric":
            keys = zip(mine["xlabel"], mine["x"], strict=True)
            colours = [shades[depths[key]] if key in depths else colour for key in keys]
            axes.scatter(mine["x"], mine["value"], s=16, c=colours, marker=marker, linewidth=0)
            axes.plot([], [], marker, color=INK if depths else colour, markersize=4, label=label)
            continue
        ends = (mine["x"] + shift, mine["value"])
        axes.plot(
            *(ends[::-1] if kind == "place" else ends), marker, color=colour, markersize=2.5, alpha=0.5,
            markeredgewidth=0,
        )  # fmt: skip
        middle = (means.index + shift, means)
        axes.plot(
            *(middle[::-1] if kind == "place" else middle), "|" if kind == "place" else "-", color=colour,
            linewidth=1.2, markersize=9, markeredgewidth=1.5, label=label,
        )  # fmt: skip
    logarithmic = not slopes and all(
        entry(metric).scale == "log" and entry(metric).name for metric in points["metric"]
    )
    of_values = "x" if kind == "place" else "y"
    # Within a decade a logarithmic axis looks like a linear one.
    if logarithmic and points["value"].max() > max(10 * points["value"].min(), 0.0):
        set_log(axes, of_values)
    _place_x(axes, points, kind)
    if len(marked):
        axes.axvline(marked["x"].min(), color=FAINT, linewidth=0.8, linestyle=":")
    if len(series) == 1 and kind != "layer":
        label = _label(points, several=True)
        label = f"slope of $\\log_{{10}}$ {label} per layer" if slopes else label
    else:
        label = _short_name(points["metric"].iloc[0]) if not several else ""
        axes.legend(
            handlelength=1.0, fontsize=6.5, labelcolor=INK, borderaxespad=0.2, labelspacing=0.3,
            loc="lower right" if kind == "place" else "best",
        )  # fmt: skip
    axes.set(**{f"{of_values}label": label})
    pad = 0.35 if kind == "metric" and len(series) > 1 else 0.12  # room for the legend
    if kind == "place":
        axes.margins(x=pad)
    else:
        axes.margins(y=pad)
    axes.tick_params(colors=INK)
    axes.grid(visible=True, color=FAINT, alpha=0.2)


def _place_x(axes: Axes, points: pd.DataFrame, kind: str) -> None:
    if kind == "place":
        names = list(dict.fromkeys(points["name"]))
        lines = [name.replace(", ", ",\n") for name in names]
        axes.set_yticks(range(len(names)), lines, fontsize=7)
        room = 1.0 * (points["series"].nunique() > 1)  # for the legend
        axes.set_ylim(len(names) - 0.5 + room, -0.5)  # the first on top
        return
    x = points["x"]
    if kind == "epoch" or (x.min() > 0 and x.max() / x.min() >= LOG_FROM):
        set_log(axes, "x", "symlog" if kind == "epoch" and x.min() <= 0 else "log")
        if kind == "number":
            values = sorted(x.unique())
            axes.set_xticks(values, [f"{value:g}" for value in values])
    elif kind == "layer":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    label = points["xlabel"].iloc[0]
    axes.set_xlabel(_short_name(label) if kind == "metric" else NAMES.get(label, (label, ""))[0])


def _label(mine: pd.DataFrame, several: bool) -> str:
    metric, split = mine["metric"].iloc[0], mine["split"].iloc[0]
    name = _short_name(metric) if several else ""
    if name and "test" not in name:
        name += SPLITS.get(split, "")
    _, _, onset = mine["series"].iloc[0].partition(ONSET)
    if onset:
        reached, _, level = onset.partition(" <= ")
        onset = f"{_short_name(reached)} $\\leq$ {level}"
    return ", ".join(filter(None, [name, onset])) or SPLITS.get(split, ", train").removeprefix(", ")


def _short_name(metric: str) -> str:
    return entry(metric).label or metric.replace("_", " ")


def verdict_lines(verdicts: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return `2 agree, 1 disagrees` by panel, of the claims that name it."""
    table = pd.DataFrame(list(verdicts), columns=["panel", "verdict"])
    lines = {}
    for panel, words in table.groupby("panel", sort=False)["verdict"]:
        counts = words.value_counts(sort=False)
        lines[str(panel)] = ", ".join(counted_verdict(count, str(word)) for word, count in counts.items())
    return lines
