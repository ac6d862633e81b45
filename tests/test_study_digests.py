"""An edit of study.py changes the digests of what it may concern, in whatever way the file is written.

Digests are taken beside a package of a few lines, so that none takes longer than to read a study.py; the same
files are run beside the real one. Each test's docstring ends with the fault that would turn it red.
"""

import importlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import clear_code_digests

from ncpipe.commands.code import write_code
from ncpipe.config.study import load_study
from ncpipe.config.study_files import study_modules
from ncpipe.runs import code_digests as code
from ncpipe.system.errors import InputError

HEAD = '''
"""Networks and data of a study."""
import os, random
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import nn

from ncpipe.metrics.catalogue import Metric
from ncpipe.models.build import Family
from ncpipe.models.network import Network
from ncpipe.config.specs import Count, OwnData, OwnModel
'''
SPEC = '''
@dataclass(frozen=True)
class SineModel(OwnModel):
    """The keys below model."""

    architecture: Literal["sine"]
    width: Count
'''
BUILD = '''
class Sine(Network):
    def forward(self, x):
        return x.sin() * 2


def reshape_inputs(inputs, spec):
    return inputs.flatten(1)


def build(spec, shape, classes, depth):
    """Return the network."""
    return Sine()
'''
NETWORK = SPEC + BUILD
DATA = """
@dataclass(frozen=True)
class RingsData(OwnData):
    kind = "vector"
    source: Literal["rings"]


def rings(spec):
    return {"inputs": torch.ones(4, 2) / 7, "labels": torch.arange(4) % 2}
"""
METRIC = """
def spread(classes):
    return classes.squares.sum() / 5


SPREAD = Metric("spread", "NC1", "0", "spread", "", "", "", "every, both")
"""
TABLES = """
NETWORKS = {SineModel: Family(reshape_inputs, build)}
DATA = {RingsData: rings}
METRICS = {SPREAD: spread}
"""
PLAIN = HEAD + NETWORK + DATA + METRIC + TABLES

OWN = {"architecture": "sine", "source": "rings", "loss": "ce", "target": "none"}
BUILT_IN = {"architecture": "mlp", "source": "digits", "loss": "ce", "target": "none"}
PACKAGE = {
    "stages": "def stage():\n    pass\n",
    "metrics/catalogue": "class Metric:\n    pass\n",
    "models/build": "FACTOR = 2\n\nclass Family:\n    factor = FACTOR\n",
    "models/network": "from ncpipe.models.layers import TABLE\n\nclass Network:\n    pass\n",
    "models/layers": "FACTOR = 2\nTABLE = {}\n",
    "config/specs": "class Count:\n    pass\n\nclass OwnData:\n    pass\n\nclass OwnModel:\n    pass\n",
}


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of the names that studies import, beside an empty folder of a study."""
    root, study = tmp_path / "root", tmp_path / "study"
    for name, text in PACKAGE.items():
        path = root / f"ncpipe/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "__init__.py").touch()
    study.mkdir()
    monkeypatch.chdir(study)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(code, "ROOT", root)
    monkeypatch.setattr(code, "TRAINING", (stage := ("ncpipe.stages", "stage"),))
    monkeypatch.setattr(code, "EXPERIMENT_STAGES", {"fetch": stage, "measure": stage})
    monkeypatch.setattr(code, "SWEEP_STAGES", {"plot": stage})
    imported, state = set(sys.modules), random.getstate()
    yield root / "ncpipe"
    for name in set(sys.modules) - imported:
        if name.startswith("helper"):
            del sys.modules[name]
    random.setstate(state)
    clear_code_digests()
    load_study(tmp_path)


def digests(text: str, runs: bool = True) -> dict[str, dict[str, str]]:
    """Stage -> digests, of an experiment of study.py's network and data, and of one of the package's."""
    Path("study.py").write_text(text)
    if runs:
        study = load_study(Path())
        assert study.networks or study.data or study.metrics
    clear_code_digests()
    own, built_in = (code.experiment_digests(choices) for choices in (OWN, BUILT_IN))
    return (
        {f"own {stage}": lines for stage, lines in own.items()}
        | {f"built-in {stage}": lines for stage, lines in built_in.items()}
        | code.sweep_digests()
    )


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


USED = {"own measure", "own train", "plot"}  # stages that a network of study.py concerns
EVERY = {f"{of} {stage}" for of in ("own", "built-in") for stage in ("fetch", "measure", "train")} | {"plot"}


# --- not in plain form: an edit changes the digests of every experiment -------------------------------

FAMILY = "Family(reshape_inputs, build)"
NETWORK_IN_TABLES = {  # edits of the network, by how the table is made
    "item": f"NETWORKS = {{}}\nNETWORKS[SineModel] = {FAMILY}\n",
    "update": f"NETWORKS = {{}}\nNETWORKS.update({{SineModel: {FAMILY}}})\n",
    "setdefault": f"NETWORKS = {{}}\nNETWORKS.setdefault(SineModel, {FAMILY})\n",
    "assigned setdefault": f"NETWORKS = {{}}\n_ = NETWORKS.setdefault(SineModel, {FAMILY})\n",
    "unpacked": f"COMMON = {{SineModel: {FAMILY}}}\nNETWORKS = {{**COMMON}}\n",
    "comprehension": f"NETWORKS = {{spec: {FAMILY} for spec in [SineModel]}}\n",
    "dict of pairs": f"NETWORKS = dict([(SineModel, {FAMILY})])\n",
    "dict of dict": f"NETWORKS = dict({{SineModel: {FAMILY}}})\n",
    "union": f"NETWORKS = {{}} | {{SineModel: {FAMILY}}}\n",
    "union in place": f"NETWORKS = {{}}\nNETWORKS |= {{SineModel: {FAMILY}}}\n",
    "alias": f"TABLE = {{SineModel: {FAMILY}}}\nNETWORKS = TABLE\n",
    "alias of the entry": f"FAMILY = {FAMILY}\nMAKE = build\nNETWORKS = {{}}\nNETWORKS[SineModel] = FAMILY\n",
    "two targets": f"NETWORKS = MODELS = {{SineModel: {FAMILY}}}\n",
    "tuple target": f"NETWORKS, WIDTH = {{SineModel: {FAMILY}}}, 3\n",
    "starred target": f"NETWORKS, *REST = [{{SineModel: {FAMILY}}}, 3]\n",
    "walrus": f"assert (NETWORKS := {{SineModel: {FAMILY}}})\n",
    "twice": f"NETWORKS = {{}}\nNETWORKS = {{SineModel: {FAMILY}}}\n",
    "replaced entry": f"NETWORKS = {{SineModel: Family(len, len)}}\nNETWORKS[SineModel] = {FAMILY}\n",
    "function": f"def tables():\n    return {{SineModel: {FAMILY}}}\n\nNETWORKS = tables()\n",
    "called lambda": f"NETWORKS = (lambda: {{SineModel: {FAMILY}}})()\n",
    "global": f"def fill():\n    global NETWORKS\n    NETWORKS = {{SineModel: {FAMILY}}}\n\nfill()\n",
    "if": f"if torch:\n    NETWORKS = {{SineModel: {FAMILY}}}\n",
    "try": f"try:\n    NETWORKS = {{SineModel: {FAMILY}}}\nfinally:\n    pass\n",
    "for": f"NETWORKS = {{}}\nfor spec in [SineModel]:\n    NETWORKS[spec] = {FAMILY}\n",
    "for target": f"for NETWORKS in [{{SineModel: {FAMILY}}}]:\n    pass\n",
    "with": f"with torch.no_grad():\n    NETWORKS = {{SineModel: {FAMILY}}}\n",
    "globals": f"globals()['NETWORKS'] = {{SineModel: {FAMILY}}}\n",
    "vars": f"vars()['NETWORKS'] = {{SineModel: {FAMILY}}}\n",
    "setattr": f"import sys\nsetattr(sys.modules[__name__], 'NETWORKS', {{SineModel: {FAMILY}}})\n",
    "exec": f"exec('NETWORKS = {{SineModel: {FAMILY}}}')\n",
    "eval": f"NETWORKS = {{SineModel: eval('{FAMILY}')}}\n",
    "eval when called": "NETWORKS = {SineModel: Family(reshape_inputs, lambda *_: eval('build')(*_))}\n",
    "globals when called": (
        "NETWORKS = {SineModel: Family(reshape_inputs, lambda *_: globals()['build'](*_))}\n"
    ),
    "getattr when called": (
        "def late(*_):\n    import sys\n    return getattr(sys.modules[__name__], 'build')(*_)\n\n"
        "NETWORKS = {SineModel: Family(reshape_inputs, late)}\n"
    ),
    "module __getattr__": (
        "def __getattr__(name):\n    if name == 'NETWORKS':\n"
        f"        return {{SineModel: {FAMILY}}}\n    raise AttributeError(name)\n"
    ),
    "decorator": (
        "NETWORKS = {}\n\ndef registered(make):\n    NETWORKS[SineModel] = Family(reshape_inputs, make)\n"
        "    return make\n\n@registered\ndef other(*_):\n    return build(*_)\n"
    ),
    "class decorator": (
        "NETWORKS = {}\n\ndef registered(cls):\n    NETWORKS[SineModel] = Family(reshape_inputs, build)\n"
        "    return cls\n\n@registered\nclass Other:\n    pass\n"
    ),
    "__init_subclass__": (
        "NETWORKS = {}\n\nclass Base:\n    def __init_subclass__(cls):\n"
        f"        NETWORKS[SineModel] = {FAMILY}\n\nclass Other(Base):\n    pass\n"
    ),
    "metaclass": (
        "NETWORKS = {}\n\nclass Meta(type):\n    def __init__(cls, *_):\n"
        f"        NETWORKS[SineModel] = {FAMILY}\n\nclass Other(metaclass=Meta):\n    pass\n"
    ),
    "class body": f"NETWORKS = {{}}\n\nclass Fill:\n    NETWORKS[SineModel] = {FAMILY}\n",
    "default": (
        f"NETWORKS = {{}}\n\ndef fill(done=NETWORKS.update({{SineModel: {FAMILY}}})):\n    pass\n"
    ),
    "annotated": f"NETWORKS: dict = {{spec: {FAMILY} for spec in (SineModel,)}}\n",
    "annotated by a call": f"NETWORKS: bool(random.seed()) = {{SineModel: {FAMILY}}}\n",
    "annotation": (
        f"NETWORKS = {{}}\n\ndef fill(x: NETWORKS.update({{SineModel: {FAMILY}}})):\n    pass\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("tables", NETWORK_IN_TABLES.values(), ids=NETWORK_IN_TABLES)
def test_an_edit_of_a_network_counts_however_the_table_is_made(tables: str) -> None:
    """Red: a way to make a table that passes for one written out."""
    text = HEAD + NETWORK + tables
    assert changed(digests(text), digests(text.replace("* 2", "* 3"))) == EVERY


SPECS = {  # by which an entry is selected
    "inherited": '@dataclass(frozen=True)\nclass Base(OwnModel):\n    architecture: Literal["sine"]\n\n'
    "@dataclass(frozen=True)\nclass SineModel(Base):\n    width: Count\n",
    "named literal": SPEC.replace("@dataclass", 'NAME = "sine"\n\n@dataclass').replace('["sine"]', "[NAME]"),
    "text": SPEC.replace('Literal["sine"]', "\"Literal['sine']\""),
    "alias": '\nNamed = Literal["sine"]\n' + SPEC.replace('Literal["sine"]', "Named"),
    "made": "from dataclasses import make_dataclass\n"
    "SineModel = make_dataclass('SineModel', [('architecture', Literal['sine'])], bases=(OwnModel,), "
    "frozen=True)\n",
    "in a function": "def make():"
    + SPEC.replace("\n", "\n    ")
    + "\n    return SineModel\n\nSineModel = make()\n",
    "called decorator": SPEC.replace("@dataclass(frozen=True)", "@(lambda cls: dataclass(frozen=True)(cls))"),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_an_edit_of_a_network_counts_however_its_spec_is_named(spec: str) -> None:
    """Red: a name that is taken for another experiment's."""
    text = HEAD + spec + BUILD + f"\nNETWORKS = {{SineModel: {FAMILY}}}\n"
    assert changed(digests(text), digests(text.replace("* 2", "* 3"))) == EVERY


DATA_TABLES = {
    "item": "DATA = {}\nDATA[RingsData] = rings\n",
    "unpacked": "COMMON = {RingsData: rings}\nDATA = {**COMMON}\n",
    "update": "DATA = {}\nDATA.update({RingsData: rings})\n",
    "decorated": "def twice(f):\n    return lambda spec: f(spec)\n\nDATA = {RingsData: twice(rings)}\n",
}


@pytest.mark.parametrize("table", DATA_TABLES.values(), ids=DATA_TABLES)
def test_an_edit_of_the_data_counts_however_the_table_is_made(table: str) -> None:
    """Red: the same of NETWORKS alone."""
    text = HEAD + DATA + table
    assert changed(digests(text), digests(text.replace("/ 7", "/ 8"))) == EVERY


@pytest.mark.parametrize("table", ["{}\nMETRICS[SPREAD] = spread\n", "{(0, SPREAD)[1]: spread}\n"])
def test_an_edit_of_a_metric_counts_however_the_table_is_made(table: str) -> None:
    """Red: the same of tables alone that params.yaml selects from."""
    text = HEAD + METRIC + "METRICS = " + table
    assert changed(digests(text), digests(text.replace("/ 5", "/ 6"))) == EVERY


EFFECTS = {  # of importing the file; each draws another number after the edit
    "statement": "random.seed(2)\n",
    "assignment": "_ = random.seed(2)\n",
    "annotated assignment": "_: object = random.seed(2)\n",
    "tuple target": "a, b = 1, random.seed(2)\n",
    "attribute target": "random.my_own = 2\n",
    "item target": "os.environ['NCPIPE_TEST'] = '2'\n",
    "list": "_ = [random.seed(2)]\n",
    "condition": "_ = 1 if random.seed(2) else 0\n",
    "f-string": "_ = f'{random.seed(2)}'\n",
    "operator": "_ = 2 * random.seed(2)\n".replace("2 * ", "not "),
    "class body": "class A:\n    random.seed(2)\n",
    "class variable": "class A:\n    x = random.seed(2)\n",
    "class field": "class A:\n    x: int = random.seed(2)\n",
    "base": "class A(random.seed(2) or object):\n    pass\n",
    "default": "def f(x=random.seed(2)):\n    pass\n",
    "keyword default": "def f(*, x=random.seed(2)):\n    pass\n",
    "default of a method": "class A:\n    def f(self, x=random.seed(2)):\n        pass\n",
    "default of a lambda": "f = lambda x=random.seed(2): x\n",
    "annotation": "def f(x: random.seed(2)):\n    pass\n",
    "annotation of a constant": "x: random.seed(2) = 1\n",
    "annotation as a text": "class A:\n    x: 'random.seed(2)'\n",
    "annotation of a result": "def f() -> random.seed(2):\n    pass\n",
    "annotation of a field": "class A:\n    x: Annotated[int, random.seed(2)]\n",
    "decorator": "@(random.seed(2) or staticmethod)\ndef f():\n    pass\n",
    "argument of a decorator": "@dataclass(eq=bool(random.seed(2)))\nclass A:\n    pass\n",
    "property": "class A:\n    x = property(random.seed(2))\n",
    "metaclass": "class A(metaclass=(random.seed(2), type)[1]):\n    pass\n",
    "class keyword": "class A:\n    def __init_subclass__(cls, x):\n        pass\n\n"
    "class B(A, x=random.seed(2)):\n    pass\n",
    "__init_subclass__": "class A:\n    def __init_subclass__(cls):\n        random.seed(2)\n\n"
    "class B(A):\n    pass\n",
    "__set_name__": "class A:\n    def __set_name__(self, *_):\n        random.seed(2)\n\n"
    "class B:\n    x = A()\n",
    "__class_getitem__": "class A:\n    def __class_getitem__(cls, _):\n        random.seed(2)\n\n"
    "def f(x: A[1]):\n    pass\n",
    "member of an Enum": "from enum import Enum\n\nclass A(Enum):\n    X = 1\n\n"
    "    def __init__(self, _):\n        random.seed(2)\n",
    "own property": "class A:\n    def property(f):\n        return random.seed(2)\n\n"
    "    @property\n    def x(self):\n        pass\n",
    "condition at the top": "if random:\n    random.seed(2)\n",
    "argument of Family": "_ = Family(random.seed(2), len)\n",
    "argument of Metric": "OTHER = Metric(*['a', random.seed(2), '', '', '', '', '', ''])\n",
    "deleted": "x = [2]\ndel x[random.seed(2) or 0]\n",
    "patch": "nn.Module.my_own = 2\n",
    "patch when called": "def f(self):\n    nn.Module.my_own = 2\n",
    "patch by setattr when called": "def f(self):\n    setattr(nn.Module, 'my_own', 2)\n",
    "item of another when called": "def f(self):\n    os.environ['my_own'] = '2'\n",
    "global when called": "COUNT = 1\n\ndef f(self):\n    global COUNT\n    COUNT = 2\n",
    "tested assignment": "old = torch.set_flush_denormal(False) or random.seed(2)\n",
}


@pytest.mark.parametrize("effect", EFFECTS.values(), ids=EFFECTS)
def test_an_effect_of_importing_counts_for_every_experiment(effect: str) -> None:
    """Red: a statement that does more than define and passes for one that does not."""
    old, new = ("2)", "3)") if "2)" in effect else ("= 2", "= 3") if "= 2" in effect else ("'2'", "'3'")
    text, after = PLAIN + effect, PLAIN + effect.replace(old, new)
    assert changed(digests(text), digests(after)) == EVERY


ORDER = {  # two statements that mean something else the other way round
    "default": ("SCALE = 2\n", "def scaled(x, by=SCALE):\n    return x * by\n", "SCALE = 3\n"),
    "default that is a builtin": ("", "def f(x, by=abs):\n    return by(x)\n", "def abs(x):\n    return x\n"),
    "imports": ("", "from math import sin as f\n", "from math import cos as f\n"),
    "base": ("class A:\n    pass\n", "class B(A):\n    pass\n", "class A:\n    x = 1\n"),
    "decorator": ("", "class C:\n    @property\n    def x(self): ...\n", "property = staticmethod\n"),
}  # fmt: skip


@pytest.mark.parametrize(("first", "one", "other"), ORDER.values(), ids=ORDER)
def test_the_order_of_definitions_counts(first: str, one: str, other: str) -> None:
    """Red: definitions that are compared one by one, though one sees only what stands before it."""
    assert changed(digests(PLAIN + first + one + other), digests(PLAIN + first + other + one)) == EVERY


# --- other files --------------------------------------------------------------------------------------

HELPERS = {
    "sys.path": "sys.path.insert(0, os.getcwd())\nfrom helper import build\n",
    "in a folder": "sys.path.insert(0, 'lib')\nfrom helper import build\n",
    "importlib": "sys.path.insert(0, os.getcwd())\nbuild = importlib.import_module('helper').build\n",
    "__import__": "sys.path.insert(0, os.getcwd())\nbuild = __import__('helper').build\n",
    "runpy": "build = runpy.run_path('helper.py')['build']\n",
    "exec": "from pathlib import Path\nexec(Path('helper.py').read_text())\n",
    "when called": "def build(*_):\n    from helper import build\n    return build(*_)\n",
    "importlib when called": "def build(*_):\n    return importlib.import_module('helper').build(*_)\n",
    "by another": "sys.path.insert(0, os.getcwd())\nfrom helper_of import build\n",
}


@pytest.mark.parametrize("imports", HELPERS.values(), ids=HELPERS)
def test_an_edit_of_a_module_beside_study_py_counts(imports: str) -> None:
    """And one that DVC would not see is refused. Red: a module that is neither."""
    folder = Path("lib" if "'lib'" in imports else "")
    folder.mkdir(exist_ok=True)
    helper, other = folder / "helper.py", Path("helper_of.py")
    helper.write_text("def build(*_):\n    return 2\n")
    other.write_text("from helper import build\n")
    Path("unrelated.py").write_text("raise AssertionError\n")
    Path(".venv/lib").mkdir(parents=True)
    Path(".venv/lib/helper.py").touch()
    importlib.invalidate_caches()
    text = HEAD + "import importlib, runpy, sys\n" + SPEC + imports
    Path("study.py").write_text(text + "\nNETWORKS = {SineModel: Family(len, build)}\n")
    load_study(Path())
    needed = {helper, other} if "helper_of" in imports else {helper}
    assert set(study_modules()) == needed

    entry = "stages:\n  code:\n    cmd: ncpipe code\n    deps: [ncpipe, study.py{}]\n"
    Path("dvc.yaml").write_text(entry.format(""))
    with pytest.raises(InputError, match=r"^dvc\.yaml: .* add the line `- (lib/)?helper\.py` to the deps of"):
        write_code()
    Path("dvc.yaml").write_text(entry.format("".join(f", {path}" for path in sorted(needed))))
    text = Path("study.py").read_text()
    before = digests(text, runs=False)
    helper.write_text("def build(*_):\n    return 3\n")
    assert changed(before, digests(text, runs=False)) == EVERY


def test_a_listed_file_counts() -> None:
    """In plain form too; of a folder all. Red: Python's files alone; a state that leaves them out."""
    Path("dvc.yaml").write_text(
        "stages:\n  code:\n    cmd: ncpipe code\n    deps: [ncpipe, ./study.py, widths.json, more]\n"
    )
    Path("more").mkdir()
    for path in ("widths.json", "more/depths.json"):
        Path(path).write_text("[2]")
    before = digests(PLAIN)
    for path in ("widths.json", "more/depths.json"):
        Path(path).write_text("[3]")
        assert changed(before, digests(PLAIN)) == EVERY
        Path(path).write_text("[2]")
    assert digests(PLAIN) == before
    bytes_before = code.files_digest()
    Path("widths.json").write_text("[3]")
    with code.read_anew():
        assert code.files_digest() != bytes_before
    Path("widths.json").unlink()
    with pytest.raises(InputError, match=r"^dvc\.yaml: widths\.json, a dependency of the stage code, is no"):
        digests(PLAIN)


# --- the package --------------------------------------------------------------------------------------

WAYS_IN = {  # to a constant in ncpipe.models.layers
    "import as": "import ncpipe as n\n",
    "import of a module": "import ncpipe.models.layers\n",
    "import of a module as": "import ncpipe.models.layers as layers\n",
    "from the package": "from ncpipe import models\n",
    "module by name": "from ncpipe.models import layers\n",
    "star": "from ncpipe.models.layers import *\n",
    "relative": "from .models import layers\n",
    "table": "from ncpipe.models.layers import TABLE\n",
    "handed on": "from ncpipe.models.network import TABLE\n",
    "importlib": "import importlib\n\ndef f():\n    return importlib.import_module('ncpipe.models.layers')\n",
    "importlib's function": "from importlib import import_module\n",
    "__import__": "def f():\n    return __import__('ncpipe.models').models.layers\n",
    "sys.modules": "def f():\n    import sys\n    return sys.modules['nc' + 'pipe.models.layers']\n",
    "eval": "def f():\n    return eval('n' + 'cpipe.models.layers.FACTOR')\n",
    "globals of a function": "def f():\n    return Family.__init__.__globals__\n",
    "subclasses": "def f():\n    return Network.__subclasses__()\n",
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS_IN.values(), ids=WAYS_IN)
def test_an_edit_of_the_package_counts_however_it_is_reached(way: str, package: Path) -> None:
    """Red: a module of the package that is reached by another way than its names' imports."""
    before = digests(PLAIN + way, runs=False)
    path = package / "models/layers.py"
    path.write_text(path.read_text().replace("FACTOR = 2", "FACTOR = 3"))
    assert changed(before, digests(PLAIN + way, runs=False)) == EVERY


def test_in_plain_form_what_a_network_imports_counts_for_it_alone(package: Path) -> None:
    """Red: what study.py reaches in the package and no stage does; a choice that hides part of it."""
    before = digests(PLAIN)
    path = package / "models/build.py"
    path.write_text(path.read_text().replace("FACTOR = 2", "FACTOR = 3"))
    assert changed(before, digests(PLAIN)) == USED
    (package / "models/layers.py").write_text("FACTOR = 3\n")
    assert changed(before, digests(PLAIN)) == USED


# --- in plain form ------------------------------------------------------------------------------------

OTHER = (SPEC + BUILD).replace("Sine", "Other").replace("sine", "other").replace("* 2", "* 9")
OTHER = OTHER.replace("def reshape_inputs", "def other_inputs").replace("def build", "def other_build")
ENTRY = "OtherModel: Family(other_inputs, other_build)"
SINE = "SineModel: Family(reshape_inputs, build)"
TWO = PLAIN.replace("\nNETWORKS = {", f"{OTHER}\nNETWORKS = {{{ENTRY}, ")
SPEC_USED = {"own fetch", "own measure", "own train", "plot"}
MEASURED = {"own measure", "built-in measure", "plot"}
EDITS = {  # of a file with two networks; the stages that they concern
    "comment": ("class Sine(Network)", "# A comment.\nclass Sine(Network)", set()),
    "docstring of the file": ("Networks and data", "Data and networks", set()),
    "docstring of a class": ("The keys below", "All keys below", set()),
    "docstring of a function": ('    """Return the network."""\n', "", set()),
    "layout": ("return inputs.flatten(1)", "return (\n        inputs.flatten( 1 )\n    )", set()),
    "order": (f"{ENTRY}, {SINE}", f"{SINE}, {ENTRY}", {"plot"}),
    "import": ("import torch\n", "import math\nimport torch\n", set()),
    "another network": ("* 9", "* 8", {"plot"}),
    "another network's spec": ('["other"]\n    width: Count', '["other"]\n    width: int', {"plot"}),
    "unused function": ("def rings", "def unused():\n    pass\n\ndef rings", {"plot"}),
    "unused constant": ("def rings", "UNUSED = 3\n\ndef rings", {"plot"}),
    "network": ("* 2", "* 3", USED),
    "network's function": ("inputs.flatten(1)\n\n\ndef build", "inputs.flatten()\n\n\ndef build", USED),
    "network's entry": ("Family(reshape_inputs, build)", "Family(other_inputs, build)", USED),
    "network's base": ("class Sine(Network)", "class Sine(torch.nn.Module)", USED),
    "network's message": ("return Sine()", "assert depth, rings\n    return Sine()", USED),
    "network's spec": ("class SineModel(OwnModel):", "class SineModel(OwnModel):\n    x = 1", SPEC_USED),
    "network's annotation": ('["sine"]\n    width: Count', '["sine"]\n    width: int', SPEC_USED),
    "data": ("/ 7", "/ 8", {"own fetch", "plot"}),
    "data's spec": ('kind = "vector"', 'kind = "image"', SPEC_USED),
    "metric": ("/ 5", "/ 6", MEASURED),
    "metric's entry": ('"NC1", "0"', '"NC1", "1"', MEASURED),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "stages"), EDITS.values(), ids=EDITS)
def test_in_plain_form_an_edit_counts_where_it_is_used(old: str, new: str, stages: set[str]) -> None:
    """Red: a digest of the whole file; a part that is not followed."""
    assert old in TWO
    before = digests(TWO)
    assert code.study_violation() is None
    after = digests(TWO.replace(old, new))
    assert code.study_violation() is None
    assert changed(before, after) == stages


def test_otherwise_too_comments_docstrings_and_layout_do_not_count() -> None:
    """Red: a digest of the file's bytes."""
    text = TWO + "_ = print\n"
    before = digests(text)
    assert code.study_violation() is not None
    for name in ("comment", "docstring of the file", "docstring of a function", "layout"):
        old, new, _ = EDITS[name]
        assert digests(text.replace(old, new)) == before, name


ALLOWED = """
import math
import numpy as np

WIDTH: int = 3
SIZES = (1, -2.5, (None, "a"))


class Block(nn.Module):
    eps = 1e-6

    def __init__(self, size: int, *, scale: float = 1.0) -> None:
        super().__init__()
        self.first = nn.Linear(size, WIDTH)
        self.first.bias.data = torch.zeros(WIDTH)

    length = property(lambda self: 3)

    @property
    def width(self):
        return WIDTH

    @staticmethod
    def shift(x, by=1):
        x[0] = by
        shifted = {"x": x}
        shifted["y"] = [math.exp(each) for each in np.arange(by)]
        return shifted


def helper(spec: "SineModel") -> torch.Tensor | None:
    from ncpipe.models.network import Network as Base

    return Block(spec.width) if isinstance(spec, Base) else None
"""


def test_what_plain_form_allows() -> None:
    """Red: a check that rejects what a study is usually made of."""
    digests(TWO + ALLOWED)
    assert code.study_violation() is None


# --- patches of the package ---------------------------------------------------------------------------

PATCHES = {
    "item": "from ncpipe.models.build import FAMILIES\nFAMILIES[int] = 3\n",
    "update": "from ncpipe.metrics.catalogue import CATALOGUE\nCATALOGUE.update({'a': 1})\n",
    "setdefault": "from ncpipe.datasets.prepare import SOURCES\nSOURCES.setdefault('a', len)\n",
    "del": "from ncpipe.training.objective import FITS\ndel FITS['ce']\n",
    "pop": "from ncpipe.config.specs import SIDES\nSIDES.pop('digits')\n",
    "through a module": "from ncpipe.metrics import loss_functions as losses\nlosses.LOSSES['ce'] = len\n",
    "replaced": "from ncpipe.models import build\nbuild.FAMILIES = {**build.FAMILIES, int: 3}\n",
}


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
def test_a_patch_of_a_table_of_the_package_is_refused(patch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a table of the package that a study can change."""
    from ncpipe.models import build

    monkeypatch.setattr(build, "FAMILIES", build.FAMILIES)  # is put back
    Path("study.py").write_text(patch)
    with pytest.raises(InputError, match=r"^study\.py: [^\n]*; put your entries into NETWORKS") as caught:
        load_study(Path())
    assert patch == PATCHES["replaced"] or str(caught.value).startswith("study.py: line 2: ")
