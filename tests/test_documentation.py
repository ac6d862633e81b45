"""The README, the pages that a script writes, and the site."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from test_imports import LAYERS

from ncpipe.metrics.catalogue import CATALOGUE

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["params.md", "commands.md", "metric_tables.md", "claim_calls.md"])
def test_pages_of_reference_are_current(name: str) -> None:
    """Red: a key, a default, an option, a metric or a call that changed, or a page edited by hand."""
    assert (DOCS / name).read_text(encoding="utf-8") == loaded(DOCS / "reference.py").PAGES[name]()


def test_the_table_of_metrics_has_every_metric() -> None:
    """Red: a group of the catalogue that the page leaves out."""
    page = (DOCS / "metric_tables.md").read_text(encoding="utf-8")
    assert {name for name in CATALOGUE if f"\n| `{name}` |" not in page} == set()


def test_the_picture_of_the_rooms_is_the_packages() -> None:
    """Red: a folder of the package, or a level of imports, that the picture lacks."""
    assert [set(row) for row in loaded(DOCS / "pictures.py").ROOMS] == LAYERS[1:]


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


def test_the_readme_is_one_page() -> None:
    """Red: a README that grows; a link that leads nowhere."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    targets = [target.split("#")[0] for target in LINK.findall(text) if not target.startswith("http")]
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_site_has_every_page_and_no_dead_link(tmp_path: Path) -> None:
    """Red: a page that the navigation lacks, a link or an anchor that leads nowhere."""
    pytest.importorskip("material", reason="needs the group docs")
    build = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "gallery" / "index.html").is_file()


def test_links_between_pages_lead_to_files() -> None:
    """Without a site too. Red: a page or a picture that was renamed."""
    dead = [
        f"{page.relative_to(DOCS)}: {target}"
        for page in DOCS.rglob("*.md")
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if not re.match(r"https?:|#|mailto:", target) and not (page.parent / target.split("#")[0]).exists()
    ]
    assert dead == []
