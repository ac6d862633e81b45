"""Series of runs in several processes: the same rows as in one."""

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from conftest import write_params
from training_cases import DUFM_STUDY, free_tree

from ncpipe.config.params import load_params
from ncpipe.config.run import Run
from ncpipe.papers.s24.series import measured
from ncpipe.runs.trained_runs import train_runs
from ncpipe.system.errors import InputError

EPOCHS = 12


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Five runs of two widths."""
    monkeypatch.chdir(tmp_path)
    Path("study.py").write_text(DUFM_STUDY, encoding="utf-8")
    write_params([3], [0], x=free_tree(epochs=EPOCHS, log_every=1))
    with Path("params.yaml").open("a", encoding="utf-8") as file:
        file.write("\nseries: {x: {depth: 3, axis: model.width, values: [8, 9], seeds: [2, 0, 1]}}\n")
    return load_params().series_runs("x")[:5]


def test_two_workers_give_what_one_gives(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """By threads in place of processes. Red: rows that are lost, or in another order."""
    one = train_runs(runs, measured, 1)
    assert [(rows["runs"][0]["x"], rows["runs"][0]["seed"]) for rows in one] == [
        (run.value, run.seed) for run in runs
    ]
    monkeypatch.setattr("ncpipe.runs.trained_runs.executor", ThreadPoolExecutor)
    assert repr(train_runs(runs, measured, 2)) == repr(one)
    assert not list(Path("data/.store").glob("*"))


def test_a_process_that_is_ended_is_one_line(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise BrokenProcessPool

    monkeypatch.setattr("concurrent.futures.process.ProcessPoolExecutor.map", killed)
    with pytest.raises(InputError) as error:
        train_runs(runs, measured, 2)
    assert str(error.value) == "x: a process was killed; run dvc repro again"
