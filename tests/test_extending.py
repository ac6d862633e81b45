"""docs/extending.md: the blocks of the page are a study that runs, as they stand."""

import re
from pathlib import Path

import pandas as pd
import pytest
from conftest import clear_code_digests, measure_runs
from pipeline import PARAMS, ROOT, Clone

from ncpipe.commands.aggregate import aggregate
from ncpipe.commands.claims import claims
from ncpipe.commands.code import write_code
from ncpipe.commands.new import create_study, render
from ncpipe.commands.plot import plot
from ncpipe.commands.report import report
from ncpipe.config.study import load_study
from ncpipe.runs.code_digests import at_start
from ncpipe.runs.study_code import study_effect

PAGE, _, LOOP = (ROOT / "docs/extending.md").read_text(encoding="utf-8").partition("\n## A training loop\n")
MOST_LINES = 25


def blocks(language: str, page: str = PAGE) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def test_each_thing_is_said_in_a_few_lines() -> None:
    found = {language: blocks(language) for language in ("bash", "yaml", "python")}
    assert [len(texts) for texts in found.values()] == [1, 1, 8]
    loop = {language: blocks(language, LOOP) for language in found}
    assert [len(texts) for texts in loop.values()] == [1, 1, 4]
    for text in (text for texts in (*found.values(), *loop.values()) for text in texts):
        assert len([line for line in text.splitlines() if line.strip()]) <= MOST_LINES


def test_the_page_does_no_more_than_define(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a check that takes a usual study for one whose parts change each other."""
    monkeypatch.chdir(tmp_path)
    Path("study.py").write_text("\n\n".join(blocks("python")), encoding="utf-8")
    clear_code_digests()
    assert study_effect(at_start()) is None
    clear_code_digests()


def test_a_study_of_own_code_begins_with_the_page() -> None:
    """Red: a block of the page that was edited, and not what `ncpipe new --own-code` writes."""
    head, _, rest = render("own_study.py", {}).partition("\n\n")
    assert head.startswith('"""')
    assert rest == "\n\n".join(blocks("python"))
    assert render("own_params.yaml", {}) == blocks("yaml")[0]


def test_a_study_of_an_own_loop_begins_with_its_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does no more than define things, and its loop passes its trial.

    Red: a block of the section that was edited, and not what `ncpipe new --own-loop` writes."""
    head, _, rest = render("loop_study.py", {}).partition("\n\n")
    assert head.startswith('"""')
    assert rest == "\n\n".join(blocks("python", LOOP))
    assert render("loop_params.yaml", {}) == blocks("yaml", LOOP)[0]
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


def test_the_page_runs_to_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.pipeline
@pytest.mark.long
def test_by_dvc_it_is_the_same_and_a_comment_trains_nothing_again(tmp_path: Path) -> None:
    """Red: a stage of the page's dvc.yaml that asks for what no stage before it writes."""
    clone = Clone.of_working_tree(tmp_path / "clone", PARAMS)
    clone.run("bash", "-e", "-c", *blocks("bash"))
    study = clone.study("spirals")
    program = (study.folder / "study.py").read_text(encoding="utf-8")
    one = study.repro("train@sine-2-0")
    assert one.ran == ["code", "fetch@sine", "train@sine-2-0"]
    swept = study.run("ncpipe", "sweep")
    assert "sweep: 6 runs to train in " in swept.err  # in as many batches as there are cores
    assert study.stale() == []
    study.run("ncpipe", "report")
    assert (study.folder / "data/report.html").is_file()

    commented = program.replace("class Sine(", "# A comment.\nclass Sine(")
    edited = commented.replace("return weight.sum(0).norm()", "return weight.sum(0).norm() / weight.norm()")
    for text, stages in ((commented, set()), (edited, {"measure", "train"})):
        (study.folder / "study.py").write_text(text, encoding="utf-8")
        study.repro("code")
        assert {stage.split("@")[0] for stage in study.stale()} >= stages
        assert bool(study.stale()) == bool(stages)
