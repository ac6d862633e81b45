"""Read what the report explains (`templates/words.yaml`): papers, properties, networks, terms, captions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

TEMPLATES = Path(__file__).parent / "templates"
WORDS: Mapping[str, Any] = yaml.safe_load((TEMPLATES / "words.yaml").read_text(encoding="utf-8"))


def meaning(name: str) -> str:
    """Return the sentence of a property, term or heading, to show when pointed at; empty for others."""
    kinds = [WORDS["collapse"][kind]["properties"] for kind in ("tags", "classes", "regression")]
    properties = {title: told["says"] for kind in kinds for title, told in kind.items()}
    known = properties | WORDS["terms"] | WORDS["headings"]
    return str(known.get(name, ""))


def network_words(architecture: str, norm: str) -> str:
    """Return what a network is, as `residual MLP, one linear map a block`; a study's own by its name."""
    words = [WORDS["networks"].get(architecture, architecture), WORDS["norms"].get(norm)]
    return ", ".join(filter(None, words))
