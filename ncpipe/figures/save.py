"""Figures to files whose bytes depend on nothing but the figure."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from ncpipe.figures.style import paper_style

DPI = 200


def save_figure(figure: Figure, folder: Path, name: str) -> tuple[Path, Path]:
    """Write <name>.png (200 dpi) and <name>.svg into an existing folder; the paths, in that order.

    Neither file holds a date or a program's version, and SVG ids are hashed with a fixed salt, so equal
    figures give equal bytes on one installation. The figure's parts stay where they were when it was drawn
    last, as the functions of this package do at their end: laying it out anew for each file takes longer
    than drawing it.
    """
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    layout, dpi = figure.get_layout_engine(), figure.dpi
    with paper_style():  # ticks are made while drawing, so the style must hold here too
        figure.set_layout_engine("none")
        figure.set_dpi(DPI)
        FigureCanvasAgg(figure).print_png(png, metadata={"Software": None})
        FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None, "Creator": None})
        figure.set_dpi(dpi)
        figure.set_layout_engine(layout)
    return png, svg
