"""The catalogue has every metric that is measured, and the examples of docs/own_model.md run."""

import re
from pathlib import Path

import pytest
import torch
from matplotlib import pyplot
from typer.testing import CliRunner

from ncpipe.commands.cli import app
from ncpipe.features.run_metrics import terms_of
from ncpipe.metrics.catalogue import ENTRIES, GAPS, TRANSFERS
from ncpipe.metrics.study_metrics import entry
from ncpipe.metrics.table import measure
from ncpipe.metrics.transfer import transfer_metrics

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "own_model.md").read_text(encoding="utf-8")


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
    found = transfer_metrics(features, labels, [1, 2], 1, ["ncc", "ridge"], 1.0, 0)
    assert {entry(name).name for name, _ in found} == {metric.name for metric in TRANSFERS}


@pytest.mark.filterwarnings("ignore")  # a dozen images of width 512; what Lightning and Trainer advise
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for library in ("accelerate", "dvclive", "lightning", "timm", "torchmetrics"):
        pytest.importorskip(
            library, reason="the page's examples need it: pip install 'ncpipe[integrations]' dvclive timm"
        )
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
        pyplot.close("all")
    assert names["table"].columns.tolist() == ["layer", "split", "metric", "value"]  # type: ignore[attr-defined]
    assert (tmp_path / "nc1.png").stat().st_size > 1000
    assert CliRunner().invoke(app, ["metrics", "features.npz"]).exit_code == 0
    assert len(list(tmp_path.glob("live/**/nc/last/train/nc1_trace_ratio.tsv"))) == 1


def test_the_page_begins_with_ten_lines_that_end_in_a_table_and_a_figure() -> None:
    first = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    assert PAGE.split("```")[0].count("\n") < 4  # nothing but the title stands before them
    assert len([line for line in first.splitlines() if line]) <= 10
    assert "to_pandas" in first
    assert "savefig" in first
