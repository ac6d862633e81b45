"""Find the files that a study.py depends on.

The files are study.py, the modules beside it that it imports, and what dvc.yaml lists for the stage `code`.
Their content is part of every digest of the study (`ncpipe.runs.code_digests`); `ncpipe.config.study_reads`
refuses whatever else it reads. Readers that are not written in Python, such as those of safetensors and HDF5,
open files unseen; `named_files` finds these by their names in strings.
"""

import ast
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ncpipe.config.reading import PACKAGE, Reading
from ncpipe.system.artifacts import CODE as DIGESTS
from ncpipe.system.artifacts import FEATURES, GRID, METRICS, PREPARED, RUNS
from ncpipe.system.errors import InputError

FILE = "study.py"
PIPELINE = Path("dvc.yaml")
CODE, FETCH, MEASURE = "code", "fetch", "measure"  # the stages whose `deps` may list what study.py reads
LOOP = "loop"  # an own loop and its loaders read what these list for `fetch`, again when they train
PARAMS, CLAIMS = "params.yaml", "claims.yaml"
PATH_OR_MODULE = re.compile(r"[\w./-]+")
SKIPPED = {PACKAGE, "data", "__pycache__"}
OUTPUTS = (DIGESTS, GRID, PREPARED, RUNS, FEATURES, METRICS)  # of stages, and known by other digests
# Python 3.11 counts the recursion of all threads that parse source code together, and fails if two overlap.
_ONE_AT_A_TIME = threading.Lock()


def stages(folder: Path = Path()) -> dict[str, Any]:
    """Return the stages of a folder's dvc.yaml by name; none without one."""
    if not (folder / PIPELINE).is_file():
        return {}
    from ncpipe.config.yaml_file import read_yaml  # slow, and only needed with a study.py

    tree = read_yaml(folder / PIPELINE)
    return (tree.get("stages") if isinstance(tree, dict) else None) or {}  # DVC says what is wrong


def dependencies(stage: str, folder: Path = Path()) -> list[str]:
    """Return the dependencies that a folder's dvc.yaml, if there is one, lists for a stage; normalised."""
    return [os.path.normpath(path) for path in (stages(folder).get(stage) or {}).get("deps") or []]


def always_runs(stage: str, folder: Path = Path()) -> bool:
    """Return whether dvc.yaml says that a stage always runs."""
    return bool((stages(folder).get(stage) or {}).get("always_changed"))


def check_reruns(stage: str, file: str) -> None:
    """Raise InputError if there is a dvc.yaml whose stage does not rerun when the file changes."""
    if not always_runs(stage):
        check_dependency(stage, file)


def check_dependency(stage: str, file: str) -> None:
    """Raise InputError if there is a dvc.yaml that does not list the file as a dependency of the stage."""
    file = os.path.normpath(file)
    if PIPELINE.is_file() and not any(Path(file).is_relative_to(path) for path in dependencies(stage)):
        raise InputError(
            f"{PIPELINE}: DVC would not see changes of {file}; add the line `- {file}` to the deps of the "
            f"stage {stage}"
        )


def listed_paths(stage: str = CODE) -> list[Path]:
    """Return the files and folders that dvc.yaml lists for a stage, less addresses and what ncpipe knows.

    Raises InputError if one is missing.
    """
    paths = []
    for text in dependencies(stage):
        path = Path(text)
        if text in (PACKAGE, FILE, PIPELINE.name) or "${" in text or ":/" in text:
            continue
        if any(path.is_relative_to(output) for output in OUTPUTS):
            continue
        if not path.exists():
            raise InputError(f"{PIPELINE}: {path}, a dependency of the stage {stage}, is no file or folder")
        paths.append(path)
    return paths


def listed_digests(reading: Reading, *stages: str) -> dict[str, str]:
    """Return the SHA-256 of all files that dvc.yaml lists for stages, or has in listed folders, by path."""
    paths = [path for stage in stages for path in listed_paths(stage)]
    return {name: digest for path in paths for name, digest in reading.listed(path).items()}


def study_modules(
    roots: Iterable[Path] = (Path(FILE),),
    read: Callable[[Path], bytes] = Path.read_bytes,
    folder: Path = Path(),
) -> list[Path]:
    """Return the Python files in a study's folder that some of its files depend on, relative to the folder.

    These are files whose name or folder occurs in an import or a string, because a function may import them
    later. read: returns a file's content.
    """
    candidates, modules, todo = set(_python_files(folder)), set[Path](), list(roots)
    while todo:
        try:
            names = words(parsed(read(folder / todo.pop())))
        except (SyntaxError, ValueError):  # cannot be imported
            continue
        imported = {path for path in candidates if not names.isdisjoint({path.stem, *path.parent.parts})}
        todo += imported - modules
        modules |= imported
    return sorted(modules)


def _python_files(study: Path) -> Iterator[Path]:
    """Yield the Python files of the study's folder, except study.py, environments, data and other studies."""
    for parent, folders, files in os.walk(study):
        folders[:] = [
            folder
            for folder in folders
            if not (folder.startswith(".") or folder in SKIPPED)
            and not any(Path(parent, folder, file).is_file() for file in ("pyvenv.cfg", PARAMS))
        ]
        here = Path(parent).relative_to(study)
        yield from (here / file for file in files if file.endswith(".py") and file != FILE)


def words(tree: ast.AST) -> set[str]:
    """Return the parts of the names that code imports, and of strings that may be a path or a module."""
    parts: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            first = (names[-1] or names[0]).partition(".")[0]
            if first != PACKAGE and first not in sys.stdlib_module_names:
                parts |= {part for name in names for part in name.split(".")}
        elif isinstance(node, ast.Constant) and PATH_OR_MODULE.fullmatch(str(node.value)):
            parts |= set(re.split(r"[./]", str(node.value)))
    return parts


def parsed(content: bytes) -> ast.Module:
    """Return the syntax tree of a module."""
    with _ONE_AT_A_TIME:
        return ast.parse(content)


def named_files() -> list[Path]:
    """Return the files beside study.py that a string of it, or of its modules, names."""
    paths = set()
    for module in (Path(FILE), *study_modules()):
        for node in ast.walk(parsed(module.read_bytes())):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and PATH_OR_MODULE.fullmatch(text):
                path = Path(os.path.normpath(text))
                if path.suffix and path.suffix != ".py" and path.is_file():
                    paths.add(path)
    return sorted(paths - {Path(PARAMS), Path(CLAIMS), PIPELINE})


def readable(stage: str, folder: Path = Path()) -> tuple[str, ...] | None:
    """Return the paths of what dvc.yaml lists for a stage, behind links too; None where it may read any file.

    So may `fetch` and `measure` where they always run, as they do without a dvc.yaml.
    """
    if stage in (FETCH, MEASURE) and (always_runs(stage, folder) or not (folder / PIPELINE).is_file()):
        return None
    names = dependencies(FETCH if stage == LOOP else stage, folder)
    return places([folder / name for name in names if name != PACKAGE])


def places(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return paths as they are named, and as they lie behind links."""
    return tuple(
        dict.fromkeys(place(path) for path in paths for place in (os.path.abspath, os.path.realpath))
    )


def is_within(path: str, folders: Iterable[str]) -> bool:
    """Return whether a path is one of some files or folders, or in one of these."""
    return any(path == folder or path.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)
