"""Digests of code: what changes them and what does not, on a small package; and that they know what runs."""

import ast
import importlib
import itertools
import shutil
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import clear_code_digests, experiment_tree, write_params
from ruamel.yaml import YAML
from traced import Traced

from ncpipe.claims import theory  # noqa: F401  # else its classes are made while `claims` is traced
from ncpipe.commands.aggregate import aggregate
from ncpipe.commands.claims import claims
from ncpipe.commands.cli import run_cli
from ncpipe.commands.code import FILL, check_params_unedited, write_code
from ncpipe.commands.extract import extract_experiment
from ncpipe.commands.fetch import fetch
from ncpipe.commands.grid import write_grid
from ncpipe.commands.measure import measure
from ncpipe.commands.paper_commands import APPS
from ncpipe.commands.plot import plot
from ncpipe.commands.report import report
from ncpipe.commands.train import train
from ncpipe.config.params import load_params
from ncpipe.papers import stages as papers
from ncpipe.runs import code_digests as code
from ncpipe.runs.code_digests import (
    ALL,
    EXPERIMENT_STAGES,
    MESSAGES,
    PLUMBING,
    STUDY,
    SWEEP_STAGES,
    TABLES,
    TRAINING,
    code_digests,
    reached,
    read_module,
)
from ncpipe.runs.fingerprint import choices_of
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
- {id: z, ref: S, statement: s, quantity: theory, call: two_linear.logit, args: {strength: 0.3},
   against: numerical, expect: {within: 1}}
- {id: flow, ref: S, statement: s, quantity: theory, call: flow.scale,
   args: {loss: se, classes: 3, per_class: 2, start: 0.1, time: 1.0}, against: numerical, expect: {within: 1}}
"""

SOURCES = {
    "trainer": '''
        """A trainer."""
        import numpy as np
        from ncpipe import tools
        from ncpipe.networks import NETWORKS, Network
        from ncpipe.specs import Model

        STEPS = 10
        UNUSED = 1

        def train(model: Model, rate=0.1):
            """Train."""
            network: Network = NETWORKS[model.architecture]()
            if rate < 0:
                raise ValueError(f"{rate}: negative")
            for _ in range(STEPS):
                tools.step(network, np.sqrt(rate))
            return network

        def report(network):
            return tools.describe(network)
    ''',
    "tools": """
        SHARE = 0.5

        def step(network, rate):
            from ncpipe.late import smooth

            network.move(smooth(rate) * SHARE)

        def describe(network):
            return str(network)
    """,
    "late": """
        table = {}
        for name in ("smooth", "rough"):
            table[name] = 1

        def count(of):
            return of + 1

        @count
        def counted():
            return 1

        def smooth(x):
            return x * table["smooth"]
    """,
    "networks": """
        from ncpipe.deep import Deep
        from ncpipe.wide import Wide

        class Network:
            def move(self, by):
                self.place = by

        NETWORKS = {"deep": Deep, "wide": Wide}
    """,
    "deep": """
        class Deep:
            width = 3
    """,
    "wide": """
        class Wide:
            width = 4
    """,
    "specs": """
        from dataclasses import dataclass
        from typing import Annotated, Literal

        Count = Annotated[int, "at least 1"]

        @dataclass
        class DeepModel:
            architecture: Literal["deep"]
            depth: Count

            def strength(self):
                return 1 / self.depth

        @dataclass
        class WideModel:
            architecture: Literal["wide"]

        Model = DeepModel | WideModel
    """,
}
ROOTS = [("ncpipe.trainer", "train")]
TOY_TABLES = {
    ("ncpipe.networks", "NETWORKS"): ("architecture",),
    ("ncpipe.specs", "Model"): ("architecture",),
}
DEEP = {"architecture": "deep"}


class Package:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "ncpipe"
        self.folder.mkdir()
        (self.folder / "__init__.py").touch()
        for name, text in SOURCES.items():
            self.write(name, textwrap.dedent(text))

    def write(self, name: str, text: str) -> None:
        (self.folder / f"{name}.py").write_text(text, encoding="utf-8")
        clear_code_digests()

    def replace(self, name: str, old: str, new: str) -> None:
        text = (self.folder / f"{name}.py").read_text(encoding="utf-8")
        assert old in text
        self.write(name, text.replace(old, new))

    def digests(self, **choices: str) -> dict[str, str]:
        return code_digests(ROOTS, choices)


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.setattr(code, "ROOT", tmp_path)
    monkeypatch.setattr(code, "TABLES", TOY_TABLES)
    yield Package(tmp_path)
    clear_code_digests()


def test_what_is_reached(package):
    assert set(reached(ROOTS, DEEP)) == {
        ("ncpipe.trainer", "train"),
        ("ncpipe.trainer", "STEPS"),
        ("ncpipe.tools", "step"),
        ("ncpipe.tools", "SHARE"),
        ("ncpipe.late", "smooth"),
        ("ncpipe.late", "table"),
        ("ncpipe.late", "name"),
        ("ncpipe.late", "count"),
        ("ncpipe.late", "<import>"),
        ("ncpipe.networks", "NETWORKS"),
        ("ncpipe.networks", "Network"),
        ("ncpipe.deep", "Deep"),
        ("ncpipe.specs", "DeepModel"),
    }
    both = set(reached(ROOTS, {}))
    assert both - set(reached(ROOTS, DEEP)) == {("ncpipe.wide", "Wide"), ("ncpipe.specs", "WideModel")}
    assert ("ncpipe.tools", "step") not in reached(ROOTS, DEEP, without=["ncpipe.tools"])


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("trainer", '"""A trainer."""', '"""Trains."""\n# A comment.'),
        ("trainer", '    """Train."""\n', ""),
        ("trainer", "rate=0.1", "rate: float = 0.1"),
        ("trainer", "negative", "must not be negative"),
        ("trainer", "(network, np.sqrt(rate))", "(\n            (network), np.sqrt(rate)\n        )"),
        ("trainer", "UNUSED = 1", "UNUSED = 2"),
        ("trainer", "    return tools.describe", "    return 'a ' + tools.describe"),
        ("trainer", "from ncpipe import tools\n", "import math\nfrom ncpipe import tools\n"),
        ("tools", "str(network)", "repr(network)"),
        ("tools", "SHARE = 0.5\n", "SHARE: float = 0.5\nMORE = 1\n"),
        ("wide", "width = 4", "width = 5"),
        ("networks", '"wide": Wide}', '"wide": Wide, "new": Wide}'),
        ("specs", "WideModel\n", "WideModel | NewModel\n\nclass NewModel:\n    architecture: int\n"),
        ("specs", '"at least 1"', '"1 or more"'),
        ("specs", "DeepModel | WideModel", "WideModel | DeepModel"),
    ],
)  # fmt: skip
def test_what_changes_nothing(package, name, old, new):
    """Red: digests of the text; of whole modules; tables and types that count for all they hold."""
    before = package.digests(**DEEP)
    package.replace(name, old, new)
    assert package.digests(**DEEP) == before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("trainer", "STEPS = 10", "STEPS = 11"),
        ("trainer", "rate=0.1", "rate=0.2"),
        ("trainer", "rate < 0", "rate <= 0"),
        ("trainer", "import numpy as np", "import jax.numpy as np"),
        ("tools", "SHARE = 0.5", "SHARE = 0.25"),
        ("late", "def smooth", "@twice\ndef smooth"),
        ("late", "    table[name] = 1", "    table[name] = 2"),
        ("late", "return of + 1", "return of + 2"),
        ("late", "return 1\n", "return 2\n"),
        ("networks", "self.place = by", "self.place = -by"),
        ("networks", '"deep": Deep', '"deep": Wide'),
        ("deep", "width = 3", "width = 5"),
        ("specs", "1 / self.depth", "2 / self.depth"),
        ("specs", "depth: Count\n", "depth: Count = 1\n"),
    ],
)
def test_what_changes_a_digest(package, name, old, new):
    """Red: a way to a definition that is not followed, or a part of it that is not counted."""
    before = package.digests(**DEEP)
    package.replace(name, old, new)
    after = package.digests(**DEEP)
    assert {module for module in before if before[module] != after.get(module)} >= {f"ncpipe.{name}"}


def test_each_choice_has_its_own_digests(package):
    before = package.digests(architecture="deep"), package.digests(architecture="wide")
    package.replace("deep", "width = 3", "width = 5")
    after = package.digests(architecture="deep"), package.digests(architecture="wide")
    assert (before[0] == after[0], before[1] == after[1]) == (False, True)


def test_a_name_that_is_nowhere_is_said(package):
    package.replace("trainer", "tools.step(", "tools.stop(")
    with pytest.raises(LookupError, match=r"ncpipe\.tools has no stop"):
        package.digests()


def test_what_is_handed_on_is_followed(package):
    before = package.digests()
    package.replace("tools", "SHARE = 0.5", "from ncpipe.constants import SHARE")
    package.write("constants", "SHARE = 0.5\n")
    moved = package.digests()
    assert set(moved) - set(before) == {"ncpipe.constants"}
    package.write("constants", "SHARE = 0.25\n")
    assert package.digests() != moved
    package.replace("trainer", "from ncpipe import tools", "from ncpipe import more as tools")
    package.write("more", "from ncpipe.tools import step\n")
    assert "ncpipe.more" not in package.digests()
    assert "ncpipe.tools" in package.digests()


def test_a_module_beside_params_yaml_is_followed(package, tmp_path, monkeypatch):
    """study.py, and from there the package. Red: another package's module to it, or one of the package's."""
    study = tmp_path / "beside" / "study.py"
    study.parent.mkdir()
    monkeypatch.chdir(study.parent)
    study.write_text("from ncpipe.tools import SHARE\n\ndef double(x):\n    return 2 * x * SHARE\n")
    before = code_digests([("study", ALL)], {})
    assert set(before) == {"study", "ncpipe.tools"}
    study.write_text("# A comment\n" + study.read_text())
    clear_code_digests()
    assert code_digests([("study", ALL)], {}) == before
    study.write_text(study.read_text().replace("2 *", "3 *"))
    clear_code_digests()
    assert code_digests([("study", ALL)], {}).keys() == before.keys()
    assert code_digests([("study", ALL)], {}) != before


# The stage


@pytest.fixture
def described(tmp_path, monkeypatch):
    """A project whose stage `code` has run, by a copy of the package."""
    shutil.copytree(REPOSITORY / "ncpipe", tmp_path / "ncpipe", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(code, "ROOT", tmp_path)
    monkeypatch.setattr("ncpipe.commands.code.ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    write_params([2], [0], one=experiment_tree())
    clear_code_digests()
    write_code()
    yield tmp_path
    clear_code_digests()


def test_code_that_is_edited_while_dvc_runs_is_refused(described, monkeypatch):
    """Of the stage that runs. Red: no look at what lies there; one at the text alone."""

    def edit(name, old, new):
        path = described / "ncpipe" / name
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1
        path.write_text(text.replace(old, new), encoding="utf-8")
        clear_code_digests()

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
    assert [refused(stage) for stage in ("plot", train, measure)] == [False, True, False]
    edit("figures/depth_sweep.py", "RUN_SIZE = 2.2", "RUN_SIZE = 2.3")
    assert [refused(stage) for stage in ("plot", measure, "code")] == [True, False, False]
    shutil.rmtree("data")
    assert not refused("plot")


SGD = {"name": "sgd", "learning_rate": 0.01, "momentum": 0.9}
OTHERS = {  # what trains other runs, by key
    "data.noise": [0.25],
    "data.seed": [1],
    "data.label_noise": [{"fraction": 0.5, "kind": "uniform", "seed": 0}],
    "model.architecture": ["L-RN2"],
    "model.norm": ["pre"],
    "model.width": [9],
    "loss": ["mse", {"name": "ce", "smoothing": 0.1}],
    "penalty.value": [0.0051, 0],
    "penalty.last_layer": [0.005],
    "penalty.biases": [True],
    "optimizer": [SGD],
    "optimizer.learning_rate": [0.011],
    "schedule.final": [1e-9],
    "schedule.after": [0.5],
    "epochs": [21],
    "batch_size": [4],
    "log_every": [4],
    "history": [{"metrics": ["cdnv"], "at": [1]}, {"metrics": ["cdnv"], "at": [0, 1]}],
}
SAME = {  # what trains the same
    "data.noise": ["5e-1", "0.50 # half"],
    "model.gain": ["1", "+1.0"],
    "optimizer.learning_rate": ["1e-2", "1.0E-02"],
    "penalty.biases": ["false"],
    "penalty.scope": ["matrices"],
    "schedule.after": ["0", "0.0"],
    "augmentation": ["null"],
    "history": ["null"],
}
FOR_ALL = {"compute.threads": [2], "compute.precision": ["float64"], "sweep.axis": ["penalty.value"]}
NEITHER = {"compute.device": ["auto"], "sweep.depths": [[2, 3]], "sweep.seeds": [[5]], "slopes.seed": [11]}


def test_what_params_yaml_says_of_runs_is_in_their_file(tmp_path, monkeypatch):
    """Of those alone that it is said of, and in one text for all ways of saying the same.

    Red: a key that trains other runs and is not in the file, which is all that DVC has; params.yaml's own
    text in it."""
    monkeypatch.chdir(tmp_path)
    files = {name: Path(f"data/code/experiments/{name}/train.txt") for name in ("edited", "other")}
    tree = {name: experiment_tree() for name in files}
    write_params([2], [0], **tree)
    write_code()

    def edited(dotted, value, where=("experiments", "edited")):
        """The experiments that would train other runs, after the key has another value."""
        write_params([2], [0], **tree)
        params = YAML(typ="safe").load(Path("params.yaml"))
        branch = params
        *parents, last = [*where, *dotted.split(".")]
        for key in parents:
            branch = branch[key]
        branch[last] = value
        if value == "L-RN2":
            branch["mlp_width"] = 5
        if dotted == "sweep.axis":
            branch["values"] = [0.005]
        with Path("params.yaml").open("w", encoding="utf-8") as file:
            YAML().dump(params, file)
        return changed()

    def changed():
        params, found = load_params(), []
        for name in files:
            try:
                check_params_unedited(params, [name])
            except InputError:
                found.append(name)
        return found

    for dotted, values in OTHERS.items():
        for value in values:
            assert edited(dotted, value) == ["edited"], dotted
    for dotted, texts in SAME.items():
        for text in texts:
            assert edited(dotted, YAML(typ="safe").load(text)) == [], dotted
    for dotted, values in FOR_ALL.items():
        assert [edited(dotted, value, ()) for value in values] == [[*files]], dotted
    for dotted, values in NEITHER.items():
        assert [edited(dotted, value, ()) for value in values] == [[]], dotted

    before = {name: file.read_bytes() for name, file in files.items()}
    backwards = {name: dict(reversed(each.items())) for name, each in reversed(tree.items())}
    write_params([2], [0], **backwards)
    Path("params.yaml").write_text("# a comment\n" + Path("params.yaml").read_text(encoding="utf-8"))
    write_code()
    assert {name: file.read_bytes() for name, file in files.items()} == before
    edited("epochs", 21)
    write_code()
    assert [name for name, file in files.items() if file.read_bytes() != before[name]] == ["edited"]
    assert changed() == []


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
        own = [
            dependency
            for dependency in entry["deps"]
            if (not dependency.startswith("data/") or "/code/" in dependency) and dependency != "claims.yaml"
        ]
        if stage == "code":
            assert own in (["ncpipe"], ["ncpipe", "study.py"])
        elif stage in {*SWEEP_STAGES, *papers.SWEEP_STAGES, FILL}:
            assert own == [f"data/code/sweep/{stage}.txt"]
        else:
            assert stage in {*EXPERIMENT_STAGES, *papers.EXPERIMENT_STAGES, "train"}
            assert own == [f"data/code/experiments/{item}/{stage}.txt"]
        words = [word for word in entry["cmd"].split()[1:] if word not in APPS]  # as in: ncpipe s24 series
        assert words[0].replace("-", "_") == stage


def test_stages_begin_where_the_program_does():
    """Red: digests of a function that the stage's command does not call."""
    files = [REPOSITORY / f"ncpipe/commands/{name}.py" for name in ("cli", "paper_commands")]
    body = [node for file in files for node in ast.parse(file.read_text(encoding="utf-8")).body]
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    tables = SWEEP_STAGES, EXPERIMENT_STAGES, papers.SWEEP_STAGES, papers.EXPERIMENT_STAGES
    for stage, (module, name) in itertools.chain.from_iterable(table.items() for table in tables):
        imports = [node for node in ast.walk(functions[stage]) if isinstance(node, ast.ImportFrom)]
        assert (module, name) in {(node.module, alias.name) for node in imports for alias in node.names}


def test_nothing_is_looked_up_behind_the_syntax_trees_back():
    """Red: a function of ours found by its name's text, or a way to import that a digest does not follow."""
    for path in sorted((REPOSITORY / "ncpipe").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        # runs the study's own file, whose tables are where digests begin too; finds the modules beside it
        runs = {"study.py": {"exec"}, "study_files.py": {"importlib"}}.get(path.name, set())
        # names for users alone: tests/test_imports.py holds that no module of the package has one from there
        if path == REPOSITORY / "ncpipe/__init__.py":
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
    for module, name in TABLES:
        assert module == STUDY or name in read_module(module).definitions
    for path in [REPOSITORY / "params.yaml", *REPOSITORY.glob("stages/*/params.yaml")]:
        if (path.parent / "study.py").is_file():  # its own entries stand in no table of the package
            continue
        for spec in load_params(path).experiments.values():
            choices = choices_of(spec)
            known = reached([*TRAINING, *EXPERIMENT_STAGES.values()], choices, MESSAGES)
            for (module, name), kinds in TABLES.items():
                if (module, name) not in known:  # sides of images, where there are none
                    continue
                [statement] = code._statements(module, name, code._choice(module, name, choices))
                value = statement.value
                picked = {choices[kind] for kind in kinds} - {"none"}
                assert len(value.keys if isinstance(value, ast.Dict) else value.elts) == len(picked), (
                    name,
                    picked,
                )


@pytest.mark.parametrize("initialisation", ["normal", "uniform", "construction"])
def test_a_start_counts_where_it_is_chosen(initialisation, tmp_path, monkeypatch):
    """Red: runs that start from random weights and train again after an edit of the constructions."""
    monkeypatch.chdir(tmp_path)
    write_params([2], [0], one=experiment_tree(model={"initialisation": initialisation}))
    choices = choices_of(load_params().experiments["one"])
    modules = {module for module, _ in reached(TRAINING, choices, (*MESSAGES, *PLUMBING))}
    assert ("ncpipe.theory.constructions.curves" in modules) == (initialisation == "construction")
    assert any(module.startswith("ncpipe.theory") for module in modules) == (initialisation == "construction")


def test_digests_know_every_function_that_runs(tmp_path, monkeypatch):
    """Red: a way from a stage to a function that the syntax trees' names do not show."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)  # slow, and none of ours
    short = {"epochs": 4, "log_every": 1}
    own_keys = {"initialisation": "uniform", "norm": "pre"}
    ways = {
        "a": experiment_tree(**short),
        "b": experiment_tree(model=own_keys, loss="mse", batch_size=5, **short),
        "c": experiment_tree(model={"architecture": "L-T12", "mlp_width": 5, "patch": 2}, **short),
    }
    write_params([2, 3], [0], **ways)
    running = {"grid": write_grid, "aggregate": aggregate, "plot": plot, "claims": claims, "report": report}
    own = {"fetch": lambda name: fetch(name, None), "extract": lambda name: extract_experiment(name, None)}
    own["measure"] = measure
    specs = load_params().experiments
    without = {stage: set(MESSAGES) for stage in (*own, *running)}
    without["train"] = {*MESSAGES, *PLUMBING}

    for module in ("theory_calls",):  # the bodies of its classes run when it is imported, not in a stage
        importlib.import_module(f"ncpipe.papers.{module}")

    def run(stage, choices, roots, function, *arguments):
        with Traced(roots if stage == "train" else ()) as traced:
            function(*arguments)
        hears_of_epochs = {
            ("ncpipe.runs.batches", "_train_some"),
            ("ncpipe.runs.heartbeat", "HeartbeatWriter"),
        }
        ran = traced.counted(without[stage]) - hears_of_epochs
        assert ran
        assert ran - set(reached(roots, choices, without[stage])) == set(), stage

    write_code()
    run("grid", {}, [SWEEP_STAGES["grid"]], write_grid)
    for name, tree in ways.items():
        write_params([2, 3], [0], **{name: tree})  # a params.yaml is checked whole, others' keys too
        choices = choices_of(specs[name])
        run("fetch", choices, [EXPERIMENT_STAGES["fetch"]], own["fetch"], name)
        for depth in (2, 3):
            run("train", choices, TRAINING, train, name, depth, 0, None, False, 1, 60.0)
        for stage in ("extract", "measure"):
            run(stage, choices, [EXPERIMENT_STAGES[stage]], own[stage], name)
    write_params([2, 3], [0], **ways)
    Path("claims.yaml").write_text(CLAIMS, encoding="utf-8")
    for stage in ("aggregate", "plot", "claims", "report"):
        run(stage, {}, [SWEEP_STAGES[stage]], running[stage])
