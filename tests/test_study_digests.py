"""An edit of a study's code changes the digests of what it may concern, in whatever way the study is written.

Digests are taken beside a package of a few lines; the same files are run beside the real one. Each test's
docstring ends with the fault that would turn it red.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import clear_code_digests

from ncpipe.commands.code import write_code
from ncpipe.config.choices import Choices
from ncpipe.config.reading import at_start
from ncpipe.config.study import load_study, loaded
from ncpipe.runs import closures, code_digests
from ncpipe.runs.study_code import study_effect
from ncpipe.system.errors import InputError

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
DATA = SPEC.replace("Sine", "Rings").replace("sine", "rings").replace("OwnModel", "OwnData")
DATA = (
    DATA.replace("architecture", "source")
    .replace("RingsModel", "RingsData")
    .replace("    source", '    kind = "vector"\n    source')
)
HELPER = {"helper.py": SPEC + BUILD}
PARTS = {"helper.py": BUILD}
IMPORT = "from helper import SineModel, build\n"
# A study's files; the number 2 in one of them is edited. In each the network that is built is that number.
WAYS: dict[str, dict[str, str]] = {
    "in study.py": {"study.py": SPEC + BUILD + TABLE},
    "module by its name": {
        "study.py": f"import helper\n{FAMILY}NETWORKS = {{helper.SineModel: Family(len, helper.build)}}\n",
        **HELPER,
    },
    "other name": {"study.py": IMPORT.replace("build", "build as b") + TABLE.replace("build", "b"), **HELPER},
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
    "importlib": {
        "study.py": f"import importlib\n{SPEC}build = importlib.import_module('helper').build\n{TABLE}",
        **PARTS,
    },
    "table of a module": {"study.py": "from helper import NETWORKS\n", "helper.py": SPEC + BUILD + TABLE},
    "unpacked": {
        "study.py": f"{IMPORT}{FAMILY}MORE = {{SineModel: Family(len, build)}}\nNETWORKS = {{**MORE}}\n",
        **HELPER,
    },
    "partial": {
        "study.py": SPEC + "from functools import partial\nfrom helper import scaled\n"
        + TABLE.replace("build)", "partial(scaled, 2))"),
        "helper.py": "def scaled(by, *_):\n    return by\n",
    },
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
    "data in another module": {
        "study.py": f"from helper import SineModel, build\nfrom rings import RingsData, rings\n{TABLE}"
        "DATA = {RingsData: rings}\n",
        "rings.py": DATA + "def rings(spec):\n    return {}\n",
        **HELPER,
    },
}  # fmt: skip

OWN = Choices(frozenset({"SineModel", "sine"}), (("NETWORKS", "SineModel"),))
BUILT_IN = Choices(frozenset({"MLPModel", "mlp"}))
PACKAGE = {
    "commands/stage": "def stage():\n    pass\n",
    "models/network": "from ncpipe.models.layers import FACTOR\n",
    "models/layers": "FACTOR = 2\n",
    "config/specs": "class OwnModel:\n    pass\n",
}


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of the names that studies import, beside an empty folder of a study."""
    root, study = tmp_path / "root", tmp_path / "study"
    write({f"root/ncpipe/{name}.py": text for name, text in PACKAGE.items()}, tmp_path)
    study.mkdir()
    monkeypatch.chdir(study)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(closures, "ROOT", root)
    stage = "ncpipe.commands.stage"
    monkeypatch.setattr(code_digests, "TRAINING", (stage,))
    monkeypatch.setattr(code_digests, "EXPERIMENT_STAGES", {"fetch": stage, "measure": stage})
    monkeypatch.setattr(code_digests, "SWEEP_STAGES", {"plot": stage})
    yield root / "ncpipe"
    clear_code_digests()
    load_study(tmp_path)
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def write(files: dict[str, str], folder: Path = Path()) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def digests() -> dict[str, dict[str, str]]:
    """Stage -> digests, of an experiment of study.py's network, and of one of the package's."""
    clear_code_digests()
    own, built_in = map(code_digests.experiment_digests, (OWN, BUILT_IN))
    return (
        {f"own {stage}": lines for stage, lines in own.items()}
        | {f"built-in {stage}": lines for stage, lines in built_in.items()}
        | code_digests.sweep_digests()
    )


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


USED = {"own measure", "own train", "plot"}  # stages that a network of the study concerns
EVERY = {f"{of} {stage}" for of in ("own", "built-in") for stage in ("fetch", "measure", "train")} | {"plot"}


def network() -> object:
    """What the study's network is built as."""
    for cache in Path().rglob("__pycache__"):  # which tells an edit by its second and its length
        shutil.rmtree(cache)
    load_study(Path())
    (family,) = loaded().networks.values()
    return family.build(None, None, 2, 2)


@pytest.mark.parametrize("way", WAYS)
def test_an_edit_of_a_network_counts_however_it_is_written(way: str) -> None:
    """And a file that DVC would not see is refused. Red: a way by which the old result is kept."""
    files = WAYS[way]
    write(files)
    edited = next(name for name, text in reversed(files.items()) if "2" in text and name != "dvc.yaml")
    assert network() == 2
    before = digests()
    write({edited: files[edited].replace("2", "3")})
    assert network() == 3
    assert changed(before, digests()) >= USED
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
    "network": ({"sine.py": SPEC + BUILD.replace("2", "3")}, USED),
    "spec": ({"sine.py": SPEC + "    width: int = 3\n" + BUILD}, USED),
    "a network more": (ENTRY, {"plot"}),
    "a metric more": (METRIC, {"own measure", "built-in measure", "plot"}),
    "unused function": ({"study.py": SINE["study.py"] + "\n\ndef unused():\n    return 1\n"}, {"plot"}),
    "effect in study.py": ({"study.py": SINE["study.py"] + "print(1)\n"}, EVERY),
    "effect in a module": (ENTRY | {"other.py": OTHER + "other_build.x = 1\n"}, EVERY),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_counts_where_it_is_used(edit: str) -> None:
    """If a study does no more than define. Red: a digest of all of the study; an entry that others count."""
    files, stages = EDITS[edit]
    write(SINE)
    before = digests()
    assert study_effect(at_start()) is None
    write(files)
    load_study(Path())
    after = digests()
    assert changed(before, after) == stages
    if "other.py" in files:
        write({"other.py": files["other.py"].replace("2", "3")})
        assert changed(after, digests()) == (EVERY if "effect" in edit else {"plot"})


@pytest.mark.parametrize("table", ["NETWORKS", "LOSSES", "OPTIMIZERS"])
def test_the_function_of_an_entry_counts_beside_its_record(table: str) -> None:
    """Red: a table that training reads and its digest does not: an edited function keeps the result."""
    functions = "def function():\n    return 2\n"
    entry = f"from functions import function\nfrom records import Mine\n\n{table} = {{Mine: function}}\n"
    write({"records.py": "class Mine:\n    x = 1\n", "functions.py": functions, "study.py": entry})
    choices = Choices(frozenset({"Mine"}), ((table, "Mine"),))
    clear_code_digests()
    before = code_digests.experiment_digests(choices)
    write({"functions.py": functions.replace("2", "3")})
    clear_code_digests()
    assert changed(before, code_digests.experiment_digests(choices)) >= {"measure", "train"}


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


def test_what_is_no_effect() -> None:
    """Red: a check that takes what a study is usually made of for more than definitions."""
    write(SINE | {"sine.py": SINE["sine.py"] + ALLOWED})
    assert study_effect(at_start()) is None


ALLOWED = """
import math
import numpy as np
from torch import nn
from ncpipe.models.network import Network

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


class Deep(Block, Network):
    pass


def helper(spec: "SineModel") -> "Network | None":
    from ncpipe.models.network import Network as Base

    return Block(spec.width) if isinstance(spec, Base) else None
"""


@pytest.mark.parametrize(
    "way",
    [
        "from ncpipe.models.layers import FACTOR\n",
        "import ncpipe.models.layers as layers\n",
        "from ncpipe.models import layers\n",
        "def f():\n    import importlib\n\n    return importlib.import_module('ncpipe.models.layers')\n",
        "def f():\n    import sys\n\n    return sys.modules['nc' + 'pipe.models.layers']\n",
    ],
)
def test_what_a_study_uses_of_the_package_counts(way: str, package: Path) -> None:
    """A subclass of one of its networks, say. Red: a module of the package that no stage reaches itself."""
    write({"study.py": way + SPEC + BUILD + TABLE.replace("network import Family", "family import Family")})
    write({"models/family.py": "Family = 1\n"}, package)
    before = digests()
    write({"models/layers.py": "FACTOR = 3\n"}, package)
    assert changed(before, digests()) >= USED


PATCHES = {
    "item": "from ncpipe.models.build import FAMILIES\nFAMILIES[int] = 3\n",
    "update": "from ncpipe.metrics.catalogue import CATALOGUE\nCATALOGUE.update({'a': 1})\n",
    "setdefault": "from ncpipe.datasets.prepare import SOURCES\nSOURCES.setdefault('a', len)\n",
    "del": "from ncpipe.training.objective import FITS\ndel FITS['ce']\n",
    "pop": "from ncpipe.config.sources.images import SIDES\nSIDES.pop('digits')\n",
    "replaced": "from ncpipe.models import build\nbuild.FAMILIES = {**build.FAMILIES, int: 3}\n",
}


@pytest.mark.parametrize("patch", PATCHES)
def test_a_patch_of_a_table_of_the_package_is_refused(patch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red: a table of the package that a study can change."""
    from ncpipe.models import build

    monkeypatch.setattr(build, "FAMILIES", build.FAMILIES)  # is put back
    write({"study.py": PATCHES[patch]})
    with pytest.raises(InputError, match=r"^study\.py: [^\n]*; put your entries into NETWORKS") as caught:
        load_study(Path())
    assert patch == "replaced" or str(caught.value).startswith("study.py: line 2: ")
