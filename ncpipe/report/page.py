"""One HTML file that holds everything it shows: text, figures, tables, charts and the code that draws them.

Nothing in it is of the time, the machine or the place where it is written, unless the caller put it in.
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

from ncpipe.report.grids import Grid
from ncpipe.report.pictures import Picture
from ncpipe.report.rates import COLUMNS, RateRow

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Chapter:
    """One experiment: what it is asked, the answer in a sentence for each of its lines, and the details."""

    name: str
    network: str
    question: str
    expected: str
    answers: list[str]
    sentences: list[str]


@dataclass(frozen=True)
class Provenance:
    """What made the page.

    runs: heading -> values, of the runs. specs: by what they are of, an experiment say, parameters as text.
    here: heading -> value, of this machine, this checkout and times; empty unless they were asked for.
    """

    runs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    specs: Mapping[str, str] = field(default_factory=dict)
    here: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Contents:
    """All of a page. lead: lines below its title; failures: why runs did not converge, and what would help.

    rates and headline are the first screen: a table of the lines and the figure of what it says. claims:
    those that have a verdict, and those that have none.

    charts: `chart_data.chart_data`, or None where a study has no runs. again: commands that make what is on
    it, each with what it does. live: whether the page asks the address that it came from for a newer one.
    """

    title: str
    lead: list[str]
    chapters: list[Chapter]
    claims: list[Grid]
    pictures: list[Picture]
    charts: Mapping[str, Any] | None
    failures: list[str]
    failed: Grid | None
    grids: list[Grid]
    provenance: Provenance
    again: Mapping[str, str]
    live: bool = False
    rates: Sequence[RateRow] = ()
    headline: Picture | None = None


EMPTY = Contents("", [], [], [], [], None, [], None, [], Provenance(), {})


def render(contents: Contents) -> str:
    """Return the page; equal contents give equal text on one installation."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES, encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["typeset"] = typeset
    return environment.get_template("page.html").render(
        page=contents,
        rate_columns=COLUMNS,
        style=_text("page.css"),
        script=_text("page.js"),
        licences=_text("licences.txt"),
        library=chart_library() if contents.charts else "",
        data=script_json(contents.charts),
    )


@functools.cache
def chart_library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, from the installed vl-convert: no network."""
    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # whose stub asks for a snippet
    return bundle.replace("</script", "<\\/script")


def script_json(value: object) -> str:
    """Return JSON that does not end a script element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def typeset(text: str) -> Markup:
    """Return plain text as HTML with L^-0.37 and 1e-05 as powers, minus signs, and ≤ for <=."""
    written = str(escape(text))
    written = re.sub(r"(?<=\d)e([+-−]?)0*(\d+)\b", r" × 10^\1\2", written).replace("10^+", "10^")
    written = re.sub(r"(?<![\w.)\]}])-(?=\.?\d)", "−", written)
    written = re.sub(r"\^([-−]?\d+(?:\.\d+)?|T\b|\([^()]*\))", r"<sup>\1</sup>", written)
    return Markup(written.replace("<sup>-", "<sup>−").replace("&lt;=", "≤").replace("&gt;=", "≥"))


def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
