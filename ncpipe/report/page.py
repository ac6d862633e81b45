"""Render the report as one HTML file with all text, figures, tables, charts and the code that draws them.

It has no time, machine or path unless the caller adds them. `ncpipe.report.contents` collects the contents.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ncpipe.report.first_screen import RateRow
from ncpipe.report.grids import Grid, data_uri
from ncpipe.report.words import TEMPLATES, WORDS, meaning

PAPERS = {
    name: f"{paper['authors']} {paper['year']}, {paper['title']}" for name, paper in WORDS["papers"].items()
}


@dataclass(frozen=True)
class Picture:
    """Holds a figure of the report. alt: its alternative text. address: data URI of its SVG file."""

    name: str
    title: str
    caption: str
    alt: str
    address: str


@dataclass(frozen=True)
class Chapter:
    """Holds one experiment: its question, an answer for each of its lines, and the text of its rates."""

    name: str
    network: str
    question: str
    expected: str
    answers: list[str]
    rates: list[str]


@dataclass(frozen=True)
class Provenance:
    """Holds what produced the results.

    runs: facts about the runs by heading. specs: parameters as text, by experiment. here: facts about this
    machine, this checkout and times by heading; empty by default.
    """

    runs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    specs: Mapping[str, str] = field(default_factory=dict)
    here: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Contents:
    """Holds the contents of a page; what is left out is not on it.

    lead: lines below the title. collapse: which one it is about, a key of `collapse` in words.yaml.
    summary: what was asked, found and how sure it is, lines by heading.
    rates, headline: the first screen, a table of rates and its figure.
    networks, metrics: what architectures, data sets and metrics are in words, by name.
    claims: tables of claims with a verdict, and of others.
    failures, failed: why runs did not converge and what would help; a table of these runs.
    charts: `chart_data.chart_data`; None for a study without runs.
    again: commands that reproduce the page, each with a description.
    """

    title: str
    lead: Sequence[str] = ()
    collapse: str = "classes"
    summary: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rates: Sequence[RateRow] = ()
    headline: Picture | None = None
    networks: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    chapters: Sequence[Chapter] = ()
    claims: Sequence[Grid] = ()
    pictures: Sequence[Picture] = ()
    charts: Mapping[str, Any] | None = None
    failures: Sequence[str] = ()
    failed: Grid | None = None
    grids: Sequence[Grid] = ()
    provenance: Provenance = field(default_factory=Provenance)
    again: Mapping[str, str] = field(default_factory=dict)


def render(contents: Contents) -> str:
    """Return the page as HTML; equal contents give equal text with the same packages."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES, encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    properties = WORDS["collapse"][contents.collapse]["properties"]
    environment.filters |= {"typeset": typeset, "cited": citing(properties), "anchor": anchor}
    return environment.get_template("page.html").render(
        page=contents,
        words=WORDS,
        properties=properties,
        meaning=meaning,
        drawing=data_uri((TEMPLATES / "collapse.svg").read_bytes(), "image/svg+xml"),
        style=_text("page.css"),
        script=_text("page.js"),
        licences=_text("licences.txt"),
        library=chart_library() if contents.charts else "",
        data=script_json(contents.charts),
    )


@functools.cache
def chart_library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, from the installed package vl-convert."""
    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # whose stub asks for a snippet
    return bundle.replace("</script", "<\\/script")


def script_json(value: object) -> str:
    """Return JSON that is safe in a script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def typeset(text: str) -> Markup:
    """Return text as HTML, with powers for L^-0.37 and 1e-05, minus signs, ≤ for <=, λ_L and `code`."""
    written = str(escape(text))
    written = re.sub(r"(?<=\d)e([+\-−]?)0*(\d+)\b", r" × 10^\1\2", written).replace("10^+", "10^")
    written = re.sub(r"(?<![\w.)\]}])-(?=\.?\d)", "−", written)
    written = re.sub(r"\^([-−]?\d+(?:\.\d+)?|T\b|\([^()]*\))", r"<sup>\1</sup>", written)
    written = re.sub(r"\b([λW])_L\b", r"\1<sub>L</sub>", re.sub("`([^`]+)`", r"<code>\1</code>", written))
    return Markup(written.replace("<sup>-", "<sup>−").replace("&lt;=", "≤").replace("&gt;=", "≥"))


def citing(properties: Mapping[str, Mapping[str, str]]) -> Callable[[str], Markup]:
    """Return a filter from text to HTML (`typeset`) with links to the entries of the section Words.

    Papers are links wherever they are named, terms and properties where the filter meets them first. Keys
    of params.yaml (`loss.epsilon`) and code are no words.
    """
    entries = PAPERS | WORDS["terms"] | {name: words["says"] for name, words in properties.items()}
    longest_first = "|".join(map(re.escape, sorted(entries, key=len, reverse=True)))
    word = rf"(?<![\w.-])({longest_first})(?:s|es)?(?![\w-]|\.\w)"
    pattern = re.compile(rf"<code>.*?</code>|{word}")
    met = set()

    def link(match: re.Match[str]) -> str:
        name = match[1]
        if name is None or (name in met and name not in PAPERS):
            return match[0]
        met.add(name)
        return f'<a class="cite" href="#{anchor(name)}" title="{escape(entries[name])}">{match[0]}</a>'

    return lambda text: Markup(pattern.sub(link, str(typeset(text))))


def anchor(name: str) -> str:
    """Return the id of an entry of the section Words."""
    return f"word-{re.sub('[^A-Za-z0-9λ]', '-', name)}"


def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


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
        address = data_uri(files[name].read_bytes(), "image/svg+xml")
        pictures.append(Picture(f"{prefix}{name}", title, caption, alt, address))
    return pictures
