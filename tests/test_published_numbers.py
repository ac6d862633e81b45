"""Numbers in prose about published runs: each comes from a table in docs/results."""

import importlib.util
import re
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parent.parent
SPEC = importlib.util.spec_from_file_location("docs_results_render", ROOT / "docs/results/render.py")
assert SPEC is not None
assert SPEC.loader is not None
render = sys.modules["docs_results_render"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(render)

# What the template's prose may have in digits: names, places in a paper, depths, and settings of params.yaml.
NAMES = [
    r"NC[123]", "S25", r"L-RN[12]", r"L-T11", "CIFAR-10", r"Figures? [12](?: and 2)?",
    r"rows? \d(?: and \d)?", r"Fig\. [12]", r"(?:Theorem|Thm) \d\.\d", r"eq\. 7", r"(?:sec\.|[Ss]ection) 5",
    r"L = \d+(?:, \d+)*", "1/L", "95 %",
    r"λ(?:_L)? = [\d.]+(?:/L)?", "0.005/L", r"β₂ = [\d.]+", r"0\.9(?:5|99)", "ε = 1e-8", "ε = 1e-6",
    "depths to 13", "close to 0", "all 0", "→ 0", "exclude 0", r"L\^",
]  # fmt: skip


def prose(template: str) -> str:
    """Return the template without code, links' targets and what is filled in."""
    images, links, code = r"!\[[^\]]*\]\([^)]*\)", r"\]\([^)]*\)", r"`[^`\n]*`"
    for pattern in (r"\{#.*?#\}", r"\{%.*?%\}", r"\{\{.*?\}\}", "```.*?```", code, images, links):
        template = re.sub(pattern, " ", template, flags=re.DOTALL)
    return template


def own_numbers(template: str) -> list[str]:
    text = re.sub("|".join(sorted(NAMES, key=len, reverse=True)), " ", prose(template))
    return re.findall(r"\S*\d\S*", text)


def test_the_page_of_results_is_what_its_tables_give() -> None:
    """Red: a number edited in README.md, or a folder published again without `docs/results/render.py`."""
    assert (ROOT / "docs/results/README.md").read_text(encoding="utf-8") == render.rendered()


def test_its_prose_has_no_number_of_its_own() -> None:
    """Red: a number typed into the template, which no table holds."""
    template = (ROOT / "docs/results" / render.TEMPLATE).read_text(encoding="utf-8")
    assert own_numbers(template) == []
    assert own_numbers(template + "\nNC1 falls as L^-0.63 to 0.3.") == ["-0.63", "0.3."]


@pytest.mark.parametrize(
    ("name", "shown"),
    [("runs", "by_depth"), ("points", "by_depth"), ("slopes", "rates"), ("slopes_leave_out", "rates")],
)
def test_a_changed_table_changes_what_is_shown(
    name: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a number that is typed, or taken from another panel."""
    whole = render.published

    def changed(folder: str, table: str) -> pd.DataFrame:
        found = whole(folder, table)
        if (folder, table) != ("mnist_rn1", name):
            return found
        return found.assign(**{column: 1.1 * found[column] for column in found.select_dtypes("float")})

    def tables() -> list[str]:
        return [getattr(render.Panel(folder), shown)() for folder in ("mnist_rn1", "mnist_rn2")]

    before = tables()
    monkeypatch.setattr(render, "published", changed)
    after = tables()
    assert (before[0] != after[0], before[1] == after[1]) == (True, True)
