"""docs/language.md: its code runs as printed, and makes its picture."""

import re
from pathlib import Path

import pytest
from matplotlib import pyplot

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "language.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore")  # what Trainer advises
def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture is made, NC improves as the page says. Red: a printed argument that is none."""
    pytest.importorskip("accelerate", reason="Trainer needs it: pip install 'ncpipe[integrations]'")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
        pyplot.close("all")  # the page's code leaves its figure open, as a notebook's would
    history = names["history"]
    assert isinstance(history, list)
    first, last = history[0], history[-1]
    assert last["cdnv"] < first["cdnv"]
    assert last["nc4_mismatch"] < first["nc4_mismatch"]
    assert last["unc3_cosine"] > first["unc3_cosine"]
    assert (tmp_path / "language_model.png").is_file()
    logged = names["trainer"].state.log_history  # type: ignore[attr-defined]
    assert [row["step"] for row in logged if "nc/last/train/cdnv" in row] == [0, 4, 8]


def test_the_example_is_ten_lines() -> None:
    """Beside the imports."""
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
    assert "measure_causal_lm" in code
    assert len([line for line in code.splitlines() if line and not line.startswith(("import", "from"))]) <= 10
