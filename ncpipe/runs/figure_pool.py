"""Draw a stage's figures in several processes if that is faster (`ncpipe.runs.pool`)."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from ncpipe.figures.save import save_figure
from ncpipe.runs.pool import share
from ncpipe.system.machine import usable_cores

DrawFigure = Callable[[], Figure]  # must be picklable, for other processes


def draw(folder: Path, figures: Mapping[str, DrawFigure]) -> None:
    """Save every figure as PNG and SVG in a folder, by name."""
    for _ in share(partial(_draw, folder), list(figures.items()), usable_cores()):
        pass


def _draw(folder: Path, named: tuple[str, DrawFigure]) -> None:
    name, figure = named
    save_figure(figure(), folder, name)
