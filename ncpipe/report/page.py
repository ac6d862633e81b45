"""Render the report as one HTML file with all text, figures, tables, charts and the code that draws them.

It has no time, machine or path unless the caller adds them. `ncpipe.commands.report` collects the contents.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ncpipe.report import words
from ncpipe.report.grids import Grid, data_uri
from ncpipe.report.pictures import Picture
from ncpipe.report.rates import COLUMNS, RateRow

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Chapter:
    """Holds one experiment: its question, an answer for each of its lines, and detailed sentences."""

    name: str
    network: str
    question: str
    expected: str
    answers: list[str]
    sentences: list[str]


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

    lead: lines below the title. summary: what was asked, found and how sure it is, lines by heading.
    rates, headline: the first screen, a table of rates and its figure.
    networks: what the architectures and data sets are in words, by name.
    claims: tables of claims with a verdict, and of others.
    failures, failed: why runs did not converge and what would help; a table of these runs.
    charts: `chart_data.chart_data`; None for a study without runs.
    again: commands that reproduce the page, each with a description.
    """

    title: str
    lead: Sequence[str] = ()
    summary: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rates: Sequence[RateRow] = ()
    headline: Picture | None = None
    networks: Mapping[str, str] = field(default_factory=dict)
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
    environment.filters |= {"typeset": typeset, "cited": cited}
    return environment.get_template("page.html").render(
        page=contents,
        rate_columns=COLUMNS,
        words=words,
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
    """Return text as HTML, with powers for L^-0.37 and 1e-05, minus signs, and ≤ for <=."""
    written = str(escape(text))
    written = re.sub(r"(?<=\d)e([+-−]?)0*(\d+)\b", r" × 10^\1\2", written).replace("10^+", "10^")
    written = re.sub(r"(?<![\w.)\]}])-(?=\.?\d)", "−", written)
    written = re.sub(r"\^([-−]?\d+(?:\.\d+)?|T\b|\([^()]*\))", r"<sup>\1</sup>", written)
    return Markup(written.replace("<sup>-", "<sup>−").replace("&lt;=", "≤").replace("&gt;=", "≥"))


def cited(text: str) -> Markup:
    """Return text as HTML (`typeset`), with short names of papers as links to their entry on the page."""
    written = str(typeset(text))
    for paper in words.PAPERS:
        known = escape(f"{paper.authors} {paper.year}, {paper.title}")
        link = f'<a class="cite" href="#paper-{paper.name}" title="{known}">{paper.name}</a>'
        written = re.sub(rf"\b{paper.name}\b", link, written)
    return Markup(written)


def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
