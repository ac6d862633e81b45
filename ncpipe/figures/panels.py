"""What figures with a row per experiment share: notes in empty panels, the axis of depths, its key."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from ncpipe.figures.style import FAINT, depth_colours

ROW_HEIGHT = 1.65  # inches
DASHES = (0, (3, 1.5))
FIT_DASHES = (0, (4.0, 2.0))  # of a fitted line
ROUNDING = -12.0  # log10 below which a float64 metric of order 1 is nothing but rounding
NOTE: dict[str, Any] = {"color": FAINT, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}}

Colour = tuple[float, float, float]


def state_nothing(axes: Axes, note: str) -> None:
    """An empty panel that says why it is empty."""
    axes.text(0.5, 0.5, note, transform=axes.transAxes, ha="center", va="center", **NOTE)
    axes.set_yticks([])


def absence(converged: int) -> str:
    """Why nothing is drawn of a depth with that many converged runs."""
    return "no usable value" if converged else "no converged run"


def state_gap(axes: Axes, depth: int, converged: int) -> None:
    """On an axis of depths: why a depth has no point, in its place."""
    place = axes.get_xaxis_transform()
    note = absence(converged)
    axes.text(depth, 0.04, note, transform=place, rotation=90, ha="center", va="bottom", fontsize=7, **NOTE)


def state_missing(axes: Axes, drawn: Iterable[int], converged: Mapping[int, int], top: bool = False) -> None:
    """On any other axis: which depths have no line, and why; lower left, or upper right.

    converged: `converged_by_depth`.
    """
    missing = {depth: absence(count) for depth, count in converged.items() if depth not in set(drawn)}
    for line, why in enumerate(sorted(set(missing.values()))):
        depths = ", ".join(str(depth) for depth, reason in missing.items() if reason == why)
        axes.text(
            0.98 if top else 0.02,
            0.97 - 0.12 * line if top else 0.03 + 0.12 * line,
            f"{why}: $L = {depths}$",
            transform=axes.transAxes,
            ha="right" if top else "left",
            va="top" if top else "bottom",
            fontsize=7,
            zorder=1.5,  # above the grid, below the lines
            **NOTE,
        )


def converged_by_depth(runs: pd.DataFrame) -> dict[int, int]:
    """How many of one experiment's runs converged at each of its depths, in rising order."""
    counts = runs.groupby("depth")["converged"].sum()
    return {int(depth): int(count) for depth, count in zip(counts.index.tolist(), counts, strict=True)}


def start_at_zero(axes: Axes, lines: Iterable[Line2D]) -> None:
    """The y axis of shares: from 0, with lines and markers that lie on it wholly visible."""
    axes.set_ylim(bottom=0)
    for line in lines:
        line.set(clip_on=False, zorder=3)  # above the axis, on which a share of 0 lies


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
