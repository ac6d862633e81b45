"""Figures to files whose bytes depend on nothing but the figure."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ncpipe.figures.style import paper_style


def save_figure(figure: Figure, folder: Path, name: str) -> tuple[Path, Path]:
    """Write <name>.png (200 dpi) and <name>.svg into an existing folder; the paths, in that order.

    Neither file holds a date or a program's version, and SVG ids are hashed with a fixed salt, so equal
    figures give equal bytes on one installation.
    """
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    canvas = FigureCanvasAgg(figure)
    with paper_style():  # ticks are made while drawing, so the style must hold here too
        canvas.print_figure(png, dpi=200, metadata={"Software": None})
        canvas.print_figure(svg, format="svg", metadata={"Date": None, "Creator": None})
    return png, svg
