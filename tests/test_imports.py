"""What imports what: the layers of the package."""

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import pytest

import ncpipe

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ncpipe"

# A package imports only those that stand below it here; those of one line do not import each other.
LAYERS = [
    {"__main__"},
    {"commands"},
    {"integrations", "papers"},
    {"runs"},
    {"report"},
    {"features", "figures"},
    {"claims", "training"},
    {"tables", "theory"},
    {"metrics"},
    {"models"},
    {"datasets"},
    {"config"},
    {"system"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
LEVEL["study"] = len(LAYERS)  # names for studies, which it imports when they are used
PIPELINE = {"dvc", "typer"}
DRAWING = {"matplotlib", "seaborn"}
DATA = {"pandas", "sklearn", "torchvision", "transformers"}
FORBIDDEN = {
    "tables": {"torch", *DRAWING, *PIPELINE},
    "figures": {"torch", *PIPELINE},
    "report": {"torch", *DRAWING, *PIPELINE},
    "training": {*DATA, *PIPELINE},
    "models": {*DATA, *PIPELINE},
    "metrics": {*DATA, *PIPELINE},
    "theory": {*DATA, *PIPELINE},
    "integrations/torchmetrics": DATA - {"transformers"} | PIPELINE,
    "integrations/transformers": DATA - {"transformers"} | PIPELINE,
    "integrations/lightning": DATA - {"transformers"} | PIPELINE,
    "papers/k23/flows/features_model": {"torch", *DATA, *PIPELINE},
    "config/architectures/paper": {"torch", "pydantic"},
    "metrics/catalogue": {"torch"},  # tables, figures and the report read it
    "metrics/conformance/suite": {"torch", "pandas", *PIPELINE},
    "metrics/measurements": {"torch", *PIPELINE},
    "runs/engines/slurm_job": {"pandas", *PIPELINE},  # what trains on other machines
    "datasets/prepared": {"tokenizers", *DATA, *PIPELINE},
    "runs/fast_path": {"torch", "pydantic", "pandas", "tqdm", *PIPELINE},  # a stored run is taken at once
    "runs/fingerprint": {"torch", *PIPELINE},
}
# Of a module, what is imported when it is first used: by a method named for that, which is refused in one
# line where it is missing, and by the functions beside the entries that tables and figures read.
OFFERED = {"metrics/measurements": {"pandas"}, "system/lazy_torch": {"torch"}}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@functools.cache
def imports_of(path: Path) -> set[str]:
    """Dotted names that a module imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@functools.cache
def local_imports(path: Path) -> set[Path]:
    files = set()
    for name in imports_of(path):
        if name.split(".")[0] == "ncpipe":
            stem = ROOT.joinpath(*name.split("."))
            files |= {file for file in (stem.with_suffix(".py"), stem / "__init__.py") if file.is_file()}
    return {file for file in files if file.stat().st_size}  # empty __init__.py files say nothing


def closure(start: Path) -> set[Path]:
    reached, todo = set(), [start]
    while todo:
        path = todo.pop()
        if path not in reached:
            reached.add(path)
            todo += local_imports(path)
    return reached


def part_of(path: Path) -> str:
    """First name below ncpipe: a package or a module."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_name(path: Path) -> str:
    """Path below ncpipe without the suffix."""
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


def test_imports_point_down() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {other}"
        for path in modules()
        for other in {part_of(file) for file in local_imports(path)} - {part_of(path), "__init__"}
        if part_of(path) != "__init__" and not LEVEL[part_of(path)] < LEVEL[other]
    ]
    assert wrong == []


def test_no_module_reaches_itself() -> None:
    """Imports within functions count too. graphlib raises CycleError, which names the circle."""
    TopologicalSorter({path: local_imports(path) for path in modules()}).prepare()


def test_no_part_of_the_package_imports_a_paper() -> None:
    """They are for the study.py of studies. Red: a command that knows a paper."""
    knowing = [path for path in modules() if "papers" in map(part_of, local_imports(path))]
    assert {part_of(path) for path in knowing} == {"papers"}


@pytest.mark.parametrize("part", FORBIDDEN)
def test_what_a_part_never_imports(part: str) -> None:
    """A changed figure needs no torch; the library trains where neither DVC nor typer is installed."""
    paths = [path for path in modules() if part in (part_of(path), module_name(path))]
    assert paths
    reached = set().union(*(closure(path) for path in paths))
    for path in reached:
        roots = {name.split(".")[0] for name in imports_of(path)}
        roots -= OFFERED.get(module_name(path), set())
        assert not roots & FORBIDDEN[part], f"{part} reaches {path.relative_to(ROOT)}"


# Statements that a process runs one after the other, and what none of them up to there may import.
SLOW = "torch pandas dvc sklearn matplotlib transformers scipy torch._dynamo"
HELP = "from ncpipe.commands.cli import app; app({}, standalone_mode=False)"
STARTS: dict[str, list[tuple[str, str]]] = {
    "commands": [
        ("import ncpipe", f"numpy {SLOW}"),
        # It is imported where values are validated only.
        ("import ncpipe.runs.fingerprint", "torch dvc pydantic pydantic_core"),
        ("import ncpipe.commands.train", "torch pandas ruamel dvc"),
        ("from ncpipe.config.params import load_params; load_params()", "torch pandas ruamel dvc"),
        ("from ncpipe.commands.status import status; status()", "torch dvc"),
        (HELP.format(["--help"]) + "; " + HELP.format(["train", "--help"]), SLOW),
    ],
    "the library": [
        # Not even params.yaml: metrics of a study.py are no part of the catalogue.
        ("import ncpipe; [getattr(ncpipe, name) for name in ncpipe.__all__]", "ncpipe.config pandas scipy"),
        (HELP.format(["metrics", "f.npz"]), SLOW.removeprefix("torch ")),
    ],
}


@pytest.mark.parametrize("process", STARTS)
def test_what_a_start_does_not_import(process: str, tmp_path: Path) -> None:
    """Help comes without torch, a measurement without what the pipeline needs, and no word on standard error.

    Red: torch or pandas, which take seconds, at the top of a module that every command reads."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "f.npz", features=draw.standard_normal((60, 5)), labels=np.arange(60) % 3)
    code = ["import sys"]
    for statement, absent in STARTS[process]:
        code += [statement, f"assert not {{*{absent.split()}}} & {{*sys.modules}}, {statement!r}"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(code)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert {"commands": "--experiment", "the library": "nc1_trace_ratio"}[process] in done.stdout


# What users of the metrics alone may not have, hidden from the imports of a process of its own.
ABSENT = [
    *("pandas", "scipy", "pydantic", "pydantic_core", "annotated_types", "dvc", "typer", "sklearn"),
    *("transformers", "yaml", "matplotlib", "networkx", "numba"),
]
METRIC_MODULES = [
    f"ncpipe.metrics.{path.stem}"
    for path in sorted((PACKAGE / "metrics").glob("*.py"))
    if path.stem != "__init__"
]


def test_metrics_need_torch_and_numpy_alone() -> None:
    """Also what they reach in other parts. Red: a module that imports pandas or reaches pydantic."""
    assert len(METRIC_MODULES) > 20
    code = f"""
import importlib, sys
sys.modules |= dict.fromkeys({ABSENT}, None)  # as if they were not installed
for module in {METRIC_MODULES}:
    importlib.import_module(module)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_name_is_there_and_typed() -> None:
    """As modules have them. Red: a name in one of the two files alone."""
    names = [name for name in ncpipe.__all__ if name != "__version__"]
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    typed = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(typed) == sorted(names)
    for name in names:
        module, _, attribute = typed[name].rpartition(".")
        value = getattr(ncpipe, name)
        assert value is sys.modules.get(typed[name], getattr(sys.modules[module], attribute))
        assert value.__doc__, name
        assert name in dir(ncpipe)
    assert (PACKAGE / "py.typed").is_file()
    with pytest.raises(AttributeError, match="module 'ncpipe' has no attribute 'mesure'"):
        ncpipe.mesure  # noqa: B018


def test_every_name_for_studies_is_there_typed_and_explained() -> None:
    """At most 40 of them. Red: a name in one of the files alone; one that docs/extending.md leaves out."""
    from ncpipe import study

    assert len(study.__all__) <= 40
    stub = ast.parse((PACKAGE / "study.pyi").read_text(encoding="utf-8"))
    typed = {
        alias.asname: (node.module.removeprefix("ncpipe."), alias.name)
        for node in stub.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    modules = {name: tuple(module.rsplit(".", 1)) for name, module in study.MODULES.items()}
    assert typed == {name: (module, name) for name, module in study.HOMES.items()} | modules
    page = (ROOT / "docs/extending.md").read_text(encoding="utf-8").partition("\n## The names\n")[2]
    told = re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)))
    assert sorted(told) == sorted(study.__all__)
    for name in study.__all__:
        assert hasattr(study, name), name
        assert name in dir(study)
    with pytest.raises(AttributeError, match=r"module 'ncpipe\.study' has no attribute 'Stag'; it has Bound"):
        study.Stag  # noqa: B018


def test_papers_and_studies_import_the_names_for_users_alone() -> None:
    """Those of `ncpipe.study` and of the library, besides papers. Red: one that reaches into a room."""
    allowed = ("ncpipe.study", "ncpipe.papers", *(f"ncpipe.{name}" for name in ncpipe.__all__))
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (*PACKAGE.glob("papers/**/*.py"), *ROOT.glob("stages/*/*.py"))
        for name in imports_of(path)
        if name.startswith("ncpipe.") and not name.startswith(allowed)
    ]
    assert wrong == []


def test_no_module_of_the_package_uses_the_names_for_its_users() -> None:
    """What they lead to is not in the syntax, and digests of code would miss it."""
    for path in (path for path in modules() if part_of(path) != "papers"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "ncpipe":
                names = {alias.name for alias in node.names}
                assert not names - {"__version__"} - {part.stem for part in PACKAGE.iterdir()}, path
            if isinstance(node, ast.Import):
                assert "ncpipe" not in {alias.name for alias in node.names}, path
