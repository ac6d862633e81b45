"""The examples of docs/theory.md run, and say what they print."""

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")


def test_the_examples_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
    assert names["optimal_value"]("ce", 10, 64, 0.005, bias=False) == pytest.approx(0.0227594, abs=5e-8)
    assert names["found"].agreeing(1e-8) >= 1
