"""Digests of code: what changes them and what does not, on a small package; and that they know what runs."""

import ast
import shutil
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import clear_code_digests, contents, experiment_tree, params_tree, write_params
from ruamel.yaml import YAML
from traced import Traced

from ncpipe.commands.aggregate import aggregate
from ncpipe.commands.claims import claims
from ncpipe.commands.cli import PAPERS, run_cli
from ncpipe.commands.code import FILL, check_params_unedited, write_code
from ncpipe.commands.extract import extract_experiment
from ncpipe.commands.fetch import fetch
from ncpipe.commands.grid import write_grid
from ncpipe.commands.measure import measure
from ncpipe.commands.new import render
from ncpipe.commands.plot import plot
from ncpipe.commands.report import report
from ncpipe.commands.train import train
from ncpipe.config.choices import TABLES, UNIONS, Choices
from ncpipe.config.experiment import own_loop
from ncpipe.config.params import load_params
from ncpipe.config.reading import Reading, at_start
from ncpipe.papers import stages as papers
from ncpipe.runs import closures
from ncpipe.runs.closures import closure
from ncpipe.runs.code_digests import (
    EXPERIMENT_STAGES,
    READERS,
    SERVICES,
    SWEEP_STAGES,
    experiment_digests,
    sweep_digests,
    training_digests,
)
from ncpipe.runs.fingerprint import choices_of
from ncpipe.system.artifacts import CODE
from ncpipe.system.errors import InputError

REPOSITORY = Path(__file__).resolve().parent.parent
PIPELINES = sorted([REPOSITORY / "dvc.yaml", *REPOSITORY.glob("stages/*/dvc.yaml")])

CLAIMS = """\
- &one
  {id: slope, ref: S, statement: s, quantity: slope, experiment: a, metric: cdnv, expect: {below: 0}}
- {<<: *one, id: value, quantity: value}
- {<<: *one, id: least, quantity: minimum}
- {<<: *one, id: ranks, quantity: spearman}
- {<<: *one, id: change, quantity: difference, of: value, versus: {depth: 2}}
- {id: z, ref: S, statement: s, quantity: theory, call: gufm.value,
   args: {loss: ce, classes: 3, width: 4, strength: 0.1}, against: numerical, expect: {within: 1}}
"""

SOURCES = {
    "trainer": """
        '''A trainer.'''
        import numpy as np
        from ncpipe import tools
        from ncpipe.networks import NETWORKS
        from ncpipe.specs import Model

        def train(model: Model, rate=0.1):
            '''Train.'''
            network = NETWORKS[model.architecture]()
            for _ in range(10):
                tools.step(network, np.sqrt(rate))
            return network
    """,
    "tools": """
        def step(network, rate):
            from ncpipe.part.late import smooth

            network.move(smooth(rate))
    """,
    "part/__init__": "import ncpipe.other\n",
    "part/late": "def smooth(x):\n    return 1 * x\n",
    "other": "VALUE = 1\n",
    "networks": """
        from collections.abc import Mapping
        from ncpipe import conv
        from ncpipe.deep import DEPTH, Deep
        from ncpipe.specs import DeepModel, WideModel

        NETWORKS: Mapping = {DeepModel: Deep, WideModel: lambda: _wide(conv.SIZE)}

        def _wide(size):
            from ncpipe.wide import Wide

            return Wide(size)

        def depth():
            return DEPTH
    """,
    "deep": "class Deep:\n    width = 3\n\n\nDEPTH = 1\n",
    "conv": "SIZE = 2\n",
    "wide": "class Wide:\n    width = 4\n",
    "specs": """
        from ncpipe.deep_spec import DeepModel
        from ncpipe.wide_spec import WideModel

        Model = DeepModel | WideModel
    """,
    "deep_spec": "class DeepModel:\n    width = 1\n",
    "wide_spec": "class WideModel:\n    width = 1\n",
    "unused": "VALUE = 1\n",
}
DEEP = {"conv", "wide", "wide_spec", "unused"}  # modules that do not count where DeepModel is chosen


class Package:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "ncpipe"
        for name, text in SOURCES.items():
            self.write(name, textwrap.dedent(text))

    def write(self, name: str, text: str) -> None:
        path = self.folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def digests(self, *words: str) -> dict[str, str]:
        choices = Choices(frozenset(words)) if words else None
        return closure(["ncpipe.trainer"], choices, (), Reading())


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.setattr(closures, "ROOT", tmp_path)
    monkeypatch.setattr(closures, "TABLES", [("ncpipe.networks", "NETWORKS")])
    monkeypatch.setattr(closures, "UNIONS", [("ncpipe.specs", "Model")])
    return Package(tmp_path)


def test_what_is_reached(package):
    """Red: an import in a function or of a package that is not followed; a table that is."""
    modules = {f"ncpipe.{name}".replace("/", ".").removesuffix(".__init__") for name in SOURCES}
    unused = {f"ncpipe.{name}" for name in DEEP}
    assert set(package.digests("DeepModel")) == modules - unused
    assert set(package.digests("WideModel")) == modules - {"ncpipe.unused", "ncpipe.deep_spec"}
    assert set(package.digests()) == modules - {"ncpipe.unused"}
    assert set(closure(["ncpipe.trainer"], None, ["ncpipe.tools"], Reading())) & {"ncpipe.part"} == set()


@pytest.mark.parametrize("name", SOURCES)
def test_an_edit_of_a_file_counts_where_it_is_reached(package, name):
    """Red: an edit that changes a number and no digest, or the digests of those that do not use it."""
    text = (package.folder / f"{name}.py").read_text()
    before = package.digests("DeepModel")
    package.write(name, text + "\nMORE = 1\n")
    assert (package.digests("DeepModel") == before) == (name in DEEP)
    package.write(name, '"""Words."""\n# A comment.\n' + text.replace("'''Train.'''", "'''Trains.'''"))
    assert package.digests("DeepModel") == before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("trainer", "rate=0.1", "rate=0.2"),
        ("trainer", "numpy as np", "jax.numpy as np"),
        ("networks", "DeepModel: Deep", "DeepModel: _wide"),
        ("networks", "return DEPTH", "return DEPTH + 1"),
        ("deep", "class Deep:", "@register\nclass Deep:"),
    ],
)
def test_any_edit_of_what_runs_counts(package, name, old, new):
    """Red: a part of a file that is not digested."""
    before = package.digests("DeepModel")
    text = (package.folder / f"{name}.py").read_text()
    assert old in text
    package.write(name, text.replace(old, new))
    assert package.digests("DeepModel") != before


def test_a_new_entry_in_a_module_of_its_own_changes_nothing(package):
    """Red: a table, a union or an import of theirs that counts for other entries."""
    before = package.digests("DeepModel")
    package.write("new", "class New:\n    pass\n\n\nclass NewModel:\n    pass\n")
    text = (package.folder / "networks.py").read_text()
    text = text.replace("WideModel: l", "NewModel: New, WideModel: l").replace("_wide(", "_wider(")
    package.write("networks", "from ncpipe.new import New, NewModel" + text)
    text = (package.folder / "specs.py").read_text()
    package.write("specs", "from ncpipe.new import NewModel" + text.replace("| W", "| NewModel | W"))
    assert package.digests("DeepModel") == before


def test_a_reading_has_the_files_as_they_first_were(package):
    """In each thread. Red: digests of two states of a file in one reading."""
    reading = Reading()
    before = closure(["ncpipe.trainer"], None, (), reading)
    package.write("tools", "VALUE = 1\n")
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda _: closure(["ncpipe.trainer"], None, (), reading), range(8))
    assert [*found] == [before] * 8
    assert package.digests() != before


# The stage


@pytest.fixture
def described(tmp_path, monkeypatch):
    """A project whose stage `code` has run, by a copy of the package."""
    shutil.copytree(REPOSITORY / "ncpipe", tmp_path / "ncpipe", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(closures, "ROOT", tmp_path)
    monkeypatch.setattr("ncpipe.commands.code.ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    write_params([2], [0], one=experiment_tree())
    clear_code_digests()
    write_code()
    yield tmp_path
    clear_code_digests()


def edit(name, old, new):
    """Change a module of the package in one place, in the folder one stands in."""
    path = Path("ncpipe") / name
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (name, old)
    path.write_text(text.replace(old, new), encoding="utf-8")
    clear_code_digests()


TRAINING = ("fetch", "train", "fill")  # stages that train again if one of them has changed


def test_what_an_edit_of_the_package_concerns(described):
    """Red: a table or a union that counts whole, so that a network more trains all again; a caption that
    measures again; a new metric that measures nothing."""

    def changed():
        """Stages whose digests the edits since the last call have changed."""
        before = contents(CODE)
        write_code()
        return {Path(name).stem for name, digest in contents(CODE).items() if digest != before.get(name)}

    edit("figures/labels.py", '"digits": "', '"digits": "the ')  # a caption
    found = changed()
    assert {"plot", "claims"} <= found
    assert not found & {*TRAINING, "extract", "measure", "aggregate"}
    for name, entry, other in (
        ("config/experiment.py", " | MLPModel | ", " | MLPModel | OtherModel | "),
        ("models/build.py", "    MLPModel: ", "    OtherModel: Family(flatten, MLP),\n    MLPModel: "),
        ("datasets/prepare.py", '"digits": prepare_digits,', '"others": None, "digits": prepare_digits,'),
    ):
        edit(name, entry, other)
    assert not changed() & {*TRAINING, "extract", "measure"}
    edit("metrics/collapse.py", "def within_trace(", "def another(): ...\n\n\ndef within_trace(")
    found = changed()
    assert {"measure", "aggregate"} <= found
    assert not found & {*TRAINING}


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
    edit("training/schedules.py", "1 + math.cos(", "0.99 + math.cos(")
    assert [refused(stage) for stage in ("plot", train, measure)] == [False, True, True]
    edit("figures/depth_sweep.py", "RUN_SIZE = 2.2", "RUN_SIZE = 2.3")
    assert [refused(stage) for stage in ("plot", "grid", "code")] == [True, False, False]
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
        params, found = load_params(), []
        for name in tree:
            try:
                check_params_unedited(params, [name])
            except InputError:
                found.append(name)
        return found

    assert edited("epochs: 20", "epochs: 21") == ["edited"]
    assert edited("threads: 1", "threads: 2") == [*tree]
    assert edited("sweep:", "sweep:\n  axis: penalty.value\n  values: [0.005]") == [*tree]
    assert edited("device: cpu", "device: auto") == []
    assert edited("epochs: 20", "epochs: 20  # a comment") == []
    files = {name: Path(f"data/code/experiments/{name}/train.txt") for name in tree}
    before = {name: file.read_bytes() for name, file in files.items()}
    write_params([3, 2], [5], **{name: dict(reversed(each.items())) for name, each in reversed(tree.items())})
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
    without, with_axis = ({line.strip(" -") for line in each.splitlines()} for each in (text, axis))
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
def test_a_stage_depends_on_its_own_code(path):
    """Red: a stage that a changed function of its own does not run again."""
    for stage, entry in YAML(typ="safe").load(path)["stages"].items():
        item = "${key}" if "foreach" in entry else "${item.experiment}"
        entry = entry.get("do", entry)
        if not entry["cmd"].startswith("ncpipe "):
            continue
        own = [
            dependency
            for dependency in entry["deps"]
            if (not dependency.startswith("data/") or "/code/" in dependency) and dependency != "claims.yaml"
        ]
        if stage == "code":
            modules = sorted(module.name for module in path.parent.glob("*.py"))
            assert own == ["ncpipe", *modules]
        elif entry["cmd"].startswith("ncpipe stage "):
            assert entry["cmd"].split()[2] == stage
            per = f"experiments/{item}" if "experiment" in entry["cmd"] or "${" in entry["cmd"] else "sweep"
            assert own == [f"data/code/{per}/{stage}.txt"]
            continue
        elif stage in {*SWEEP_STAGES, *papers.SWEEP_STAGES, FILL}:
            assert own == [f"data/code/sweep/{stage}.txt"]
        else:
            assert stage in {*EXPERIMENT_STAGES, *papers.EXPERIMENT_STAGES, "train"}
            assert own == [f"data/code/experiments/{item}/{stage}.txt"]
        words = [word for word in entry["cmd"].split()[1:] if word not in PAPERS]  # as in: ncpipe s24 series
        assert words[0].replace("-", "_") == stage


def test_nothing_is_looked_up_behind_the_syntax_trees_back():
    """Red: a function of ours found by its name's text, or a way to import that a digest does not follow."""
    for path in sorted((REPOSITORY / "ncpipe").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        # runs the study's own file, whose tables are where digests begin too; finds the modules beside it
        # lazy_torch imports PyTorch, which is no module of ours
        by_name = {"study.py": {"exec"}, "study_files.py": {"importlib"}, "lazy_torch.py": {"importlib"}}
        runs = by_name.get(path.name, set())
        # names for users alone: tests/test_imports.py holds that no module of the package has one from there
        if path in (REPOSITORY / "ncpipe/__init__.py", REPOSITORY / "ncpipe/study.py"):
            runs = {"globals", "importlib"}
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not names & {"__import__", "globals", "importlib", "exec", "eval"} - runs, path
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("ncpipe.") for alias in node.names), path
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, path
                assert all(alias.name != "*" for alias in node.names), path


def test_tables_have_the_choices_of_every_shipped_experiment():
    """Red: a table that is none, or has another name by now; an entry that no choice picks."""
    keys = {(home, name): names_of_entries(home, name) for home, name in (*TABLES, *UNIONS)}
    for path in [REPOSITORY / "params.yaml", *REPOSITORY.glob("stages/*/params.yaml")]:
        for spec in load_params(path).experiments.values():
            if own_loop(spec):
                continue
            words = choices_of(spec).words
            assert [name for (_, name), known in keys.items() if not known & words] in (
                *([], ["SIDES"], ["Loss"], ["SIDES", "Loss"]),  # of images alone; a loss without keys
                ["SOURCES", "SIDES", "Data"],  # data of the study's own
            )


def names_of_entries(home, name):
    """Names and texts in the statement that defines a table."""
    tree = ast.parse((REPOSITORY / f"{home.replace('.', '/')}.py").read_text(encoding="utf-8"))
    (table,) = (each for each in tree.body if any(name in closures.names_in(one) for one in targets(each)))
    constants = {each.value for each in ast.walk(table) if isinstance(each, ast.Constant)}
    return constants | closures.names_in(table)


def targets(statement):
    return getattr(statement, "targets", [getattr(statement, "target", ast.Pass())])


@pytest.mark.parametrize("initialisation", ["normal", "uniform", "construction"])
def test_a_start_counts_where_it_is_chosen(initialisation, tmp_path, monkeypatch):
    """Red: runs that start from random weights and train again after an edit of the constructions."""
    monkeypatch.chdir(tmp_path)
    write_params([2], [0], one=experiment_tree(model={"initialisation": initialisation}))
    modules = training_digests(choices_of(load_params().experiments["one"]), at_start())
    assert ("ncpipe.theory.constructions.curves" in modules) == (initialisation == "construction")
    assert any(module.startswith("ncpipe.theory") for module in modules) == (initialisation == "construction")
    assert ("ncpipe.models.mlp" in modules, "ncpipe.models.resnet" in modules) == (False, True)


def test_digests_know_every_module_that_runs(tmp_path, monkeypatch):
    """Red: a way to a module that imports do not show; a table's entry that runs and is left out."""
    monkeypatch.chdir(tmp_path)
    for slow in ("figure.Figure.savefig", "layout_engine.ConstrainedLayoutEngine.execute"):  # none of ours
        monkeypatch.setattr(f"matplotlib.{slow}", lambda *_, **__: None)
    short = {"epochs": 2, "log_every": 1}
    own_keys = {"initialisation": "uniform", "norm": "pre"}
    ways = {
        "a": experiment_tree(model=own_keys, loss="mse", batch_size=5, **short),
        "b": experiment_tree(model={"architecture": "L-T12", "mlp_width": 5, "patch": 2}, **short),
    }
    write_params([2, 3], [0], **ways)
    specs = load_params().experiments

    def run(digests, without, function, *arguments, within=()):
        with Traced(within) as traced:
            function(*arguments)
        ran = {module for module, _ in traced.counted(without)}
        assert ran
        assert ran <= {*digests, "ncpipe"}, function

    write_code()
    whole = sweep_digests()
    run(whole["grid"], SERVICES, write_grid)
    for name, tree in ways.items():
        write_params([2, 3], [0], **{name: tree})  # a params.yaml is checked whole, others' keys too
        digests = experiment_digests(choices_of(specs[name]))
        without = SERVICES | READERS
        run(digests["fetch"], without, fetch, name, None)
        within = [("ncpipe.training.loop", "train_batch"), ("ncpipe.runs.run_folder", "write_run")]
        within.append(("ncpipe.training.starts", "starts_of"))
        run(digests["train"], without, train, name, 2, 0, None, 1, 60.0, within=within)
        train(name, 3, 0, workers=1)
        run(digests["extract"], without, extract_experiment, name, None)
        run(digests["measure"], without, measure, name)
    write_params([2, 3], [0], **ways)
    Path("claims.yaml").write_text(CLAIMS, encoding="utf-8")
    for stage, function in (("aggregate", aggregate), ("plot", plot), ("claims", claims), ("report", report)):
        run(whole[stage], SERVICES, function)
