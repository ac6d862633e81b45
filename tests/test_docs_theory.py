"""The examples of docs/theory.md and docs/low_rank.md run, and say what they print."""

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"


def run_examples(page: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Names that the page's examples leave behind."""
    monkeypatch.chdir(DOCS.parent)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)
    return names


def test_the_examples_run(monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_examples("theory.md", monkeypatch)
    assert names["optimal_value"]("ce", 10, 64, 0.005, bias=False) == pytest.approx(0.0227594, abs=5e-8)
    assert names["found"].agreeing(1e-8) >= 1


def test_the_low_rank_examples_run(monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_examples("low_rank.md", monkeypatch)
    assert names["dnc_loss"](names["model"]) == pytest.approx(0.214623, abs=1e-6)
    assert names["srg_loss"](names["model"]) == pytest.approx(0.174826, abs=1e-6)
    solution, model = names["solution"], names["unequal"]
    value = names["objective"](model, solution.features, solution.weights)
    assert value == pytest.approx(names["srg_loss"](model), rel=1e-12)
