"""Read the figures of a report as data URIs of their SVG files, with captions and alternative texts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ncpipe.report.grids import data_uri
from ncpipe.report.words import WORDS


@dataclass(frozen=True)
class Picture:
    """Holds a figure of the report. alt: its alternative text. address: data URI of its SVG file."""

    name: str
    title: str
    caption: str
    alt: str
    address: str


def read_pictures(folder: Path, prefix: str, x_axis: str, alts: Mapping[str, str]) -> list[Picture]:
    """Return the figures of a folder without training curves; those of words.yaml come first.

    x_axis: its name, as `depth L`. alts: alternative texts by figure, which follow title and caption.
    """
    files = {path.stem: path for path in sorted(folder.glob("*.svg")) if not path.stem.startswith("curves_")}
    known = WORDS["figures"]
    pictures = []
    for name in [*(name for name in known if name in files), *(name for name in files if name not in known)]:
        told = known.get(name, {"title": name.replace("_", " ").capitalize(), "caption": ""})
        title, caption = (told[part].format(x=x_axis) for part in ("title", "caption"))
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
