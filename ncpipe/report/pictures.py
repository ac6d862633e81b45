"""The figures as parts of a page: SVG beside text, each with what it shows in words."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
        "The regularised loss less the least that the theory allows, and its two parts, against {x}.",
    ),
    "layers": (
        "Collapse layer by layer",
        "Metrics of every layer of every depth, with the line that the law of data separation fits.",
    ),
    "train_test": (
        "Train against test",
        "Collapse on training and on test samples, NC4 and effective depth, against {x}.",
    ),
    "heat_maps": (
        "Cosines of class means",
        "Between the last layer's centred class means, and between them and the rows of W.",
    ),
    "spectra": ("Singular values", "Of the last layer's class means, on train and test samples, and of W."),
}
_STYLE = re.compile(r'\bstyle="([^"]*)"')
_NUMBERS = re.compile(r'\b(d|x|y)="([^"]*)"')
_LONG = re.compile(r"-?\d+\.\d{3,}")
_ID = re.compile(r'\bid="([^"]+)"|xlink:href="#([^"]+)"|url\(#([^)]+)\)')


@dataclass(frozen=True)
class Picture:
    """A figure of the page. alt: what it shows, in a sentence; svg: the element itself."""

    name: str
    title: str
    caption: str
    alt: str
    svg: str


def inline_svg(text: str, prefix: str) -> str:
    """The `svg` element of a file that matplotlib wrote, fit to stand in a page among others.

    Its ids and classes begin with the prefix, so that no two figures of a page share one. What the file says
    of its type and its size in points is left out: the page has both. It hides its parts from a screen
    reader, which is read the words beside it. Shorter than the file: places to a hundredth of a point, a
    style that many parts have only once, no comments and line breaks.
    """
    element = text[text.index("<svg") :].strip()
    element = re.sub(r"\s*<metadata>.*?</metadata>", "", element, count=1, flags=re.DOTALL)
    head, rest = element.split(">", 1)
    head = re.sub(r'\s(?:width|height|version)="[^"]*"', "", head)
    rest = _ID.sub(lambda found: _own(found, prefix), rest)
    rest = _NUMBERS.sub(lambda found: f'{found[1]}="{_LONG.sub(_rounded, found[2])}"', rest)
    rest = re.sub(r"<!--.*?-->|\s*\n\s*(?=<)", "", rest, flags=re.DOTALL)
    return f'{head} aria-hidden="true" focusable="false">{_with_classes(" ".join(rest.split()), prefix)}'


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def _with_classes(inner: str, prefix: str) -> str:
    """What stands in the element, with a class for each style, and the classes before it."""
    names: dict[str, str] = {}
    inner = _STYLE.sub(
        lambda found: f'class="{names.setdefault(found[1], f"{prefix}-s{len(names)}")}"', inner
    )
    rules = "".join(f".{name}{{{style}}}" for style, name in names.items())
    return f"<style>{rules}</style>{inner}" if rules else inner


def _own(found: re.Match[str], prefix: str) -> str:
    own, used, url = found.groups()
    if own:
        return f'id="{prefix}-{own}"'
    return f'xlink:href="#{prefix}-{used}"' if used else f"url(#{prefix}-{url})"


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
        svg = inline_svg(files[name].read_text(encoding="utf-8"), f"{prefix}{name}")
        pictures.append(Picture(f"{prefix}{name}", title, caption, alt, svg))
    return pictures
