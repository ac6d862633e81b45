"""The store under DVC, in temporary clones: nothing trains twice, whatever asks for a run.

Each test's docstring ends with the fault that would turn it red.
"""

import os
import shutil
from pathlib import Path

import pytest
from pipeline import PARAMS, ROOT, Clone, Copy, trains

pytestmark = [
    pytest.mark.pipeline,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="clones the repository, and this is no checkout"),
]
PAGE = (ROOT / "docs/store.md").read_text(encoding="utf-8")
ALPHA = PARAMS["experiments"]["alpha"] | {"epochs": 50, "log_every": 5}
SMALL = PARAMS | {
    "sweep": {"experiments": ["alpha"], "depths": [2, 3], "seeds": [0, 1]},
    "experiments": {"alpha": ALPHA},
}


def an_experiment_a_stage(pipeline: str) -> str:
    """The root's dvc.yaml after the page's edit."""
    lines = PAGE.split("```diff\n")[1].split("```")[0].splitlines()
    before = [line[1:] for line in lines if line[:1] in " -"]
    after = [line[1:] for line in lines if line[:1] in " +"]
    edited = pipeline.replace("\n".join(before) + "\n", "\n".join(after) + "\n")
    assert edited != pipeline
    assert sum(line.startswith(("+", "-")) for line in lines) <= 5  # two lines of the matrix, one of outs
    return edited


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A small sweep by a stage for each run, up to its features. Not to be changed."""
    clone = Clone.of_working_tree(tmp_path_factory.mktemp("swept") / "clone", SMALL)
    output = clone.repro("fill", "extract")
    assert output.trained == trains(["alpha"], [2, 3], [0, 1])
    clone.commit()
    return clone


def room(clone: Clone) -> tuple[int, int]:
    """Bytes on the disk of runs in their places, of all that is theirs; each file once."""
    runs, places = clone.folder / "data/runs", clone.digests("data/runs").values()
    own = sum(file.stat().st_size for file in runs.rglob("*") if file.is_file())
    seen = {}
    for base in (runs, clone.store, clone.folder / ".dvc/cache/files"):
        for digest, file in ((clone.digests(str(file)), file) for file in base.rglob("*") if file.is_file()):
            if set(digest.values()) & set(places):
                seen[file.stat().st_ino] = file.stat().st_size
    return own, sum(seen.values())


def test_a_run_takes_the_room_of_two_copies(swept: Clone) -> None:
    """Its place, and DVC's cache, which the store has a name in. Red: a store with files of its own."""
    own, of_all = room(swept)
    assert of_all <= 2 * own
    assert len(list(swept.store.glob("*/run.json"))) == 4


def test_a_stage_for_an_experiment_and_back(swept: Clone, own_copy: Copy) -> None:
    """By the page's edit. Red: runs that train because another stage asks for them; a new seed that is
    skipped, because the stage depends on no table."""
    clone = own_copy(swept)
    whole = clone.digests("data/runs", "data/features")
    pipeline = clone.folder / "dvc.yaml"
    before = pipeline.read_text()
    pipeline.write_text(an_experiment_a_stage(before))
    there = clone.repro("extract")
    assert (there.trained, there.ran) == ([], ["train@alpha"])
    assert "train alpha: taken from the store" in there.err
    assert clone.digests("data/runs", "data/features") == whole
    clone.edit_params("sweep.seeds", [0, 1, 5])
    added = clone.repro("extract")
    assert added.trained == trains(["alpha"], [2, 3], [5])
    assert "train@alpha" in added.ran
    clone.edit_params("sweep.seeds", [0, 5])
    removed = clone.repro("extract")
    assert removed.trained == []
    assert not list((clone.folder / "data/runs").glob("*/*/s1"))
    pipeline.write_text(before)
    clone.edit_params("sweep.seeds", [0, 1])
    back = clone.repro("extract")
    assert back.trained == []
    assert clone.digests("data/runs", "data/features").items() >= whole.items()  # seed 5 stays behind


def test_one_stage_trains_its_own_batch(swept: Clone, own_copy: Copy) -> None:
    """Red: a stage that fills the whole sweep though DVC was asked for one run."""
    clone = own_copy(swept)
    clone.edit_params("sweep.depths", [2, 4, 5])
    assert clone.repro("train@alpha-4-0").trained == trains(["alpha"], [4], [0, 1])


@pytest.mark.parametrize(
    "whole",
    [
        pytest.param(False, id="a stage a run", marks=pytest.mark.long),
        pytest.param(True, id="a stage an experiment"),
    ],
)
def test_after_dvc_pull_a_new_seed_trains_itself(
    whole: bool, swept: Clone, own_copy: Copy, tmp_path: Path
) -> None:
    """In another clone, whose store is empty. Red: runs that DVC removes before anybody has taken them up."""
    clone = own_copy(swept)
    if whole:
        pipeline = clone.folder / "dvc.yaml"
        pipeline.write_text(an_experiment_a_stage(pipeline.read_text()))
        clone.repro("extract")
    clone.run("dvc", "remote", "add", "--default", "folder", str(tmp_path / "remote"))
    clone.commit()
    clone.run("dvc", "push")
    clone.run("git", "clone", "--quiet", str(clone.folder), str(tmp_path / "second"))
    second = Clone(tmp_path / "second")
    second.run("dvc", "pull", "--allow-missing")
    assert not second.store.exists()
    second.edit_params("sweep.seeds", [0, 1, 5])
    assert second.repro("fill", "extract").trained == trains(["alpha"], [2, 3], [5])


def test_a_second_study_with_the_same_entry_trains_nothing(swept: Clone, own_copy: Copy) -> None:
    """With the other granularity. Red: a fingerprint that knows of the study or of the stage."""
    clone = own_copy(swept)
    study = clone.study("smoke")
    study.write_params(SMALL | {"sweep": {"experiments": ["alpha"], "depths": [3, 2], "seeds": [1]}})
    pipeline = study.folder / "dvc.yaml"
    pipeline.write_text(an_experiment_a_stage(pipeline.read_text()))
    assert study.repro("extract").trained == []
    path = "data/runs/alpha/L3/s1/model.safetensors"
    assert (study.folder / path).read_bytes() == (clone.folder / path).read_bytes()


def test_a_kill_at_the_end_of_a_temporary_experiment_loses_nothing(swept: Clone, own_copy: Copy) -> None:
    """It is killed when its runs are stored, before DVC has them. Red: a store in the copy that DVC made."""
    clone = own_copy(swept)
    command = ["dvc", "exp", "run", "--temp", "-S", "sweep.seeds=[0,1,7]"]
    killed = clone.stop_when(lambda said: "seed=7: loss" in "".join(said), 9, *command)
    assert killed.code == -9
    done = [name for name in killed.trained if f"{name.split('-')[1]} seed=7: loss" in killed.out]
    clone.edit_params("sweep.seeds", [0, 1, 7])
    shutil.rmtree(clone.folder / ".dvc/tmp/exps", ignore_errors=True)
    clone.run("ncpipe", "repair")
    assert not set(done) & set(clone.repro("fill").trained)
    assert done


def test_clean_leaves_what_dvc_has(swept: Clone, own_copy: Copy) -> None:
    """Red: a store whose removal takes results away; a run that lies in its place and trains again."""
    clone = own_copy(swept)
    before = clone.digests("data/runs")
    said = clone.run("ncpipe", "clean", "--older-than", "0h")
    assert said.out.count(" run ") == 4
    assert clone.digests("data/runs") == before
    assert not list(clone.store.glob("*/run.json"))
    clone.edit_params("sweep.seeds", [0, 1, 3])
    assert clone.repro("fill").trained == trains(["alpha"], [2, 3], [3])
    assert os.path.exists(clone.folder / "data/runs/alpha/L2/s0/run.json")
