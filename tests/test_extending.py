"""docs/extending.md: the blocks of the page are a study that runs, as they stand."""

import re
from pathlib import Path

import pandas as pd
import pytest
from pipeline import PARAMS, ROOT, Clone

PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
MOST_LINES = 25


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_each_thing_is_said_in_a_few_lines() -> None:
    found = {language: blocks(language) for language in ("bash", "yaml", "python")}
    assert [len(texts) for texts in found.values()] == [1, 1, 3]
    for text in (text for texts in found.values() for text in texts):
        assert len([line for line in text.splitlines() if line.strip()]) <= MOST_LINES


@pytest.mark.pipeline
def test_the_page_runs_to_its_figure_and_a_metric_trains_nothing_again(tmp_path: Path) -> None:
    clone = Clone.of_working_tree(tmp_path / "clone", PARAMS)
    clone.run("bash", "-e", "-c", *blocks("bash"))
    study = clone.study("spirals")
    (study.folder / "params.yaml").write_text(*blocks("yaml"), encoding="utf-8")
    program = "\n\n".join(blocks("python"))
    (study.folder / "study.py").write_text(program, encoding="utf-8")
    one = study.repro("train@sine-2-0")
    assert one.ran == ["code", "fetch@sine", "train@sine-2-0"]
    swept = study.run("ncpipe", "sweep")
    assert "sweep: 2 runs to train in " in swept.err  # in as many batches as there are cores
    assert "3 runs registered" in swept.err
    assert study.stale() == []
    for name in ("depth_sweep", "curves_sine"):
        assert (study.folder / f"data/figures/{name}.png").is_file()
    history = pd.read_csv(study.folder / "data/results/history.csv")
    values = history["closest_pair"].dropna()
    assert len(values) == 4 * 4  # runs x shares of the epochs
    assert values.between(0, 1 + 1e-12).all()
    assert values.nunique() > 4

    edited = program.replace("distances.min() / distances.mean()", "distances.min() / distances.max()")
    edited = edited.replace("class Sine(", "# A comment.\nclass Sine(")
    (study.folder / "study.py").write_text(edited, encoding="utf-8")
    again = study.repro()
    ran = {stage.split("@")[0] for stage in again.ran}
    assert {"code", "measure", "aggregate", "plot"} <= ran
    assert not ran & {"fetch", "train", "extract"}
