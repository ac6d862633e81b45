"""The code printed in the docs runs, and gives the numbers, tables and pictures that the pages promise."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib import pyplot
from typer.testing import CliRunner

from ncpipe.commands.cli import app
from ncpipe.features.run_metrics import terms_of
from ncpipe.metrics.catalogue import ENTRIES, GAPS, TRANSFERS
from ncpipe.metrics.study_metrics import entry
from ncpipe.metrics.table import measure, transfer_metrics

DOCS = Path(__file__).resolve().parent.parent / "docs"


def run_examples(page: str, *libraries: str) -> dict[str, Any]:
    """Run a page's examples, which may need libraries of their own; return the names they leave behind."""
    for library in libraries:
        pytest.importorskip(library, reason="needs pip install 'ncpipe[integrations]' timm")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)
        pyplot.close("all")  # the page's code leaves its figure open, as a notebook's would
    return names


def test_theory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DOCS.parent)
    names = run_examples("theory.md")
    assert names["optimal_value"]("ce", 10, 64, 0.005, bias=False) == pytest.approx(0.0227594, abs=5e-8)
    assert names["found"].agreeing(1e-8) >= 1


def test_low_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DOCS.parent)
    names = run_examples("low_rank.md")
    assert names["dnc_loss"](names["model"]) == pytest.approx(0.214623, abs=1e-6)
    assert names["srg_loss"](names["model"]) == pytest.approx(0.174826, abs=1e-6)
    solution, model = names["solution"], names["unequal"]
    value = names["objective"](model, solution.features, solution.weights)
    assert value == pytest.approx(names["srg_loss"](model), rel=1e-12)


@pytest.mark.filterwarnings("ignore")  # of squares beyond float64
def test_conformance(capsys: pytest.CaptureFixture[str]) -> None:
    run_examples("conformance.md")
    lines = capsys.readouterr().out.splitlines()
    page = (DOCS / "conformance.md").read_text(encoding="utf-8")
    assert f"This one fails on {len(lines)} of them" in page
    assert "dead_k2 nan exactly inf" in lines


@pytest.mark.filterwarnings("ignore")  # what Trainer advises
def test_a_language_model_collapses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture is made, NC improves as the page says. Red: a printed argument that is none."""
    monkeypatch.chdir(tmp_path)
    names = run_examples("language.md", "accelerate")
    first, last = names["history"][0], names["history"][-1]
    assert last["cdnv"] < first["cdnv"]
    assert last["nc4_mismatch"] < first["nc4_mismatch"]
    assert last["unc3_cosine"] > first["unc3_cosine"]
    assert (tmp_path / "language_model.png").is_file()
    logged = names["trainer"].state.log_history
    assert [row["step"] for row in logged if "nc/last/train/cdnv" in row] == [0, 4, 8]


@pytest.mark.filterwarnings("ignore")  # a dozen images of width 512; what Lightning and Trainer advise
def test_own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    run_examples("own_model.md", "accelerate", "lightning", "timm", "torchmetrics")
    assert (tmp_path / "collapse.png").stat().st_size > 1000
    assert (tmp_path / "layers.png").stat().st_size > 1000
    assert CliRunner().invoke(app, ["metrics", "features.npz"]).exit_code == 0


def emitted(width: int) -> set[str]:
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(30) % 5
    features, test, weight = (torch.randn(n, width, generator=draw) for n in (30, 30, 5))
    rows = measure(features, labels, weight, torch.zeros(5), test, labels)
    return {entry(row.metric).name for row in rows}


def test_the_catalogue_has_every_metric_and_no_other() -> None:
    every = {metric.name for metric in ENTRIES}
    assert emitted(width=3) == every
    assert emitted(width=4) == {name for name in every if not name.startswith(("gnc2_", "unc3_", "cdnv_log"))}
    run = dict.fromkeys(("loss_gap", "gap_gufm", "gap_fit", "gap_last_penalty", "inner_penalty"), 1.0)
    assert {row.metric for row in terms_of(2, run)} == {metric.name for metric in GAPS}
    features, labels = torch.randn(9, 2, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 3
    values = transfer_metrics(features, labels, [1, 2], 1, ["ncc", "ridge"], 1.0, 0)
    assert {entry(name).name for name, _ in values} == {metric.name for metric in TRANSFERS}
