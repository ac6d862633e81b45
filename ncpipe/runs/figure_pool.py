"""A stage's figures, drawn by as many processes as are worth it."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from ncpipe.config.bounds import usable_cores
from ncpipe.figures.save import save_figure
from ncpipe.runs.pool import Pool

Drawn = Callable[[], Figure]  # pickled where another process is to draw it


def draw(folder: Path, figures: Mapping[str, Drawn]) -> None:
    """Every figure as PNG and SVG in a folder, by name."""
    with Pool(usable_cores(), len(figures)) as hands:
        for _ in hands.each(partial(_draw, folder), list(figures.items())):
            pass


def _draw(folder: Path, named: tuple[str, Drawn]) -> None:
    name, figure = named
    save_figure(figure(), folder, name)
