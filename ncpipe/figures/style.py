"""One look for all figures, set around drawing and saving and nowhere else."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import matplotlib
import seaborn as sns
from matplotlib import rcsetup

Colour = tuple[float, float, float]

PAGE_WIDTH = 6.75  # inches: the text width of a two-column page
INK = "#333333"
FAINT = "#8a8a8a"

# Fonts and glyphs that come with matplotlib, and SVG text as paths: the same picture on every machine.
SETTINGS = {
    "font.family": "STIXGeneral",
    "mathtext.fontset": "stix",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.linewidth": 0.7,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": rcsetup.cycler("color", sns.color_palette("colorblind")),
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "figure.dpi": 100,
    "svg.fonttype": "path",
    "svg.hashsalt": "ncpipe",
}


@contextlib.contextmanager
def paper_style() -> Iterator[None]:
    """Set matplotlib's defaults, seaborn's `ticks` and SETTINGS for the block; restore the former ones."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's own matplotlibrc would change the bytes
        look: Any = {**sns.axes_style("ticks"), **SETTINGS}
        matplotlib.rcParams.update(look)
        yield


def metric_colours(count: int) -> list[Colour]:
    """Return so many colours, safe for colour-blind readers, one per column of metrics."""
    order = [0, 1, 2, 4, 3, 5, 7, 8, 9]
    palette = sns.color_palette("colorblind")
    return [palette[order[i % len(order)]] for i in range(count)]


def colour_of(metric: str, place: int) -> Colour:
    """Return the colour of a metric wherever a column of panels is one metric; of others, that of the column.

    NC1, NC2 and NC3 share none with the loss gap and its parts.
    """
    order = list(dict.fromkeys(COLOURED.values()))
    kind = COLOURED.get(metric)
    return metric_colours(len(order))[order.index(kind) if kind else place % len(order)]


COLOURED = {  # by metric, the name of its colour: the variants of NC2 share one
    "nc1_trace_ratio": "NC1",
    "nc2_etf": "NC2",
    "nc2_identity": "NC2",
    "gnc2_spread_weights": "NC2",
    "nc3_cosine": "NC3",
    "loss_gap": "gap",
    "gap_gufm": "gap in h and W_L",
    "inner_penalty": "gap in inner layers",
}


def depth_colours(depths: Iterable[float]) -> dict[float, Colour]:
    """Return a colour for each distinct depth, from dark blue (shallow) to orange (deep).

    Each has a contrast of 3 or more to white paper.
    """
    distinct = sorted(set(depths))
    shades = sns.color_palette("plasma", as_cmap=True)
    steps = max(len(distinct) - 1, 1)
    return {depth: shades(0.64 * i / steps)[:3] for i, depth in enumerate(distinct)}
