"""What imports what: the layers of the package, and the modules that every stage of every dvc.yaml lists."""

import ast
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from ncpipe.stamps import TRAINING_CODE

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ncpipe"
PIPELINES = sorted([ROOT / "dvc.yaml", *ROOT.glob("stages/*/dvc.yaml")])

# A package imports only those that stand below it here; those of one line do not import each other.
LAYERS = [
    {"__main__"},
    {"cli"},
    {"commands"},
    {"scheduling"},
    {"features", "figures", "schema"},
    {"training"},
    {"proofs", "tables"},
    {"flows", "metrics", "models", "optima"},
    {"datasets"},
    {"params", "stamps"},
    {"records", "yamlfile"},
    {"console", "specs", "artifacts", "randomness"},
    {"architectures"},
    {"bounds", "errors"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# Only reads arguments and talks to the user: no stage lists it.
UNLISTED = {PACKAGE / name for name in ("__init__.py", "__main__.py", "cli.py", "errors.py", "console.py")}
# Reads, checks and files away, but decides no number of a run: `train` does not list it.
PLUMBING = {
    PACKAGE / name for name in ("artifacts.py", "params.py", "records.py", "stamps.py", "yamlfile.py")
}
FORBIDDEN = {
    "tables": {"torch", "matplotlib", "seaborn", "dvc", "typer"},
    "figures": {"torch", "dvc", "typer"},
    "training": {"dvc", "typer", "pandas", "sklearn", "torchvision", "transformers"},
    "models": {"dvc", "typer", "pandas", "sklearn", "torchvision", "transformers"},
    "metrics": {"dvc", "typer", "pandas", "sklearn", "torchvision", "transformers"},
    "flows": {"dvc", "typer", "pandas", "sklearn", "torch", "torchvision", "transformers"},
    "optima": {"dvc", "typer", "pandas", "sklearn", "torchvision", "transformers"},
    "proofs": {"dvc", "typer", "pandas", "sklearn", "torchvision", "transformers"},
    "architectures": {"torch", "pydantic_core"},
    "metrics/report": {"torch", "dvc", "typer", "pandas"},
    "stamps": {"dvc", "typer", "torch", "pydantic"},  # a run that waits in the store is claimed at once
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports_of(path: Path) -> set[str]:
    """Dotted names that a module imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


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


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        return
    for other in {part_of(file) for file in local_imports(path)} - {part, "__init__"}:
        assert LEVEL[part] < LEVEL[other], f"{part} imports {other}"


@pytest.mark.parametrize("part", FORBIDDEN)
def test_what_a_part_never_imports(part: str) -> None:
    """A changed figure needs no torch; the library trains where neither DVC nor typer is installed."""
    own = [path for path in modules() if part in (part_of(path), module_name(path))]
    assert own
    reached = set().union(*(closure(path) for path in own))
    for path in reached:
        roots = {name.split(".")[0] for name in imports_of(path)}
        assert not roots & FORBIDDEN[part], f"{part} reaches {path.relative_to(ROOT)}"


@pytest.mark.parametrize("command", ["fetch", "train", "extract", "measure", "aggregate"])
def test_no_stage_before_plot_knows_a_caption(command: str) -> None:
    """A changed label redraws figures and nothing else."""
    reached = closure(PACKAGE / "commands" / f"{command}.py")
    assert [module_name(path) for path in reached if part_of(path) == "figures"] == []


def stages() -> list[tuple[Path, str]]:
    return [(path, stage) for path in PIPELINES for stage in YAML(typ="safe").load(path)["stages"]]


@pytest.mark.parametrize(
    ("pipeline", "stage"), stages(), ids=lambda v: str(getattr(v, "parent", v)).split("/")[-1]
)
def test_a_stage_lists_the_modules_it_runs(pipeline: Path, stage: str) -> None:
    """DVC does not follow imports: a module missing here would change results without a rerun."""
    entry = YAML(typ="safe").load(pipeline)["stages"][stage]
    paths = [(pipeline.parent / dependency).resolve() for dependency in entry["deps"]]
    code = [path for path in paths if path.is_relative_to(PACKAGE)]
    assert all(path.exists() for path in code)
    listed = {file for path in code for file in (path.rglob("*.py") if path.is_dir() else [path])}
    command = entry["cmd"].split()[1]
    runs = closure(PACKAGE / "commands" / f"{command}.py") - UNLISTED
    if stage == "train":
        assert {str(path.relative_to(PACKAGE)) for path in code} == set(TRAINING_CODE)
        runs -= PLUMBING | {path for path in runs if part_of(path) in {"commands", "scheduling"}}
    assert runs - listed == set(), f"{stage} runs modules that it does not list"
    assert {path for path in code if path.is_file()} - runs == set(), f"{stage} lists modules it does not run"
