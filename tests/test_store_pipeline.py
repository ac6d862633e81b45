"""The store under DVC, in temporary clones: nothing trains twice, whatever asks for a run.

Each test's docstring ends with the fault that would turn it red.
"""

import shutil

import pytest
from pipeline import ROOT, Clone, Copy, Made, trains

pytestmark = [
    pytest.mark.pipeline,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="clones the repository, and this is no checkout"),
]
PAGE = (ROOT / "docs/store.md").read_text(encoding="utf-8")


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
def small(swept: Clone, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """`swept` with one of its experiments, by a stage for each run; committed. Not to be changed."""
    clone = swept.copy(tmp_path_factory.mktemp("small") / "clone")
    clone.edit_params("sweep.experiments", ["alpha"])
    assert clone.repro("fill", "extract").ran == ["code", "grid", "fill"]
    clone.commit()
    return clone


@pytest.fixture(scope="module")
def whole_first(small: Clone, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """`small` by a stage for each experiment, after `dvc repro extract`. Not to be changed."""
    clone = small.copy(tmp_path_factory.mktemp("whole") / "clone")
    clone.edit_pipeline(an_experiment_a_stage)
    return clone, clone.repro("extract")


def room(clone: Clone, seed: int) -> tuple[int, int]:
    """Bytes on the disk of the weights of a seed's runs in their places, and of all copies."""
    places = list((clone.folder / "data/runs").glob(f"*/*/s{seed}/model.safetensors"))
    weights = {file.read_bytes() for file in places}
    sizes = {}
    for base in (clone.folder / "data/runs", clone.store, clone.folder / ".dvc/cache/files"):
        for file in (file for file in base.rglob("*") if file.is_file()):
            if file.read_bytes() in weights:
                sizes[file.stat().st_ino] = file.stat().st_size  # a file that has two names counts once
    return sum(file.stat().st_size for file in places), sum(sizes.values())


@pytest.mark.long
def test_a_stage_for_an_experiment_and_back(small: Clone, whole_first: Made, own_copy: Copy) -> None:
    """By the page's edit; for a new seed without stored runs, as after `dvc pull`. A run takes the room of
    two copies: in its place, and in DVC's cache, which the store has a name in.

    Red: runs that train because another stage asks for them, or that DVC removes before the store has them; a
    new seed that is skipped, because the stage depends on no table; a store with files of its own; features
    of all runs for one seed more."""
    clone, output = own_copy(whole_first[0]), whole_first[1]
    whole = small.digests("data/runs", "data/features")
    assert (output.trained, output.ran) == ([], ["train@alpha"])
    assert output.err.count("taken from the store") == 4
    assert clone.digests("data/runs", "data/features") == whole
    for record in clone.store.glob("*/run.json"):
        shutil.rmtree(record.parent)
    clone.edit_params("sweep.seeds", [0, 1, 5])
    added = clone.repro("extract")
    assert added.trained == trains(["alpha"], [2, 3], [5])
    assert "train@alpha" in added.ran
    assert "extract alpha: 2 runs on cpu, float64; 4 runs taken" in added.err
    in_place, in_all = room(clone, 5)
    assert 0 < in_all <= 2 * in_place
    assert len(list(clone.store.glob("*/run.json"))) == 4 + 2
    shutil.copy(small.folder / "dvc.yaml", clone.folder / "dvc.yaml")
    clone.edit_params("sweep.seeds", [0, 1])
    back = clone.repro("extract")
    assert back.trained == []
    assert clone.digests("data/runs", "data/features").items() >= whole.items()  # seed 5 stays behind


@pytest.mark.long
def test_a_kill_at_the_end_of_a_temporary_experiment_loses_nothing(small: Clone, own_copy: Copy) -> None:
    """It is killed when its runs are stored, before DVC has them. Red: a store in the copy that DVC made."""
    clone = own_copy(small)
    command = ["dvc", "exp", "run", "--temp", "-S", "sweep.seeds=[0,1,7]"]
    killed = clone.stop_when(lambda said: "seed=7: loss" in "".join(said), 9, *command)
    assert killed.code == -9
    done = [name for name in killed.trained if f"{name.split('-')[1]} seed=7: loss" in killed.out]
    clone.edit_params("sweep.seeds", [0, 1, 7])
    shutil.rmtree(clone.folder / ".dvc/tmp/exps", ignore_errors=True)
    (clone.folder / ".dvc/tmp/rwlock").unlink(missing_ok=True)
    assert not set(done) & set(clone.repro("fill").trained)
    assert done
