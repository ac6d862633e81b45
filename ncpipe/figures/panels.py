"""What figures with a row per experiment share: notes in empty panels, the axis of depths, its key."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from ncpipe.figures.style import FAINT, depth_colours

ROW_HEIGHT = 1.65  # inches
DASHES = (0, (3, 1.5))
ROUNDING = -12.0  # log10 below which a float64 metric of order 1 is nothing but rounding
NOTE: dict[str, Any] = {"color": FAINT, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}}

Colour = tuple[float, float, float]


def state_nothing(axes: Axes, note: str) -> None:
    """An empty panel that says why it is empty."""
    axes.text(0.5, 0.5, note, transform=axes.transAxes, ha="center", va="center", **NOTE)
    axes.set_yticks([])


def thin_ticks(axes: Axes) -> None:
    """Few round values on the y axis of a small panel."""
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, min_n_ticks=3, steps=[1, 2, 5, 10]))


def scale_depth_axis(axes: Axes, depths: np.ndarray) -> None:
    """Log axis of L with the given depths as its only ticks."""
    axes.set_xscale("log")
    axes.set_xlim(depths.min() / 1.15, depths.max() * 1.15)
    axes.xaxis.set_major_locator(FixedLocator(depths.tolist()))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda depth, _: f"{depth:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())


def colours_of(depths: Iterable[int]) -> dict[int, Colour]:
    """`style.depth_colours` of the distinct depths."""
    return depth_colours(sorted({int(depth) for depth in depths}))


def depth_handles(colours: Mapping[int, Colour]) -> list[Line2D]:
    """Legend entries of the depths."""
    return [
        Line2D([], [], color=colour, linewidth=1.5, label=f"$L={depth}$") for depth, colour in colours.items()
    ]
