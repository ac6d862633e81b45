"""Features and metrics that were made ahead: the bytes that each stage makes by itself, or none."""

import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import experiment_tree, flip_byte, linked, write_params

from ncpipe.__main__ import main
from ncpipe.artifacts import AHEAD, FEATURES, METRICS, PREPARED, RUNS, sha256_of
from ncpipe.commands import measure as measuring
from ncpipe.commands import stage_times, stages_ahead
from ncpipe.commands.code import write_code
from ncpipe.commands.extract import extract_experiment
from ncpipe.commands.fetch import fetch
from ncpipe.commands.grid import read_grid, write_grid
from ncpipe.commands.measure import measure
from ncpipe.commands.stages_ahead import hands_of
from ncpipe.commands.train import train
from ncpipe.params import load_params
from ncpipe.scheduling import dvc_entries, hands, waiting
from ncpipe.scheduling.waiting import STORE, Stage, claim, root_of, words_for
from ncpipe.stamps import Stamp, data_checksum, forget_code
from ncpipe.training.device import prepare_device

NAMES = ("one", "other", "third")
ALL = {("extract", "other"), ("extract", "third"), *(("measure", name) for name in NAMES)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three experiments, of which the second has metrics on the way; and what their stages make alone."""
    folder = tmp_path_factory.mktemp("stages")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        forget_code()
        kept = {"metrics": ["nc1_trace_ratio"], "at": [0.5]}
        trees = {"one": {}, "other": {"history": kept}, "third": {"model": {"width": 9}}}
        write_params([2, 3], [0], **{name: experiment_tree(**tree) for name, tree in trees.items()})
        write_code()
        write_grid()
        for name in NAMES:
            fetch(name)
        for name in NAMES:
            for depth in (2, 3):
                train(name, depth, 0, workers=1)
        shutil.copytree(AHEAD, "alone/ahead")
        for name in NAMES:
            extract_experiment(name)
            measure(name)
        shutil.rmtree(AHEAD)
        Path("alone/ahead").rename(AHEAD)
        FEATURES.rename("alone/features")
        METRICS.rename("alone/metrics")
    return folder


@pytest.fixture
def project(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it in which a DVC asks for all."""
    shutil.copytree(trained, tmp_path / "project", symlinks=True)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("DVC_STAGE", "extract@one")
    monkeypatch.setattr(stages_ahead, "dvc_wants_all", lambda: True)
    yield tmp_path / "project"
    stage_times._ahead.clear()
    torch.set_flush_denormal(False)


@pytest.fixture(scope="module")
def ready(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all are waiting that the first stage has made ahead."""
    folder = tmp_path_factory.mktemp("ready") / "project"
    shutil.copytree(trained, folder, symlinks=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("DVC_STAGE", "extract@one")
        patch.setattr(stages_ahead, "dvc_wants_all", lambda: True)
        first()
    stage_times._ahead.clear()
    return folder


@pytest.fixture
def made(ready: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it."""
    shutil.rmtree(project)
    shutil.copytree(ready, project, symlinks=True)
    monkeypatch.chdir(project)
    return project


def first(workers: int = 1, ahead: bool = True) -> None:
    """What `ncpipe extract one` does."""
    with hands_of("extract", "one", None, workers, ahead) as each:
        extract_experiment("one", None, each)


def there() -> set[tuple[str, str]]:
    """What waits; each with its ticket."""
    tickets = {(path.parent.name, path.stem) for path in STORE.glob("*/*.json")}
    assert tickets == {(path.parent.name, path.name) for path in STORE.glob("*/*") if path.is_dir()}
    return tickets


def contents(*folders: str | Path) -> dict[str, str]:
    files = [file for folder in folders for file in Path(folder).rglob("*") if file.is_file()]
    return {"/".join(file.parts[-3:]): sha256_of(file) for file in files}


def test_all_is_made_by_the_first_and_claimed_by_the_others(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By two processes, to the bytes of one, without the long way and what that loads.

    Red: subnormal numbers flushed while metrics are taken; another experiment's result; a run that stays in
    the store; times of others in the first one's line."""
    monkeypatch.setattr(hands, "WORTH", 0.0)
    before = [path for path in AHEAD.iterdir() if (path / "run.json").exists()]
    begin = time.monotonic()
    with stage_times.timed("extract@one"):
        first(workers=2)
    took = time.monotonic() - begin
    others = sum(json.loads(path.read_bytes())["seconds"] for path in STORE.glob("*/*.json"))
    said = capsys.readouterr().err.splitlines()
    assert said[1:] == ["extract one: goes on with what DVC asks for next, 2 of extract and 3 of measure"]
    assert there() == ALL
    assert not METRICS.exists()
    assert [path.name for path in FEATURES.iterdir()] == ["one"]
    monkeypatch.setattr("ncpipe.cli.run_cli", lambda: pytest.fail("the long way"))
    for stage, name in sorted(ALL):
        monkeypatch.setattr(sys, "argv", ["ncpipe", stage, "--experiment", name])
        monkeypatch.setenv("DVC_STAGE", f"{stage}@{name}")
        main()
        assert capsys.readouterr().err == f"{stage} {name}: done ahead, by an earlier stage\n"
    assert contents(FEATURES, METRICS) == contents("alone")
    assert len(contents("alone")) == 6 + 2 + 15
    assert before
    assert not [path for path in STORE.rglob("*") if path.is_file()]
    waiting.drop_all()  # as `aggregate` does
    assert not STORE.exists()
    assert not [path for path in AHEAD.iterdir() if (path / "run.json").exists()]
    rows = Path("data/logs/stages.csv").read_text(encoding="utf-8").splitlines()[1:]
    seconds = dict(row.rsplit(",", 1) for row in rows)
    assert len(seconds) == 6
    assert 0 <= float(seconds["extract,one"]) <= took - others + 0.1
    assert sum(map(float, seconds.values())) > took - 0.5


def test_metrics_are_taken_as_if_no_features_had_been_extracted_here(project: Path) -> None:
    extract_experiment("one")
    assert (torch.tensor([1e-310], dtype=torch.float64) / 2).item() == 0
    params = load_params()
    run = read_grid(params, "one")[0]
    stamp = Stamp(run, data_checksum(PREPARED / run.data), params.compute)
    measuring.measure_run(measuring.Part(stamp, FEATURES))
    assert (torch.tensor([1e-310], dtype=torch.float64) / 2).item() > 0


def anothers(kind: Stage) -> None:
    """The whole result of another experiment, ticket and all."""
    for name in ("other", "other.json"):
        waiting.remove(root_of(kind) / name)
    (root_of(kind) / "third").rename(root_of(kind) / "other")
    (root_of(kind) / "third.json").rename(root_of(kind) / "other.json")


def another_seconds() -> None:
    path = root_of("extract") / "other.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seconds": 0.0}))


FILE = STORE / "extract/other/L2/s0.safetensors"
TABLE = STORE / "measure/other/runs.csv"
CODE = Path("data/code/experiments/other")


@pytest.mark.parametrize(
    "change",
    [
        lambda: flip_byte(FILE, -9),
        lambda: FILE.unlink(),
        lambda: FILE.with_name("s1.safetensors").write_bytes(FILE.read_bytes()),
        lambda: linked(FILE),
        lambda: linked(STORE / "extract/other"),
        lambda: shutil.rmtree(STORE / "extract/other"),
        lambda: anothers("extract"),
        another_seconds,
        lambda: (STORE / "extract/other.json").write_text("["),
        lambda: (STORE / "extract/other.json").write_text("[]"),
        lambda: (STORE / "extract/other.json").unlink(),
        lambda: flip_byte(Path("params.yaml"), -9),
        lambda: flip_byte(Path("data/code/files.txt"), -9),
        lambda: flip_byte(CODE / "extract.txt", -9),
        lambda: flip_byte(Path("data/grid/other.csv"), -9),
        lambda: flip_byte(PREPARED / "other/facts.json", -9),
        lambda: flip_byte(PREPARED / "other/tensors.safetensors", -9),
        lambda: flip_byte(RUNS / "other/L3/s0/model.safetensors", -9),
        lambda: (RUNS / "other/L3/s0/run.json").unlink(),
        lambda: Path("study.py").write_text("# code of its own\n"),
    ],
)
def test_features_of_anything_else_are_not_claimed(change, made: Path) -> None:
    """Red: any of them taken for the stage's own result."""
    assert PREPARED.joinpath("other/tensors.safetensors").is_file()
    change()
    before = contents(made)
    assert claim("extract", words_for("other")) is None
    assert contents(made) == before
    assert not (FEATURES / "other").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda: flip_byte(TABLE, -9),
        lambda: anothers("measure"),
        lambda: flip_byte(CODE / "measure.txt", -9),
        lambda: flip_byte(FEATURES / "other/L2/s0.safetensors", -9),
        lambda: flip_byte(FEATURES / "other/L2/s0/e10.safetensors", -9),
        lambda: shutil.rmtree(FEATURES / "other"),
        lambda: flip_byte(RUNS / "other/L3/s0/metrics.json", -9),
    ],
)
def test_metrics_of_anything_else_are_not_claimed(change, made: Path) -> None:
    """Red: metrics of features that are not those in their place."""
    assert claim("extract", words_for("other")) is not None
    change()
    assert claim("measure", words_for("other")) is None
    assert not (METRICS / "other").exists()


def test_code_of_metrics_does_not_keep_features_from_being_claimed(made: Path) -> None:
    flip_byte(CODE / "measure.txt", -9)
    assert claim("extract", words_for("other")) is not None


def test_others_words_are_not_theirs(made: Path) -> None:
    for words in ([], ["other"], ["--experiment", "../x"], ["--experiment", "none"], ["other", "--help"]):
        assert claim("extract", words) is None
    assert claim("extract", [*words_for("other"), "--device", "cpu"]) is None


def test_what_is_damaged_is_dropped_in_a_line_and_made_again(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what waits whole is not made again, nor left when nobody will ask for it."""
    flip_byte(FILE, -9)
    (STORE / "extract/gone").mkdir()
    kept = (STORE / "measure/other").stat().st_ino
    with hands_of("extract", "other", None, 1, True) as each:
        assert not FILE.exists()
        extract_experiment("other", None, each)
    line, *_ = capsys.readouterr().err.splitlines()
    assert line == f"extract other: {FILE}: damaged; what was made ahead is dropped"
    assert contents(FEATURES / "other") == contents("alone/features/other")
    assert not (STORE / "extract/gone").exists()
    assert (STORE / "measure/other").stat().st_ino == kept
    assert claim("measure", words_for("other")) is not None


def test_what_cannot_be_made_is_left_to_its_own_stage(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: an extract that fails because another one's would; metrics of what was not extracted."""
    (RUNS / "other/L3/s0/run.json").unlink()  # not there: not one to try
    flip_byte(RUNS / "third/L3/s0/model.safetensors", -9)
    first()
    assert there() == {("measure", "one")}
    assert contents(FEATURES) == contents("alone/features/one")
    said = capsys.readouterr().err
    assert "extract ahead third: left to its own stage (data/runs/third/L3/s0/model.safetensors: " in said
    assert "other" not in said
    assert not list(Path("data/.partial").iterdir())


def test_measure_does_the_others_too(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an edit of a metric, when DVC asks for no features. Red: two seconds for each experiment."""
    Path("alone/features").rename(FEATURES)
    with hands_of("measure", "one", None, 1, True) as each:
        measure("one", each)
    assert there() == {("measure", "other"), ("measure", "third")}
    assert claim("measure", words_for("other")) is not None
    assert contents(METRICS) == contents("alone/metrics/one", "alone/metrics/other")


@pytest.mark.parametrize(
    "why", ["gpu", "off", "no dvc", "one is asked for", "device", "code", "settled", "at work"]
)
def test_nothing_is_made_ahead_where_nobody_will_ask(
    why: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "gpu":  # which this process has alone
        monkeypatch.setattr(stages_ahead, "prepare_device", lambda _: torch.device("cuda"))
        monkeypatch.setattr(hands, "Worker", lambda _: pytest.fail("another process"))
        monkeypatch.setattr(hands, "WORTH", 0.0)
    if why == "no dvc":
        monkeypatch.delenv("DVC_STAGE")
    if why == "one is asked for":
        monkeypatch.setattr(stages_ahead, "dvc_wants_all", lambda: False)
    if why == "code":
        monkeypatch.setattr(stages_ahead, "is_described", lambda: False)
    if why == "settled":
        monkeypatch.setattr(stages_ahead, "settled_state", lambda: None)
    with hands_of("extract", "one", "cpu" if why == "device" else None, 1, why != "off") as each:
        if why == "at work":
            lock = stages_ahead.FileLock(stages_ahead.LOCK)
            lock.acquire()
        extract_experiment("one", None, each)
    if why == "at work":
        lock.release()
    assert there() == set()
    assert contents(FEATURES) == contents("alone/features/one")


def test_what_dvc_has_is_not_made(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: an hour of features that nobody asks for, since one experiment's parameters were changed."""
    monkeypatch.setattr(
        dvc_entries.Entries,
        "have",
        lambda self, command, instead: command.startswith("ncpipe") and command.endswith("other"),
    )
    Path("alone/features").rename(FEATURES)
    shutil.rmtree(FEATURES / "third")
    first()
    assert there() == {("extract", "third"), ("measure", "one"), ("measure", "third")}


def test_threads_that_would_flush_measure_nothing(project: Path) -> None:
    text = Path("params.yaml").read_text(encoding="utf-8")
    Path("params.yaml").write_text(text.replace("threads: 1", "threads: 2"), encoding="utf-8")
    params, entries = load_params(), lambda: dvc_entries.Entries(["extract", "measure"])
    assert stages_ahead._behind("extract", "one", params, entries) == []  # trained by one
    patched = pytest.MonkeyPatch()
    patched.setattr(stages_ahead, "is_current", lambda *_: True)
    assert {item.stage for item in stages_ahead._behind("extract", "one", params, entries)} == {"extract"}
    patched.undo()
    prepare_device(params.compute)
    torch.set_num_threads(1)
