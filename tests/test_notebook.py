"""The notebooks of docs/, committed with their outputs: executed again, one on the study that it reads."""

import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import contents, loaded, measure_runs
from pipeline import ROOT

from ncpipe.commands.aggregate import aggregate
from ncpipe.commands.plot import plot

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
RELATIVE = 0.05  # other processors round otherwise, and training enlarges that


def shown(notebook: dict[str, Any]) -> list[dict[str, str]]:
    """Return what each cell of code shows, by MIME type."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(len(cell["outputs"]) == 1 for cell in cells), "a cell was never executed"
    return [{kind: "".join(text) for kind, text in cell["outputs"][0]["data"].items()} for cell in cells]


def same(text: str, other: str) -> bool:
    """Whether two texts have the same words, and numbers that agree up to the training's rounding."""
    numbers, others = ([float(number) for number in NUMBER.findall(string)] for string in (text, other))
    words, other_words = (NUMBER.sub("", string).split() for string in (text, other))
    return words == other_words and numbers == pytest.approx(others, rel=RELATIVE, abs=1e-3)


def assert_same_outputs(committed: dict[str, Any], again: dict[str, Any]) -> None:
    for was, now in zip(shown(committed), shown(again), strict=True):
        assert was.keys() == now.keys()
        if "image/png" in was:
            assert base64.b64decode(was["image/png"]).startswith(b"\x89PNG")
        else:
            assert same(was["text/plain"], now["text/plain"]), now["text/plain"]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """stages/smoke as it is shipped, after its stages up to `plot` in this process."""
    folder = tmp_path / "stages/smoke"
    folder.mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "stages/smoke/params.yaml", folder)
    monkeypatch.chdir(folder)
    measure_runs("mixture_rn1", depths=[2, 4], seeds=[0, 1])
    aggregate()
    plot()
    return folder


def test_the_outputs_are_what_the_cells_show_today(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: an edit of a cell, of the study or of what it calls, without docs/execute_notebook.py; another
    run's weights or row; a file of the study that is written."""
    committed = json.loads((ROOT / "docs/results.ipynb").read_text(encoding="utf-8"))
    before = contents(study / "data")
    monkeypatch.chdir(study.parents[1] / "docs")
    again, names = loaded(ROOT / "docs/execute_notebook.py").executed(committed)
    assert_same_outputs(committed, again)
    run = names["run"]
    run_rows = run.points.query("split == 'train' and metric == 'nc1_trace_ratio'")
    assert run_rows["value"].item() == names["nc1"]
    assert set(names["study"].figures) == {figure.stem for figure in (study / "data/figures").glob("*.png")}
    assert contents(study / "data") == before


@pytest.mark.filterwarnings("ignore::ncpipe.system.errors.MeasurementWarning")
def test_a_network_of_torchvision_is_measured_in_ten_lines() -> None:
    """Beside its data. Red: outputs that are not today's; more lines."""
    committed = json.loads((ROOT / "docs/torchvision.ipynb").read_text(encoding="utf-8"))
    first = next(cell["source"] for cell in committed["cells"] if cell["cell_type"] == "code")
    lines = [line for line in first if line.strip() and "digits" not in line and "images" not in line]
    assert len(lines) <= 10
    assert_same_outputs(committed, loaded(ROOT / "docs/execute_notebook.py").executed(committed)[0])
