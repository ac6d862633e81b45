"""docs/metrics.md names every metric, and its examples run."""

import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from ncpipe.cli import app
from ncpipe.metrics.table import measure_arrays

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "metrics.md").read_text(encoding="utf-8")


def emitted() -> set[str]:
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(30) % 3
    features, test, weight = (torch.randn(n, 4, generator=draw) for n in (30, 30, 3))
    rows = measure_arrays(features, labels, weight, torch.zeros(3), test, labels)
    # Of a spectrum the page names the first value.
    return {re.sub(r"_\d{3}$", "_001", row.metric) for row in rows}


def test_the_table_names_every_metric_and_no_other() -> None:
    table = PAGE.split("## Every column")[1].split("## ")[0]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", " ".join(first_cells))) == emitted()


@pytest.mark.filterwarnings("ignore::ncpipe.errors.MeasurementWarning")  # a dozen images of width 512
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
    assert names["rows"]
    assert CliRunner().invoke(app, ["metrics", "features.npz"]).exit_code == 0
