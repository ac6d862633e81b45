"""Figures to files whose bytes depend on nothing but the figure."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from ncpipe.figures.style import paper_style

DPI = 200


def save_figure(figure: Figure, folder: Path, name: str) -> tuple[Path, Path]:
    """Write <name>.png (200 dpi) and <name>.svg into an existing folder; the paths, in that order.

    Both hold `content_digest` as their description, by which a figure that is older than its table is found.
    Neither holds a date or a program's version, and SVG ids are hashed with a fixed salt, so equal
    figures give equal bytes on one installation. The figure's parts stay where they were when it was drawn
    last, as the functions of this package do at their end: laying it out anew for each file takes longer
    than drawing it.
    """
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    layout, dpi = figure.get_layout_engine(), figure.dpi
    with paper_style():  # ticks are made while drawing, so the style must hold here too
        figure.set_layout_engine("none")
        figure.set_dpi(DPI)
        about = {"Description": content_digest(figure)}
        FigureCanvasAgg(figure).print_png(png, metadata={"Software": None, **about})
        FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None, "Creator": None, **about})
        figure.set_dpi(dpi)
        figure.set_layout_engine(layout)
    return png, svg


def content_digest(figure: Figure) -> str:
    """Return a digest of a figure's words, and of its data to five digits.

    It depends neither on fonts nor on the layout, so another version of matplotlib gives the same.
    """
    whole = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    words = [text.get_text() for text in whole] + [figure.get_suptitle(), figure.get_supxlabel()]
    parts = words + [part for axes in figure.axes for part in _content(axes)]
    return f"sha256:{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}"


def _content(axes: Axes) -> Iterator[str]:
    yield from (axes.get_title(), axes.get_xlabel(), axes.get_ylabel(), axes.get_xscale(), axes.get_yscale())
    legend = axes.get_legend()
    for text in [*axes.texts, *(legend.get_texts() if legend else ())]:
        yield text.get_text()
    data = [np.asarray(line.get_xydata()) for line in axes.lines]
    data += [np.asarray(marks.get_offsets()) for marks in axes.collections]
    bars = [marks for marks in axes.collections if isinstance(marks, LineCollection)]
    data += [np.asarray(segment) for marks in bars for segment in marks.get_segments()]
    data += [np.asarray(image.get_array()) for image in axes.images]
    for numbers in data:
        yield " ".join(f"{number:.5g}" for number in numbers.ravel())
