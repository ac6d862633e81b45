"""Read the figures of a report as data URIs of their SVG files, with captions and alternative texts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ncpipe.report.grids import data_uri

# Title and caption of each figure of the stage plot; {x} is the name of the x axis.
FIGURES: Mapping[str, tuple[str, str]] = {
    "depth_sweep": (
        "Collapse against {x}",
        "log10 of NC1, NC2 and NC3 at the last layer, on training samples: mean ± 1 standard deviation "
        "over seeds, single runs beside it (hollow where they did not converge), the least-squares slope "
        "with its interval, dotted where the test rejects a line. Grey triangles are how fast S25's bounds "
        "fall. They hold for global optima: they are no predictions for training, and a flatter line does "
        "not contradict them.",
    ),
    "loss_gap": (
        "Distance from the optimum",
        "log10 of the regularised loss less the least that the theory allows, and of the two parts of this "
        "gap, against {x}. The triangle is the slope of a bound of S25 for global optima, no prediction for "
        "trained networks.",
    ),
    "own_metrics": (
        "The study's own metrics against {x}",
        "At the last layer: the mean over the runs used, and single runs beside it, hollow where they did "
        "not converge.",
    ),
    "layers": (
        "Collapse layer by layer",
        "Metrics of every layer against its place in the network, 1 being the last: means over seeds with a "
        "band of ± 1 standard deviation, solid on training and dashed on test samples. The dash-dotted line "
        "is the law of data separation, fitted at the largest {x}: NC1 falls by the same factor ρ from "
        "each block to the next, and R² says how well a straight line fits.",
    ),
    "train_test": (
        "Train against test",
        "Collapse on training and on test samples, NC4 and effective depth, against {x}: means ± 1 standard "
        "deviation over seeds, dashed on test samples. Effective depth is the first layer at which class "
        "means separate the training samples; an arrow states the end of a curve that leaves its panel.",
    ),
    "heat_maps": (
        "Cosines of class means",
        "Between the last layer's centred class means, and between them and the rows of W. After collapse "
        "they are 1 on the diagonal and −1/(K−1), marked ETF, elsewhere.",
    ),
    "spectra": (
        "Singular values",
        "The i-th singular value of the last layer's class means of training samples, and of W, over the "
        "largest: geometric means over seeds. Dashed is the collapsed spectrum; an arrow states the least "
        "value of a line that leaves its panel.",
    ),
}


@dataclass(frozen=True)
class Picture:
    """Holds a figure of the report. alt: its alternative text. address: data URI of its SVG file."""

    name: str
    title: str
    caption: str
    alt: str
    address: str


def read_pictures(folder: Path, prefix: str, x_axis: str, alts: Mapping[str, str]) -> list[Picture]:
    """Return the figures of a folder without training curves; those in FIGURES come first.

    x_axis: its name, as `depth L`. alts: alternative texts by figure, which follow title and caption.
    """
    files = {path.stem: path for path in sorted(folder.glob("*.svg")) if not path.stem.startswith("curves_")}
    pictures = []
    for name in [
        *(name for name in FIGURES if name in files),
        *(name for name in files if name not in FIGURES),
    ]:
        title, caption = FIGURES.get(name, (name.replace("_", " ").capitalize(), ""))
        title, caption = title.format(x=x_axis), caption.format(x=x_axis)
        alt = ". ".join(filter(None, [title, caption.rstrip("."), alts.get(name, "")]))
        address = data_uri(_small(files[name].read_bytes()), "image/svg+xml")
        pictures.append(Picture(f"{prefix}{name}", title, caption, alt, address))
    return pictures


def _small(svg: bytes) -> bytes:
    """Return an SVG file without line breaks and, if possible, with apostrophes instead of quotation marks.

    A data URI needs three characters for each line break and quotation mark.
    """
    svg = re.sub(rb"\s*\n\s*", b" ", svg)
    return svg if b"'" in svg else svg.replace(b'"', b"'")
