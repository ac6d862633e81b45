"""Digests of code: which edits of the package and of a study change the digests of which stages.

Digests are taken beside a package of a few lines, which has every room; studies are run beside the real one.
Each test's docstring ends with the fault that would turn it red.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import clear_code_digests
from test_imports import PACKAGE, local_imports, modules

from ncpipe.commands.code import write_code
from ncpipe.commands.new import render
from ncpipe.config.reading import Reading, at_start
from ncpipe.config.study import NO_STUDY, Study, load_study
from ncpipe.runs import code_digests
from ncpipe.runs.code_digests import EXPERIMENT_STAGES, ROOMS, SWEEP_STAGES
from ncpipe.runs.study_effect import study_effect
from ncpipe.system.errors import InputError

SWEEP = {"grid", "aggregate", "plot", "claims", "report"}
EXPERIMENT = {"fetch", "extract", "measure", "train"}
ABOVE: dict[str, set[str]] = {  # the stages that count a room
    **dict.fromkeys(("system", "config", "datasets"), SWEEP | EXPERIMENT),
    **{room: SWEEP | EXPERIMENT - {"fetch"} for room in ("models", "training", "runs/run_folder")},
    "metrics": SWEEP | {"extract", "measure"},
    **{room: SWEEP - {"grid"} | {"extract", "measure"} for room in ("theory", "features")},
    "tables": SWEEP - {"grid"},
    **{room: SWEEP - {"grid", "aggregate"} for room in ("claims", "figures")},
    **{room: {"report"} for room in ("report", "runs", "integrations", "papers", "commands")},
}


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with a module in each room, beside an empty folder of a study."""
    root, study = tmp_path / "root/ncpipe", tmp_path / "study"
    names = [room if "/" in room else f"{room}/module" for room in ROOMS]
    stages = [f"commands/{stage}" for stage in (*SWEEP, *EXPERIMENT)]
    text = dict.fromkeys((*names, *stages, "papers/paper_part"), "FACTOR = 2\n")
    text["papers/paper"] = "from ncpipe.papers.paper_part import X\n"
    write({f"{name}.py": content for name, content in text.items()}, root)
    write(
        {"report/templates/page.css": "a {}\n", "__init__.pyi": "from ncpipe.features.module import X\n"},
        root,
    )
    study.mkdir()
    monkeypatch.chdir(study)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(code_digests, "ROOT", tmp_path / "root")
    yield root
    clear_code_digests()
    load_study(tmp_path)
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def write(files: dict[str, str], folder: Path = Path()) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def experiment(start: str | None = None, **records: type) -> Any:
    """An experiment that picks records of study.py, by the part that names them."""
    parts = {part: object.__new__(record) for part, record in records.items()}
    return SimpleNamespace(**{"model": None, "start": start} | parts)


def digests(study: Study = NO_STUDY, **records: type) -> dict[str, dict[str, str]]:
    """Stage -> digests, of the sweep and of an experiment."""
    clear_code_digests()
    return code_digests.sweep_digests() | code_digests.experiment_digests(experiment(**records), study)


def own_and_built_in() -> dict[str, dict[str, str]]:
    """As `digests`, with `own` before the stages of an experiment of study.py's network."""
    study = load_study(Path())
    (record,) = (record for record in study.networks if record.__name__ == "SineModel")
    of_model = digests(study, model=record)
    return digests(study) | {f"own {stage}": of_model[stage] for stage in EXPERIMENT}


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


# The package


@pytest.mark.parametrize("room", ROOMS)
def test_a_changed_room_changes_the_stages_above_it_and_none_below(room: str, package: Path) -> None:
    """Red: a room that a stage needs and does not count, or the other way round; a new file left out."""
    before = digests()
    assert {*before} == SWEEP | EXPERIMENT
    assert all(line.split() == [line] for stage in before.values() for line in stage)  # as fast_path reads it
    file = package / (f"{room}.py" if "/" in room else f"{room}/module.py")
    file.write_text("# A comment.\nFACTOR = (\n    2\n)\n")
    assert digests() == before
    file.write_text('"""Words."""\nFACTOR = 2\n')
    assert digests() == before
    file.write_text("FACTOR = 3\n")
    assert changed(before, after := digests()) == ABOVE[room]
    if "/" not in room:
        (package / room / "new.py").write_text("MORE = 1\n")
        assert changed(after, digests()) == ABOVE[room]


def test_a_stages_own_module_counts_and_the_pages_templates(package: Path) -> None:
    """Red: a command that writes other tables; the report's style."""
    for edited, stages in {
        "commands/measure.py": {"measure", "report"},
        "commands/plot.py": {"plot", "report"},
        "commands/train.py": {"report"},  # it decides no number
        "report/templates/page.css": ABOVE["report"],
    }.items():
        before = digests()
        with (package / edited).open("a") as file:
            file.write("MORE = 1\n")
        assert changed(before, digests()) == stages, edited


def test_a_run_counts_what_its_start_needs(package: Path) -> None:
    """Red: an edited construction whose runs are kept; runs from random weights that train again."""
    start = "def built(run, data):\n    from ncpipe.theory.module import FACTOR\n\n    return {}\n"
    write({"starts.py": start, "study.py": "from starts import built\n\nSTARTS = {'built': built}\n"})
    study = load_study(Path())
    of = [experiment(start=start) for start in (None, "built")]
    before = [code_digests.training_digests(spec, study, Reading()) for spec in of]
    (package / "theory/module.py").write_text("FACTOR = 3\n")
    after = [code_digests.training_digests(spec, study, Reading()) for spec in of]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False]
    write({"starts.py": start + "MORE = 1\n"})
    edited = [code_digests.training_digests(spec, study, Reading()) for spec in of]
    assert [one == other for one, other in zip(after, edited, strict=True)] == [True, False]


def test_rooms_import_from_those_before_them() -> None:
    """But for what decides when and where runs train.

    Red: a room that a stage reaches and does not count."""
    last = {f"commands/{stage}": room for stage, room in (*SWEEP_STAGES.items(), *EXPERIMENT_STAGES.items())}
    for path in modules():
        name = path.relative_to(PACKAGE).with_suffix("").as_posix()
        room = name if name in ROOMS else name.partition("/")[0]
        free = {"runs", "commands"} if room in ("commands", "runs", "runs/run_folder") else set()
        if "/" in name and (room != "commands" or name in last):
            counted = {*ROOMS[: ROOMS.index(last.get(name, room)) + 1], "__init__", "study"}
            imported = {
                other.relative_to(PACKAGE).parts[0].removesuffix(".py") for other in local_imports(path)
            }
            assert imported - free <= counted, name


def test_a_reading_has_the_files_as_they_first_were(package: Path) -> None:
    """Also the list of them. Red: digests of two states of the package in one reading."""
    reading = Reading()
    before = code_digests.training_digests(experiment(), NO_STUDY, reading)
    (package / "models/module.py").write_text("FACTOR = 3\n")
    (package / "training/new.py").write_text("FACTOR = 3\n")
    assert code_digests.training_digests(experiment(), NO_STUDY, reading) == before
    assert changed(before, code_digests.training_digests(experiment(), NO_STUDY, Reading())) == {
        "ncpipe/models",
        "ncpipe/training",
    }


# A study


SPEC = '''
from dataclasses import dataclass
from typing import Literal

from ncpipe.config.specs import OwnModel


@dataclass(frozen=True)
class SineModel(OwnModel):
    """The keys below model."""

    architecture: Literal["sine"]
'''
BUILD = '''
def build(spec, shape, classes, depth):
    """Return the network."""
    return 2
'''
FAMILY = "from ncpipe.models.network import Family, Network\n"
TABLE = FAMILY + "NETWORKS = {SineModel: Family(len, build)}\n"
OTHER = (SPEC + BUILD).replace("Sine", "Other").replace("sine", "other").replace("build", "other_build")
HELPER = {"helper.py": SPEC + BUILD}
PARTS = {"helper.py": BUILD}
IMPORT = "from helper import SineModel, build\n"
# A study's files; the number 2 in one of them is edited. In each the network that is built is that number.
WAYS: dict[str, dict[str, str]] = {
    "in study.py": {"study.py": SPEC + BUILD + TABLE},
    "module of a module": {
        "study.py": "from first import SineModel, build\n" + TABLE,
        "first.py": "from helper import SineModel, build\n",
        **HELPER,
    },
    "constant of a module": {
        "study.py": SPEC + BUILD.replace("return 2", "return FACTOR") + "from helper import FACTOR\n" + TABLE,
        "helper.py": "FACTOR = 2\n",
    },
    "package beside": {
        "study.py": "from lib import SineModel, build\n" + TABLE,
        "lib/__init__.py": "from lib.spec import SineModel\nfrom .network import build\n",
        "lib/spec.py": SPEC,
        "lib/network.py": BUILD,
    },
    "folder on the path": {
        "study.py": f"import sys\nsys.path.insert(0, 'lib')\n{SPEC}from helper_in import build\n{TABLE}",
        "lib/helper_in.py": BUILD,
    },
    "imported when called": {
        "study.py": SPEC + "def build(*_):\n    from helper import build\n    return build(*_)\n" + TABLE,
        **PARTS,
    },
    "table of a module": {"study.py": "from helper import NETWORKS\n", "helper.py": SPEC + BUILD + TABLE},
    "patched from outside": {
        "study.py": f"{IMPORT}import patch\n{TABLE}",
        "helper.py": SPEC + "class Sine:\n    factor = 0\n\ndef build(*_):\n    return Sine.factor\n",
        "patch.py": "from helper import Sine\nSine.factor = 2\n",
    },
    "JSON constants": {
        "study.py": f"import json\nfrom pathlib import Path\n{SPEC}def build(*_):\n"
        f"    return json.loads(Path('c.json').read_text())\n{TABLE}",
        "c.json": "2",
        "dvc.yaml": "stages:\n  code:\n    cmd: ncpipe code\n    deps: [ncpipe, study.py, c.json]\n",
    },
    "inherited spec": {
        "study.py": "from helper import Base, build\nfrom dataclasses import dataclass\n\n"
        f"@dataclass(frozen=True)\nclass SineModel(Base):\n    width: int\n\n{TABLE}",
        "helper.py": SPEC.replace("SineModel", "Base") + BUILD,
    },
}  # fmt: skip

USED = {"own measure", "own extract", "own train"}  # what a network of the study concerns
EVERY = {f"own {stage}" for stage in EXPERIMENT} | SWEEP | EXPERIMENT


def network() -> object:
    """What the study's network is built as."""
    for cache in Path().rglob("__pycache__"):  # which tells an edit by its second and its length
        shutil.rmtree(cache)
    (family,) = load_study(Path()).networks.values()
    return family.build(None, None, 2, 2)


@pytest.mark.parametrize("way", WAYS)
def test_an_edit_of_a_network_counts_however_it_is_written(way: str) -> None:
    """And a file that DVC would not see is refused. Red: a way by which the old result is kept."""
    files = WAYS[way]
    write(files)
    edited = next(name for name, text in reversed(files.items()) if "2" in text and name != "dvc.yaml")
    assert network() == 2
    before = own_and_built_in()
    write({edited: files[edited].replace("2", "3")})
    assert network() == 3
    assert changed(before, own_and_built_in()) >= USED | SWEEP
    if "dvc.yaml" not in files and edited != "study.py":
        others = ", ".join(["ncpipe", *({*files} - {edited})])
        write({"dvc.yaml": f"stages:\n  code:\n    cmd: ncpipe code\n    deps: [{others}]\n"})
        with pytest.raises(InputError, match=rf"^dvc\.yaml: .* add the line `- {edited}` to the deps of"):
            write_code()


SINE = {"sine.py": SPEC + BUILD, "study.py": "from sine import SineModel, build\n" + TABLE}
ENTRY = {
    "other.py": OTHER,
    "study.py": "from sine import SineModel, build\nfrom other import OtherModel, other_build\n"
    + TABLE.replace("{", "{OtherModel: Family(len, other_build), "),
}
METRIC = {
    "spread.py": "from ncpipe.metrics.catalogue import Metric\n\n\ndef spread(classes):\n    return 5\n\n\n"
    'SPREAD = Metric("spread", "NC1", "0", "spread", "", "", "", "every, both")\n',
    "study.py": "from spread import SPREAD, spread\n" + SINE["study.py"] + "METRICS = {SPREAD: spread}\n",
}
EDITS = {  # of a study whose network has a file of its own: what is written, and the stages that it concerns
    "comment": ({"sine.py": "# A comment.\n" + SPEC + BUILD}, set()),
    "docstrings": ({"sine.py": SPEC.replace("keys below", "keys") + BUILD.replace("Return the", "A")}, set()),
    "layout": ({"sine.py": SPEC + BUILD.replace("return 2", "return (\n        2\n    )")}, set()),
    "comment in study.py": ({"study.py": SINE["study.py"] + "# A comment.\n"}, set()),
    "network": ({"sine.py": SPEC + BUILD.replace("2", "3")}, USED | SWEEP),
    "spec": ({"sine.py": SPEC + "    width: int = 3\n" + BUILD}, USED | SWEEP),
    "a network more": (ENTRY, SWEEP),
    "a metric more": (METRIC, {"own measure", "measure", *SWEEP}),
    "eval of a network": ({"study.py": SINE["study.py"] + "\n\ndef unused(net):\n    net.eval()\n"}, SWEEP),
    "unused function": ({"study.py": SINE["study.py"] + "\n\ndef unused():\n    return 1\n"}, SWEEP),
    "effect in study.py": ({"study.py": SINE["study.py"] + "print(1)\n"}, EVERY),
    "effect in a module": (ENTRY | {"other.py": OTHER + "other_build.x = 1\n"}, EVERY),
}


def list_modules() -> None:
    """Write a dvc.yaml that lists study.py and its modules for the stage `code`, as in a checkout."""
    names = ["ncpipe", *sorted(path.name for path in Path().glob("*.py"))]
    write({"dvc.yaml": f"stages:\n  code:\n    cmd: ncpipe code\n    deps: [{', '.join(names)}]\n"})


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_counts_where_it_is_used(edit: str, listed: bool) -> None:
    """If a study does no more than define. Red: a digest of all of the study; an entry that others count; a
    module that counts for all, because dvc.yaml lists it."""
    files, stages = EDITS[edit]
    write(SINE)
    if listed:
        list_modules()
    before = own_and_built_in()
    assert study_effect(at_start()) is None
    write(files)
    if listed:
        list_modules()
    after = own_and_built_in()
    assert changed(before, after) == stages
    if "other.py" in files:
        write({"other.py": files["other.py"].replace("2", "3")})
        assert changed(after, own_and_built_in()) == (EVERY if "effect" in edit else SWEEP)


@pytest.mark.parametrize("part", ["model", "data", "loss", "optimizer"])
def test_the_function_of_an_entry_counts_beside_its_record(part: str) -> None:
    """And the constants that it holds. Red: a table that a stage reads and its digest does not."""
    write(
        {
            "records.py": "class Mine: ...\n",
            "functions.py": "def function():\n    return 2\n",
        }
    )
    write({"study.py": "import records\nimport functions\n\nNAMES = ('a',)\n"})
    load_study(Path())
    record, function = sys.modules["records"].Mine, sys.modules["functions"].function
    record.study_entry = (function, ("a", 1.5))
    before = digests(**{part: record})
    assert {*before["train"]} & {"study.py", "functions.py", "records.py"} == {"functions.py", "records.py"}
    write({"functions.py": "def function():\n    return 3\n"})
    after = digests(**{part: record})
    assert changed(before, after) - SWEEP == EXPERIMENT - ({"fetch"} if part != "data" else set())
    record.study_entry = (function, ("a", 2.5))
    assert changed(after, digests(**{part: record})) == changed(before, after) - SWEEP
    record.study_entry = (function, iter("a"))  # what no file is known to define
    assert "study.py" in digests(**{part: record})["train"]


EFFECTS = {  # of importing a module, or of its functions later; the line is the last one
    "statement": "random.seed(2)\n",
    "attribute": "random.my_own = 2\n",
    "item": "os.environ['NCPIPE_TEST'] = '2'\n",
    "shared dict": "CACHE = {}\n",
    "condition": "_ = 1 if random.seed(2) else 0\n",
    "if": "if random:\n    pass\n",
    "class body": "class A:\n    random.seed(2)\n",
    "base": "class A(random.seed(2) or object):\n    pass\n",
    "default": "def f(x=random.seed(2)):\n    pass\n",
    "annotation as a text": "class A:\n    x: 'random.seed(2)'\n",
    "decorator": "@(random.seed(2) or staticmethod)\ndef f():\n    pass\n",
    "own decorator": "def g(f):\n    pass\n\n\n@g\ndef f():\n    pass\n",
    "argument of a decorator": "@dataclass(eq=bool(random.seed(2)))\nclass A:\n    pass\n",
    "own Family": "def Family(f):\n    pass\n\n\n_ = Family(1)\n",
    "class keyword": "class A:\n    pass\n\n\nclass B(A, x=2):\n    pass\n",
    "__set_name__": "class A:\n    def __set_name__(self, *_):\n        random.seed(2)\n",
    "__class_getitem__": "class A:\n    def __class_getitem__(cls, _):\n        random.seed(2)\n",
    "member of an Enum": "from enum import Enum\n\n\nclass A(Enum):\n    X = 1\n",
    "patch when called": "def f(self):\n    random.my_own = 2\n",
    "global when called": "COUNT = 1\n\n\ndef f(self):\n    global COUNT\n    COUNT = 2\n",
    "star": "from math import *\n",
    "eval": "def f(self):\n    eval('random.seed(2)')\n",
    "eval of builtins": "import builtins\n\n\ndef f(self):\n    builtins.eval('random.seed(2)')\n",
}


@pytest.mark.parametrize("effect", EFFECTS)
def test_what_may_change_other_code_is_an_effect(effect: str) -> None:
    """Red: a module that does more than define and whose edit some experiments do not count."""
    head = "import os, random\nfrom dataclasses import dataclass\n"
    write(SINE | {"sine.py": head + SINE["sine.py"]})
    assert study_effect(at_start()) is None
    clear_code_digests()
    write({"sine.py": head + SINE["sine.py"] + EFFECTS[effect]})
    assert (study_effect(at_start()) or "").startswith("sine.py: line ")


STUDIES = (
    "beyond_simplex",
    "field",
    "low_rank",
    "ood_layers",
    "tokens",
    "warm_start",
    "own",
    "loop",
)


@pytest.mark.parametrize("study", STUDIES)
def test_what_is_no_effect(study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a check that takes what a study is usually made of for more than definitions."""
    if (folder := PACKAGE.parent / "stages" / study).is_dir():
        monkeypatch.chdir(folder)
    else:
        write({"study.py": render(f"{study}_study.py", {})})
    assert study_effect(Reading()) is None


@pytest.mark.parametrize(
    "way",
    [
        "from ncpipe.features.module import FACTOR\n",
        "import ncpipe.features.module as features\n",
        "from ncpipe.features import module\n",
        "from ncpipe import X\n",  # which it offers from the features
        "from ncpipe import FACTOR\n",  # which it does not offer
        "from ncpipe.papers.paper import X\n",
        "def f():\n    from ncpipe.features.module import FACTOR\n\n    return FACTOR\n",
        "def f():\n    import importlib\n\n    return importlib.import_module('ncpipe.features.module')\n",
        "def f():\n    import sys\n\n    return sys.modules['nc' + 'pipe.features.module']\n",
    ],
)
def test_what_a_study_uses_of_the_package_counts(way: str, package: Path) -> None:
    """A room that training does not count, or a paper. Red: a study whose runs are kept after its edit."""
    write(
        {"papers/paper.py": "from ncpipe.papers.paper_part import X\nfrom ncpipe.features.module import Y\n"},
        package,
    )
    write(SINE | {"study.py": "from sine import SineModel, build\n" + TABLE})
    record = next(iter(load_study(Path()).networks))
    alone = digests(model=record)
    write({"sine.py": way + SINE["sine.py"]})
    before = digests(model=record)
    write({"features/module.py": "FACTOR = 3\n", "papers/paper_part.py": "FACTOR = 3\n"}, package)
    after = digests(model=record)
    assert alone["train"].keys() - {"constants"} < before["train"].keys()
    assert changed(before, after) >= {"train", "measure"}
    assert ("ncpipe/papers/paper_part.py" in after["train"]) == ("paper" in way)


PATCHES = {
    "item": "from ncpipe.models.build import FAMILIES\nFAMILIES[int] = 3\n",
    "update": "from ncpipe.metrics.catalogue import CATALOGUE\nCATALOGUE.update({'a': 1})\n",
    "setdefault": "from ncpipe.datasets.prepare import SOURCES\nSOURCES.setdefault('a', len)\n",
    "del": "from ncpipe.training.session import METHODS\ndel METHODS['sgd']\n",
    "pop": "from ncpipe.config.sources.images import SIDES\nSIDES.pop('digits')\n",
}


@pytest.mark.parametrize("patch", PATCHES)
def test_a_patch_of_a_table_of_the_package_is_refused(patch: str) -> None:
    """Red: a table of the package that a study can change."""
    write({"study.py": PATCHES[patch]})
    with pytest.raises(InputError, match=r"^study\.py: line 2: [^\n]*; put your entries into NETWORKS"):
        load_study(Path())
