"""docs/extending.md: the blocks of the page stand in the studies that `ncpipe new` makes, which run."""

import re
from pathlib import Path

import pandas as pd
import pytest
from conftest import clear_code_digests, measure_runs
from pipeline import ROOT

from ncpipe.commands.aggregate import aggregate
from ncpipe.commands.claims import claims
from ncpipe.commands.code import write_code
from ncpipe.commands.new import create_study, render
from ncpipe.commands.plot import plot
from ncpipe.commands.report import report
from ncpipe.config.reading import at_start
from ncpipe.config.study import load_study
from ncpipe.runs.study_effect import study_effect

PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")


SECTIONS = {"own": "", "stage": "\n## A stage\n", "loop": "\n## A training loop\n"}  # in the page's order


@pytest.mark.parametrize("starter", SECTIONS)
def test_the_starters_have_the_blocks_of_the_page(starter: str) -> None:
    """Red: a definition or a key that was edited in the page or the starter alone."""
    section = PAGE.partition(SECTIONS[starter])[2] if SECTIONS[starter] else PAGE
    for following in list(SECTIONS.values())[list(SECTIONS).index(starter) + 1 :]:
        section = section.partition(following)[0]
    blocks = re.findall(r"^```(python|yaml)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    values = {"kind": starter} if starter == "stage" else {}
    files = {"python": "study.py", "yaml": "dvc.yaml" if starter == "stage" else "params.yaml"}
    parts = [(files[name], part) for name, text in blocks for part in text.strip("\n").split("\n\n\n")]
    assert len(parts) > 2

    def rendered(file: str) -> str:
        return render(file if file == "dvc.yaml" else f"{starter}_{file}", values)

    assert [part for file, part in parts if part not in rendered(file)] == []


def test_a_study_of_an_own_loop_passes_its_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does no more than define things. Red: a loop that `code` refuses, or takes for one with effects."""
    monkeypatch.chdir(tmp_path)
    create_study("./resnet", own_loop=True)
    monkeypatch.chdir("resnet")
    clear_code_digests()
    try:
        write_code()
        assert study_effect(at_start()) is None
    finally:
        load_study(tmp_path)
        clear_code_digests()


def test_the_starter_runs_to_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage by stage in this process, one run of each experiment.

    Red: a starter that only a later stage finds wrong, such as parameters without `about`."""
    monkeypatch.chdir(tmp_path)
    create_study("./spirals", own_code=True)
    monkeypatch.chdir("spirals")
    try:
        load_study(Path())
        params = Path("params.yaml").read_text(encoding="utf-8")
        small = params.replace("depths: [2, 3], seeds: [0, 1]", "depths: [2], seeds: [0]")
        Path("params.yaml").write_text(small.replace("epochs: 300", "epochs: 100"), encoding="utf-8")
        write_code()
        measure_runs("sine", "patches", depths=[2])
        for stage in (aggregate, plot, claims, report):
            stage()
    finally:
        load_study(tmp_path)
    for name in ("depth_sweep", "own_metrics", "curves_sine"):
        assert Path(f"data/figures/{name}.png").is_file()
    history = pd.read_csv("data/results/history.csv")
    values = history["nc0"].dropna()
    assert len(values) == 2 * 4  # runs x shares of the epochs
    assert (values > 0).all()
    assert values.nunique() == len(values)
    page = Path("data/report.html").read_text(encoding="utf-8")
    assert "The study&#39;s own metrics" in page
    assert "Do a network, loss and optimizer of our own collapse?" in page
    assert "fits-patches" in page
