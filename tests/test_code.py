"""The stage code: what it writes and refuses, and that every stage of a pipeline depends on its own code."""

import shutil
import sys
from pathlib import Path

import pytest
from conftest import clear_code_digests, experiment_tree, params_tree, write_params
from ruamel.yaml import YAML

from ncpipe.commands.cli import run_cli
from ncpipe.commands.code import FILL, check_params_unedited, write_code
from ncpipe.commands.fetch import fetch
from ncpipe.commands.new import render
from ncpipe.commands.train import train
from ncpipe.config.params import load_params
from ncpipe.runs import code_digests
from ncpipe.runs.code_digests import EXPERIMENT_STAGES, SWEEP_STAGES
from ncpipe.system.errors import InputError

REPOSITORY = Path(__file__).resolve().parent.parent
PIPELINES = sorted([REPOSITORY / "dvc.yaml", *REPOSITORY.glob("stages/*/dvc.yaml")])

# The stage


@pytest.fixture
def described(tmp_path, monkeypatch):
    """A project whose stage `code` has run, by a copy of the package."""
    shutil.copytree(REPOSITORY / "ncpipe", tmp_path / "ncpipe", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(code_digests, "ROOT", tmp_path)
    monkeypatch.setattr("ncpipe.commands.code.ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    write_params([2], [0], one=experiment_tree())
    clear_code_digests()
    write_code()
    yield tmp_path
    clear_code_digests()


def test_a_copied_package_is_refused(described, monkeypatch):
    """Red: a study whose dependencies are a copy of the package that nothing runs."""
    monkeypatch.setattr("ncpipe.commands.code.ROOT", REPOSITORY)
    with pytest.raises(InputError, match=r"^ncpipe: is a copy of the package, but "):
        write_code()


def edit(name, old, new):
    """Change a module of the package in one place, in the folder one stands in."""
    path = Path("ncpipe") / name
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (name, old)
    path.write_text(text.replace(old, new), encoding="utf-8")
    clear_code_digests()


def test_code_that_is_edited_while_dvc_runs_is_refused(described, monkeypatch):
    """Of the stage that runs. Red: no look at what lies there; one at the text alone."""

    def refused(address):
        monkeypatch.setenv("DVC_STAGE", address)
        monkeypatch.setattr(sys, "argv", ["ncpipe", "schema"])
        with pytest.raises(SystemExit) as stop:
            run_cli()
        name = address.partition("@")[0].removeprefix("dvc.yaml:")
        assert stop.value.code in (
            0,
            f"ncpipe: ncpipe: code of {name} was edited after the stage code had run; run dvc repro",
        )
        return bool(stop.value.code)

    train, measure = "train@one-2-0", "dvc.yaml:measure@one"
    assert [refused(stage) for stage in ("plot", train, measure)] == [False, False, False]
    edit("training/schedules.py", "import math\n", "import math  # a comment\n")
    assert not refused(train)
    edit("figures/depth_sweep.py", "RUN_SIZE = 2.2", "RUN_SIZE = 2.3")
    assert [refused(stage) for stage in ("plot", train, measure)] == [True, False, False]
    edit("training/schedules.py", "1 + math.cos(", "0.99 + math.cos(")
    assert [refused(stage) for stage in (train, measure, "fetch@one", "code")] == [True, True, False, False]
    shutil.rmtree("data")
    assert not refused("plot")


def test_what_params_yaml_says_of_runs_is_in_their_file(tmp_path, monkeypatch):
    """Of those alone that it is said of; test_fingerprints.py has every key.

    Red: a key that trains other runs and is not in the file, which is all that DVC has; params.yaml's own
    text in it."""
    monkeypatch.chdir(tmp_path)
    tree = {name: experiment_tree() for name in ("edited", "other")}
    write_params([2], [0], **tree)
    write_code()
    original = Path("params.yaml").read_text(encoding="utf-8")

    def edited(old, new):
        """The experiments that would train other runs."""
        assert old in original
        Path("params.yaml").write_text(original.replace(old, new, 1), encoding="utf-8")
        params, names = load_params(), []
        for name in tree:
            try:
                check_params_unedited(params, [name])
            except InputError:
                names.append(name)
        return names

    assert edited("epochs: 20", "epochs: 21") == ["edited"]
    assert edited("threads: 1", "threads: 2") == [*tree]
    assert edited("sweep:", "sweep:\n  axis: penalty.value\n  values: [0.005]") == [*tree]
    assert edited("device: cpu", "device: auto") == []
    assert edited("epochs: 20", "epochs: 20  # a comment") == []
    files = {name: Path(f"data/code/experiments/{name}/train.txt") for name in tree}
    before = {name: file.read_bytes() for name, file in files.items()}
    write_params([3, 2], [5], **{name: dict(reversed(spec.items())) for name, spec in reversed(tree.items())})
    write_code()
    assert {name: file.read_bytes() for name, file in files.items()} == before


def test_an_axis_without_its_stages_is_refused_with_the_edit(tmp_path, monkeypatch):
    """Made as it is printed, the edit gives the dvc.yaml of a new study with an axis. Red: minutes of trials,
    and then a stage that fails for want of a value."""
    monkeypatch.chdir(tmp_path)
    kind = {"kind": "mixture", "separate": True}
    text = render("dvc.yaml", kind)
    Path("dvc.yaml").write_text(text)
    tree = params_tree([2], [0], one=experiment_tree())
    tree["sweep"] |= {"axis": "model.width", "values": [4, 8]}
    tree |= {"about": None}
    with open("params.yaml", "w") as file:
        YAML().dump(tree, file)
    with pytest.raises(InputError, match=r"sweep\.axis: dvc\.yaml has no stage for each") as refused:
        write_code()
    axis = render("dvc.yaml", kind | {"axis": "model.width", "values": [4, 8], "depth": 2})
    without, with_axis = ({line.strip(" -") for line in pipeline.splitlines()} for pipeline in (text, axis))
    unsaid = {line for line in with_axis - without if line not in str(refused.value)}
    assert unsaid == {"x_label: model.width"}
    Path("dvc.yaml").write_text(axis)
    write_code()


def test_experiments_that_share_a_mapping_are_refused(tmp_path, monkeypatch):
    """`dvc exp run -S` would change both or neither, in silence. Red: digests are written."""
    monkeypatch.chdir(tmp_path)
    write_params([2], [0], one=experiment_tree(), other=experiment_tree())
    tree = YAML(typ="safe").load(Path("params.yaml"))
    tree["experiments"]["other"]["penalty"] = tree["experiments"]["one"]["penalty"]
    with Path("params.yaml").open("w", encoding="utf-8") as file:
        YAML().dump(tree, file)
    with pytest.raises(
        InputError,
        match=r"^params\.yaml: experiments\.other\.penalty: shares its keys with "
        r"experiments\.one\.penalty by a YAML alias .* or neither; write a copy, penalty: \{<<:",
    ):
        write_code()
    assert not Path("data").exists()


def test_a_run_does_not_train_by_params_that_dvc_does_not_know(tmp_path, monkeypatch):
    """Edited after `code` had run, by which DVC files the run away. Red: no look at it; a look at others."""
    monkeypatch.chdir(tmp_path)
    write_params([2], [0], one=experiment_tree(), other=experiment_tree())
    fetch("one", None)
    write_code()
    write_params([2], [0], one=experiment_tree(epochs=21), other=experiment_tree())
    monkeypatch.setenv("DVC_STAGE", "train@one-2-0")
    with pytest.raises(InputError, match=r"^params\.yaml: parameters of one were edited after the s"):
        train("one", 2, 0, workers=1)
    assert not Path("data/runs").exists()
    write_params([2], [0], one=experiment_tree(), other=experiment_tree(epochs=21))
    train("one", 2, 0, workers=1)
    assert Path("data/runs/one/L2/s0").is_dir()


# The package itself


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.parent.name)
def test_tables_have_the_parameters_of_their_runs(path):
    """Red: `dvc repro code` after an edit, by which dvc.lock says that old tables are of new parameters."""
    stages = YAML(typ="safe").load(path)["stages"]
    if "aggregate" in stages:
        assert set(stages["code"]["params"]) <= set(stages["aggregate"]["params"])


@pytest.mark.parametrize("path", PIPELINES, ids=lambda path: path.parent.name)
def test_a_stage_depends_on_its_own_code(path):
    """Red: a stage that a changed function of its own does not run again."""
    for stage, entry in YAML(typ="safe").load(path)["stages"].items():
        item = "${key}" if "foreach" in entry else "${item.experiment}"
        entry = entry.get("do", entry)
        if not entry["cmd"].startswith("ncpipe "):
            continue
        code = [
            dependency
            for dependency in entry["deps"]
            if (not dependency.startswith("data/") or "/code/" in dependency) and dependency != "claims.yaml"
        ]
        if stage == "code":
            modules = sorted(module.name for module in path.parent.glob("*.py"))
            assert code == ["ncpipe", *modules]
        elif entry["cmd"].startswith("ncpipe stage "):
            assert entry["cmd"].split()[2] == stage
            per = f"experiments/{item}" if "experiment" in entry["cmd"] or "${" in entry["cmd"] else "sweep"
            assert code == [f"data/code/{per}/{stage}.txt"]
            continue
        elif stage in {*SWEEP_STAGES, FILL}:
            assert code == [f"data/code/sweep/{stage}.txt"]
        else:
            assert stage in {*EXPERIMENT_STAGES, "train"}
            assert code == [f"data/code/experiments/{item}/{stage}.txt"]
        assert entry["cmd"].split()[1] == stage
