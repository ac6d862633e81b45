"""The README, the pages that a script writes, and the site."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import loaded
from test_imports import LAYERS

from ncpipe.config.yaml_file import read_yaml
from ncpipe.metrics.catalogue import CATALOGUE

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
GENERATED = {
    "claim_calls.md",
    "commands.md",
    "ledger.md",
    "metric_tables.md",
    "params.md",
}  # by a script, whose sources have their own rules
WRITTEN = sorted(page for page in DOCS.rglob("*.md") if page.name not in GENERATED)
CODE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
ABBREVIATION = re.compile(
    r"\b(?:al|App|cf|Cor|Def|e\.g|eq|Fig|i\.e|Lemma|sec|Thm|vs|(?-i:[A-Z]))\.", re.IGNORECASE
)
SENTENCE_ENDS_INSIDE = re.compile(r"[\w)%*”\"][.!?][*_)”\"]* +[*_(“\"]*[A-Z]")


@pytest.mark.parametrize("name", ["params.md", "commands.md", "metric_tables.md", "claim_calls.md"])
def test_pages_of_reference_are_current(name: str) -> None:
    """Red: a key, a default, an option, a metric or a call that changed, or a page edited by hand."""
    assert (DOCS / name).read_text(encoding="utf-8") == loaded(DOCS / "reference.py").PAGES[name]()


def test_the_table_of_metrics_has_every_metric() -> None:
    """Red: a group of the catalogue that the page leaves out."""
    page = (DOCS / "metric_tables.md").read_text(encoding="utf-8")
    assert {name for name in CATALOGUE if f"\n| `{name}` |" not in page} == set()


def test_the_pictures_have_every_stage_and_folder() -> None:
    """Red: a stage of dvc.yaml, a folder of the package, or a level of imports, that a picture lacks."""
    pictures = loaded(DOCS / "pictures.py")
    assert set(pictures.STAGES) == set(read_yaml(ROOT / "dvc.yaml")["stages"])
    assert [set(row) for row in pictures.ROOMS] == LAYERS[1:]


def test_the_architecture_names_files_and_functions_that_exist() -> None:
    """Red: a file or a function that was renamed."""
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    files = set(re.findall(r"`([\w/]+\.py)`", page)) - {"study.py"}  # a user's own
    assert [name for name in files if not any((at / name).is_file() for at in (ROOT / "ncpipe", ROOT))] == []
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "ncpipe").rglob("*.py"))
    names = re.findall(r"`(?:\w+\.)?(\w+_strengths?|loss_and_gradient)(?:\(\w+\))?`", page)
    assert len(names) >= 4
    assert [name for name in names if f"def {name}(" not in code] == []


def test_the_ledger_is_current() -> None:
    """Red: a table published again, or a claim that disagrees without a paragraph that says why."""
    assert (DOCS / "ledger.md").read_text(encoding="utf-8") == loaded(DOCS / "ledger.py").page()


def words_by_hand() -> dict[str, int]:
    """Return the number of words of each page that a person writes, or of a page's parts by hand."""
    pages = [page for page in WRITTEN if page.name not in ("README.md", "trends.md")]
    texts = {page.name: page.read_text(encoding="utf-8") for page in pages}
    head, scores, rest = texts["conformance.md"].partition("\n## Scores\n")
    texts["conformance.md"] = head + scores + re.sub(r"^\|.*\n", "", rest, flags=re.MULTILINE)
    panels = read_yaml(DOCS / "results/trends.yaml")
    choices = [choice for panel in panels for choice in panel["choices"]]
    shown = [
        row.get(key, "")
        for row in (*panels, *choices)
        for key in ("panel", "title", "inputs", "base", "sentence", "text")
    ]
    texts["trends.md"] = " ".join([(DOCS / "results/trends.md.jinja").read_text(encoding="utf-8"), *shown])
    return {name: len(text.split()) for name, text in texts.items()}


def test_pages_by_hand_have_a_budget_of_words() -> None:
    """Red: pages that grow where a link would do."""
    words = words_by_hand()
    assert {"corrections.md", "field.md", "own_model.md", "trends.md"} <= words.keys()
    assert sum(words.values()) <= 28_000, sorted(words.items(), key=lambda item: -item[1])[:5]
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 750


def test_the_readme_has_no_dead_link() -> None:
    """Red: a link that leads nowhere."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = [target.split("#")[0] for target in LINK.findall(text) if not target.startswith("http")]
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_pages_install_the_package_from_where_it_is() -> None:
    """Red: advice to take from an index what nobody has published there."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *WRITTEN]
    advice = re.compile(r"pip install '?ncpipe(?!\[NAME\])")  # which install.md says of an installed package
    assert [page.name for page in pages if advice.search(page.read_text(encoding="utf-8"))] == []


def pointers(text: str) -> list[tuple[str, str]]:
    """Return what a text calls a page, and the heading or anchor that it names there, or ''."""
    pages = re.findall(r"\b(docs/[\w/]+\.\w+)(?:#([\w-]+))?(?:,? \(?\"([^\"]+)\"\)?)?", text)
    vague = re.findall(r"(?<![\w/\[])(?<!\ba )README\b(?!\.|'s)", text)
    return [(page, anchor or heading) for page, anchor, heading in pages] + [(name, "") for name in vague]


def headings(page: Path) -> set[str]:
    """Return a page's headings, and the anchors that the site makes of them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {*titles, *(re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles)}


def test_pages_that_code_and_parameters_point_to_exist() -> None:
    """Red: a page or a heading that was renamed, or "README lists it" after the README has stopped to."""
    suffixes = ("py", "yaml", "yml", "toml", "jinja", "html", "md")
    listed = ["git", "ls-files", *(f"*.{suffix}" for suffix in suffixes), ":!tests", ":!docs/results/*/*"]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    stale = [
        f"{name}: {page} {heading}"
        for name in files
        for page, heading in pointers((ROOT / name).read_text(encoding="utf-8"))
        if not (ROOT / page).exists() or (heading and heading not in headings(ROOT / page))
    ]
    assert len(files) > 300
    assert stale == []


def test_the_site_has_every_page_and_no_dead_link(tmp_path: Path) -> None:
    """Red: a page that the navigation lacks, a link or an anchor that leads nowhere."""
    pytest.importorskip("material", reason="needs the group docs")
    build = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "gallery" / "index.html").is_file()


def prose(text: str) -> list[str]:
    """Return a page's lines without code, headings, quotations, and with words in place of code and links."""
    lines = CODE.sub("", text).splitlines()
    shown = [re.sub(r"`[^`]*`", "Code", line) for line in lines if not line.startswith(("#", ">", "<!--"))]
    return [re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", line) for line in shown]


def long_cells(text: str) -> list[str]:
    """Return the cells of tables that have more than 15 words."""
    rows = [line for line in prose(text) if line.startswith("|")]
    cells = [cell for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    return [cell for cell in cells if len(re.findall(r"\S*[^\W_]\S*", cell)) > 15]


def crowded_lines(text: str) -> list[str]:
    """Return the lines in which one sentence ends and another begins."""
    mark = re.compile(r"^ *(?:(?:[-*]|\d+\.) +)?(?:\*\*[^*]*\*\*)?")  # of a list, and a heading in bold
    lines = [mark.sub("", line) for line in prose(text) if not line.startswith("|")]
    return [line for line in lines if SENTENCE_ENDS_INSIDE.search(ABBREVIATION.sub("Abbreviation", line))]


def long_paragraphs(text: str) -> list[str]:
    """Return the first lines of paragraphs and items of lists that have more than six lines."""
    paragraphs: list[list[str]] = [[]]
    for line in prose(text):
        if not line.strip() or re.match(r" *(?:[-*]|\d+\.) ", line):
            paragraphs.append([])
        if line.strip() and not line.startswith("|"):
            paragraphs[-1].append(line)
    return [lines[0] for lines in paragraphs if len(lines) > 6]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_pages_keep_the_rules_of_their_form(page: Path) -> None:
    """Red: a cell that should be a paragraph; two sentences in one line of a source; a wall of text."""
    text = page.read_text(encoding="utf-8")
    assert long_cells(text) == []
    assert crowded_lines(text) == []
    assert long_paragraphs(text) == []
