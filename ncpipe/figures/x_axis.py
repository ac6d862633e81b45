"""What metrics are drawn against: depth, or the key that a study varies besides it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogFormatterMathtext,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from ncpipe.figures.style import Colour
from ncpipe.tables.keys import line_names, x_column

BESIDE = 1.07  # times the depth: where single runs stand
SHIFT = 0.025  # of the axis, for an x other than depth
MARGIN = 0.06
FEW = 5  # values that have a tick each
# Labels and symbols of keys that have some in the field; others are called by their names.
NAMES = {
    "L": ("depth $L$", "L"),
    "penalty.value": (r"$\lambda$", r"\lambda"),
    "penalty.last_layer": (r"$\lambda_L$", r"\lambda_L"),
    "model.width": ("width $d$", "d"),
    "data.sequences": ("training sequences $N$", "N"),
    "data.per_class": ("training samples per class $n$", "n"),
    "data.noise": (r"noise $\sigma$", r"\sigma"),
    "data.label_noise.fraction": ("share of labels redrawn", "p"),
    "data.imbalance.ratio": ("imbalance $R$", "R"),
    "data.transfer.n_source": ("source classes", "s"),
    "optimizer.learning_rate": (r"learning rate $\eta$", r"\eta"),
    "epochs": ("epochs $T$", "T"),
}


@dataclass(frozen=True)
class XAxis:
    """A column of the tables, the label of its axis, its symbol (mathtext without $), and its scale."""

    column: str
    label: str
    symbol: str
    log: bool

    @property
    def is_depth(self) -> bool:
        return self.column == "depth"

    def equal_to(self, values: Iterable[float]) -> str:
        """Return L = 2, 3 in mathtext."""
        return f"${self.symbol} = {', '.join(map(_number, values))}$"

    def scale(self, axes: Axes, values: np.ndarray, among: np.ndarray | None = None) -> None:
        """Scale the x axis of a panel: depths are its only ticks, and so are a few values of any other x.

        among: depths that the axis spans, if more than those of the panel.
        """
        if not self.log:
            axes.set_xlim(*_padded_limits(values))
            axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
            return
        axes.set_xscale("log")
        if self.is_depth:
            ends = values if among is None else among
            axes.set_xlim(ends.min() / 1.15, ends.max() * 1.15)
        else:
            axes.set_xlim(*10 ** _padded_limits(np.log10(values)))
        axes.xaxis.set_minor_locator(NullLocator())
        if self.is_depth or (len(values) <= FEW and max(map(len, map(_number, values))) <= FEW):
            axes.xaxis.set_major_locator(FixedLocator(values.tolist()))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))
            return
        axes.xaxis.set_major_locator(LogLocator(numticks=5))
        axes.xaxis.set_major_formatter(LogFormatterMathtext())
        axes.xaxis.set_minor_locator(FixedLocator(values.tolist()))
        axes.xaxis.set_minor_formatter(NullFormatter())

    def beside(self, values: pd.Series, among: np.ndarray) -> pd.Series:
        """Return x slightly beside the values; `among` are all values of the axis."""
        if self.is_depth:
            return values * BESIDE
        if not self.log:
            return values + SHIFT * np.ptp(among)
        return values * (among.max() / among.min()) ** SHIFT

    def handles(self, colours: Mapping[float, Colour], linewidth: float | None = 1.5) -> list[Line2D]:
        """Return a legend entry for each value."""
        return [
            Line2D([], [], color=colour, linewidth=linewidth, label=f"${self.symbol}={_number(value)}$")
            for value, colour in colours.items()
        ]


def x_axis_of(runs: pd.DataFrame) -> XAxis:
    """Return what a study's metrics are drawn against; a logarithmic axis wherever x is positive."""
    column = x_column(runs)
    if column == "depth":
        return XAxis("depth", "depth $L$", "L", log=True)
    axis = str(runs["axis"].iloc[0])
    label, symbol = NAMES.get(axis, (axis, "x"))
    return XAxis(column, label, symbol, log=bool((runs[column] > 0).all()))


def with_lines(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table in which `experiment` names lines, each of which is a row of the figures."""
    if x_column(table) == "depth":
        return table
    return table.assign(experiment=line_names(table))


def _padded_limits(values: np.ndarray) -> np.ndarray:
    pad = MARGIN * np.ptp(values) or 0.1
    return np.array([values.min() - pad, values.max() + pad])


def _number(value: float) -> str:
    return f"{value:g}"
