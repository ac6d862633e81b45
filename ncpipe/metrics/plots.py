"""Draw measured values: metrics against layers, and against epochs."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ncpipe.metrics.catalogue import entry_of_package
from ncpipe.system.errors import InputError, suggest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = ("nc1_trace_ratio", "nc2_etf", "nc2_means", "nc3_cosine", "ncc_error")
COLUMNS = 3
SIZE = 2.9, 2.3  # inches of a panel
Row = tuple[str, str, str, float]
Lines = dict[str, dict[str, dict[float, float]]]  # value by metric, then label, then place on the x axis


def plot_layers(rows: Sequence[Row], metrics: Sequence[str] | None = None) -> Figure:
    """Return a figure with a panel for each metric: its value against layers, a line for each split.

    rows: layer, split, metric and value. metrics: their names; by default those of NC1 to NC4 that most
    layers have. Raises InputError for a metric that was not measured, and where matplotlib is not installed.
    """
    layers = sorted(dict.fromkeys(layer for layer, *_ in rows), key="last".__eq__)
    lines: Lines = {}
    for layer, split, metric, value in sorted(rows, key=lambda row: layers.index(row[0])):
        lines.setdefault(metric, {}).setdefault(split, {})[layers.index(layer)] = value
    chosen = _chosen(metrics, lines)
    if metrics is None:
        lengths = {name: max(map(len, lines[name].values())) for name in chosen}
        chosen = [name for name in chosen if lengths[name] == max(lengths.values())]
    figure, panels = _draw(chosen, lines)
    for axes in panels:
        axes.set_xticks(range(len(layers)), layers, rotation=30, ha="right")
        axes.set_xlim(-0.5, len(layers) - 0.5)
    return figure


def plot_history(
    history: Mapping[float, Mapping[str, float]], metrics: Sequence[str] | None = None
) -> Figure:
    """Return a figure with a panel for each metric: its value against epochs, a line for a layer and split.

    history: values by `nc/LAYER/SPLIT/METRIC`, by epoch. metrics, errors: as in `plot_layers`.
    """
    lines: Lines = {}
    for epoch, values in sorted(history.items()):
        for key, value in values.items():
            _, layer, split, metric = key.rsplit("/", 3)
            lines.setdefault(metric, {}).setdefault(f"{layer}/{split}", {})[epoch] = value
    figure, panels = _draw(_chosen(metrics, lines), lines)
    for axes in panels:
        axes.set_xlabel("epoch", fontsize=8)
    return figure


def _chosen(metrics: Sequence[str] | None, lines: Lines) -> list[str]:
    if metrics is None:
        metrics = [name for name in SHOWN if name in lines] or list(lines)[: 2 * COLUMNS]
    if isinstance(metrics, str):
        raise InputError(f"plot: a list of names: [{metrics!r}]")
    for name in metrics:
        if name not in lines:
            raise InputError(f"plot: {name!r} was not measured; {suggest(name, lines)}")
    if not metrics:
        raise InputError("plot: nothing was measured")
    return list(metrics)


def _draw(metrics: Sequence[str], lines: Lines) -> tuple[Figure, list[Any]]:
    """Return the figure and its panels, one a metric; a line has the same colour in all of them."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise InputError("plot() needs matplotlib: pip install matplotlib") from None
    if "ipykernel" in sys.modules:  # with pyplot come the notebook's pictures of figures
        import matplotlib.pyplot  # noqa: F401
    columns = min(COLUMNS, len(metrics))
    rows = math.ceil(len(metrics) / columns)
    figure = Figure(figsize=(SIZE[0] * columns, SIZE[1] * rows + 0.3), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in places[len(metrics) :]:
        axes.remove()
    panels = list(places[: len(metrics)])
    labels = list(dict.fromkeys(label for name in metrics for label in lines[name]))
    drawn = {}
    for name, axes in zip(metrics, panels, strict=True):
        entry = entry_of_package(name)
        axes.set_title(entry.label or name.replace("_", " "), fontsize=9)
        axes.set_yscale(entry.scale)
        axes.tick_params(which="both", labelsize=7)
        axes.grid(alpha=0.3)
        for label, line in lines[name].items():
            values = [value if value > 0 or entry.scale != "log" else math.nan for value in line.values()]
            colour = f"C{labels.index(label)}"
            (drawn[label],) = axes.plot(list(line), values, marker="o", ms=3, color=colour, label=label)
    figure.legend(
        drawn.values(), drawn.keys(), loc="outside lower center", ncols=4, fontsize=8, frameon=False
    )
    return figure, panels
