"""The figures of a report: each as an address that holds its SVG file, with what it shows in words."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ncpipe.report.grids import data_uri

# Title and caption of each figure that the stage plot draws; {x} is what metrics are held against.
FIGURES: Mapping[str, tuple[str, str]] = {
    "depth_sweep": (
        "Collapse against {x}",
        "log10 of NC1, NC2 and NC3 at the last layer: mean ± 1 standard deviation over seeds, single runs "
        "beside it (hollow where they did not converge), the least-squares slope with its interval, dotted "
        "where the test rejects a line.",
    ),
    "loss_gap": (
        "Distance from the optimum",
        "log10 of the regularised loss less the least that the theory allows, and of the two parts of this "
        "gap, against {x}. The triangle is the slope of a bound for global optima, not for trained networks.",
    ),
    "own_metrics": (
        "The study's own metrics against {x}",
        "At the last layer: the mean over converged runs, and single runs beside it, hollow where they did "
        "not converge.",
    ),
    "layers": (
        "Collapse layer by layer",
        "Metrics of every layer against its place in the network, 1 being the last: means over seeds with a "
        "band of ± 1 standard deviation, solid on training and dashed on test samples. The dash-dotted line "
        "is the law of data separation, fitted to the deepest network: NC1 falls by the same factor ρ from "
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
        "Between the last layer's centred class means, and between them and the rows of W.",
    ),
    "overlay": (
        "One over the other, against {x}",
        "log10 of NC1, NC2, NC3 and the loss gap at the last layer: mean ± 1 standard deviation over seeds, "
        "a colour for each revision, with least-squares slopes and their intervals.",
    ),
    "spectra": (
        "Singular values",
        "Of the last layer's uncentred class means of training samples, and of its weights W, each over the "
        "largest: geometric means over seeds. Dashed is the collapsed spectrum; an arrow states the least "
        "value of a line that leaves its panel.",
    ),
}


@dataclass(frozen=True)
class Picture:
    """A figure of the report. alt: what it shows, in a sentence; address: a data URI of its SVG file."""

    name: str
    title: str
    caption: str
    alt: str
    address: str


def read_pictures(folder: Path, prefix: str, of: str, alts: Mapping[str, str]) -> list[Picture]:
    """The figures of a folder, FIGURES in their order first; training curves have a chart of their own.

    alts: the sentence that a figure shows, where there is one; of the others the caption says what is seen.
    of: what metrics are held against, as `depth L`.
    """
    files = {path.stem: path for path in sorted(folder.glob("*.svg")) if not path.stem.startswith("curves_")}
    pictures = []
    for name in [
        *(name for name in FIGURES if name in files),
        *(name for name in files if name not in FIGURES),
    ]:
        title, caption = FIGURES.get(name, (name.replace("_", " ").capitalize(), ""))
        title, caption = title.format(x=of), caption.format(x=of)
        alt = ". ".join(filter(None, [title, caption.rstrip("."), alts.get(name, "")]))
        address = data_uri(_small(files[name].read_bytes()), "image/svg+xml")
        pictures.append(Picture(f"{prefix}{name}", title, caption, alt, address))
    return pictures


def _small(svg: bytes) -> bytes:
    """Return an SVG file with spaces for line breaks and, if it has none, apostrophes for quotation marks.

    An address spells line breaks and quotation marks in three characters each.
    """
    svg = re.sub(rb"\s*\n\s*", b" ", svg)
    return svg if b"'" in svg else svg.replace(b'"', b"'")
