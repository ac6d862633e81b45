"""What was found of a run is kept with it: taken by the same stage of the same run, and by nothing else.

Each test's docstring ends with the fault that would turn it red.
"""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import clear_code_digests, contents, experiment_tree, flip_byte, write_params

from ncpipe.commands import extract as extraction
from ncpipe.commands import measure as measuring
from ncpipe.commands.clean import clean
from ncpipe.commands.extract import extract_experiment
from ncpipe.commands.fetch import fetch
from ncpipe.commands.grid import write_grid
from ncpipe.commands.measure import measure
from ncpipe.commands.train import train
from ncpipe.metrics.kept_pass import KeptPass
from ncpipe.runs import measured
from ncpipe.runs.store_layout import store_folder
from ncpipe.system.artifacts import (
    FEATURES,
    METRICS,
    PREPARED,
    RUNS,
    digest_of,
    md5_of,
    read_json,
    write_json,
    write_manifest,
)
from ncpipe.system.errors import InputError

TREE = experiment_tree(epochs=4, history={"at": [0.0, 0.5], "metrics": ["nc1_trace_ratio"]}, log_every=1)
STAGES = ("extract", "measure")
OBJECTS = Path(".dvc/cache/files/md5")


def commit() -> None:
    """Put the features into DVC's cache, as DVC does after the stage."""
    for file in (path for path in FEATURES.rglob("*") if path.is_file()):
        name = md5_of(file)
        target = OBJECTS / name[:2] / name[2:]
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, trained, extracted and measured in a DVC project. Not to be changed."""
    folder = tmp_path_factory.mktemp("done")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path(".dvc").mkdir()
        write_params([2], [0, 1], one=TREE)
        write_grid()
        fetch("one")
        train("one", workers=1)
        extract_experiment("one")
        commit()
        measure("one")
    return folder


@pytest.fixture
def project(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to work in."""
    shutil.copytree(done, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    clear_code_digests()
    return tmp_path / "project"


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Runs both stages again and returns what each of them computed, as `extract 0` for seed 0."""
    computed: list[str] = []

    def noting(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            computed.append(f"{stage} {arguments[-1].run.seed}")
            return function(*arguments)

        return noted

    monkeypatch.setattr(extraction, "extract_run", noting("extract", extraction.extract_run))
    monkeypatch.setattr(measuring, "rows_of_run", noting("measure", measuring.rows_of_run))

    def both() -> list[str]:
        computed.clear()
        extract_experiment("one")
        commit()
        measure("one")
        return sorted(computed)

    return both


Again = Callable[[], list[str]]
ALL = ["extract 0", "extract 1", "measure 0", "measure 1"]


def kept(stage: str, seed: int = 0) -> Path:
    key = read_json(RUNS / f"one/L2/s{seed}/manifest.json")["key"]
    return store_folder() / f"{key}.{stage}"


def results() -> list[dict[str, str]]:
    return [contents(folder / "one") for folder in (FEATURES, METRICS)]


def test_a_seed_more_is_extracted_and_measured_alone(
    project: Path, again: Again, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables and features are to the bit those of a sweep that kept nothing. Red: all runs redone."""
    assert again() == []
    write_params([2], [0, 1, 5], one=TREE)
    write_grid()
    train("one", 2, 5, workers=1)
    assert again() == ["extract 5", "measure 5"]
    output = capsys.readouterr().err
    assert "extract one: 1 run on cpu, float64; 2 runs taken" in output
    assert "measure one: 1 run; 2 runs taken" in output
    digests = results()
    for stage in STAGES:
        for seed in (0, 1, 5):
            kept(stage, seed).unlink()
    assert len(again()) == 6
    assert results() == digests


def test_features_that_dvc_no_longer_has_are_computed(project: Path, again: Again) -> None:
    """As after `dvc gc`. Red: a folder of features that is empty."""
    whole = results()
    shutil.rmtree(OBJECTS)
    assert again() == ["extract 0", "extract 1"]
    assert results() == whole


def edit_code(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    digests = measured.experiment_digests
    monkeypatch.setattr(measured, "experiment_digests", lambda *of: digests(*of) | {stage: {"a.py": "other"}})


def new_weights() -> None:
    """The same run by other code, whose weights differ in a bit."""
    folder = RUNS / "one/L2/s0"
    flip_byte(folder / "model.safetensors", -3)
    write_manifest(folder, read_json(folder / "manifest.json")["key"])


def new_facts() -> None:
    path = PREPARED / "one/facts.json"
    facts = read_json(path) | {"facts": {"least_loss": 0.25}}
    del facts["digest"]
    write_json(path, facts | {"digest": digest_of(facts)})


def new_dependency(stage: str) -> None:
    Path("mine.txt").write_text("1")
    Path("dvc.yaml").write_text(f"stages: {{{stage}: {{cmd: x, deps: [mine.txt]}}}}\n")


def always(stage: str) -> None:
    Path("dvc.yaml").write_text(f"stages: {{{stage}: {{cmd: x, always_changed: true}}}}\n")


CHANGES: dict[str, tuple[Callable[[pytest.MonkeyPatch], object], list[str]]] = {
    "code of extract": (lambda patch: edit_code(patch, "extract"), ["extract 0", "extract 1"]),
    "code of measure": (lambda patch: edit_code(patch, "measure"), ["measure 0", "measure 1"]),
    "weights": (lambda patch: new_weights(), ["extract 0", "measure 0"]),
    "facts of the data": (lambda patch: new_facts(), ALL),
    "a file that extract lists": (lambda patch: new_dependency("extract"), ["extract 0", "extract 1"]),
    "a file that measure lists": (lambda patch: new_dependency("measure"), ["measure 0", "measure 1"]),
    "a stage that always runs": (lambda patch: always("measure"), ["measure 0", "measure 1"]),
}


@pytest.mark.parametrize(("workers", "processes"), [(1, 1), (2, 2), (8, 2)])
def test_processes_share_the_memory_for_what_is_kept(
    project: Path, workers: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the two runs. Red: a quarter of the free memory for each of them."""
    shares: list[float] = []

    class Recorded(KeptPass):
        def __init__(self, run: Any, name: str, keep: float) -> None:
            shares.append(keep)
            super().__init__(run, name, keep)

    monkeypatch.setattr("ncpipe.features.extraction.KeptPass", Recorded)
    shutil.rmtree(OBJECTS)
    extract_experiment("one", workers=workers)
    assert {*shares} == {0.25 / processes}


@pytest.mark.parametrize("change", CHANGES)
def test_what_depends_on_something_else_is_computed(
    change: str, project: Path, again: Again, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red: a result of other code, another run, other data or another file."""
    edit, expected = CHANGES[change]
    edit(monkeypatch)
    assert again() == expected


def test_features_of_another_device_are_computed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: the CPU's features, where those of a GPU are asked for."""
    computed = []
    monkeypatch.setattr(extraction, "prepare_device", lambda compute: SimpleNamespace(type="elsewhere"))
    monkeypatch.setattr(extraction, "extract_run", lambda *given: computed.append(given[-1].run.seed) or {})
    extract_experiment("one")
    assert computed == [0, 1]


def test_damage_is_seen(project: Path, again: Again) -> None:
    """Of any byte of what is kept, and of DVC's copy. Red: a number that a flipped bit made."""
    whole = results()
    for stage in STAGES:
        size = kept(stage).stat().st_size
        for position in (0, 64, size - 1):
            flip_byte(kept(stage), position)
            assert again() == [f"{stage} 0"], position
        kept(stage).write_bytes(kept(stage).read_bytes()[:-1])
        assert again() == [f"{stage} 0"]
    name = md5_of(FEATURES / "one/L2/s0.safetensors")
    cached = OBJECTS / name[:2] / name[2:]
    content = cached.read_bytes()
    cached.unlink()  # the features may be a link to it
    cached.write_bytes(content)
    flip_byte(cached, 500)
    assert again() == ["extract 0"]
    assert cached.read_bytes() == content
    assert results() == whole
    assert again() == []


def test_an_edit_of_a_listed_file_while_a_stage_runs_ends_it(
    project: Path, again: Again, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is reverted. Red: what another file gave, under the digest of the file that the stage began
    with, in the store or by DVC."""
    Path("study.py").write_text("METRICS = {}\n")
    Path("unit.txt").write_text("1")
    Path("dvc.yaml").write_text("stages: {measure: {cmd: ncpipe measure, deps: [unit.txt]}}\n")
    clear_code_digests()
    function = measuring.rows_of_run

    def edited(fingerprint: Any) -> Any:
        Path("unit.txt").write_text("2")
        Path("unit.txt").write_text("1")
        return function(fingerprint)

    monkeypatch.setattr(measuring, "rows_of_run", edited)
    before = kept("measure").read_bytes()
    with pytest.raises(InputError, match=r"^unit\.txt: was changed, or only touched"):
        measure("one")
    assert kept("measure").read_bytes() == before


def test_numbers_stay_to_the_bit(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a table that differs when its rows are taken."""
    values = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 0.1 + 0.2, 1e22, 3, True, None, "5-5"]
    rows = {name: [{name: value} for value in values] for name in ("measurements", "runs", "history")}
    rows |= {"gram": [{"value": math.nan}], "places": [{"layer": "last", "position": 2.0}]}
    for seed in (0, 1):
        kept("measure", seed).unlink()
    monkeypatch.setattr(measuring, "rows_of_run", lambda fingerprint: rows)
    measure("one")
    whole = contents(METRICS)
    monkeypatch.setattr(measuring, "rows_of_run", None)
    measure("one")
    assert contents(METRICS) == whole


def test_clean_removes_it_with_its_run(
    project: Path, again: Again, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red: files that stay in the store for good; two rows of a run that look the same."""
    clean(None, False)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    kinds = ["extract", "measure", "run"]
    assert sorted(row[:4] for row in rows if row[0] == "one") == [
        ["one", "L=2", f"seed={seed}", kind] for seed in (0, 1) for kind in kinds
    ]
    clean("0h", False)
    assert not list(store_folder().glob("*[0-9a-f].*"))
    assert again() == ALL
