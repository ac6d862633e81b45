"""Find the Python files in a study's folder that its study.py depends on, which dvc.yaml has to list."""

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ncpipe.config.params import PARAMS_FILE
from ncpipe.runs.code_digests import PACKAGE, ROOT, STUDY

PATH_OR_MODULE = re.compile(r"[\w./-]+")
SKIPPED = {PACKAGE, "data", "__pycache__"}


def study_modules() -> list[Path]:
    """Return the Python files in the study's folder that its study.py depends on, relative to that folder.

    These are the imported files, and files whose name or folder occurs in an import or a string, because a
    function may import them later.
    """
    found, todo = set[Path](), [Path(f"{STUDY}.py")]
    candidates = set(_python_files())
    while todo:
        words = _words(todo.pop())
        named = {path for path in candidates - found if {path.stem, *path.parent.parts} & words}
        found |= named
        todo += sorted(named)
    return sorted(found | set(_imported()))


def _imported() -> Iterator[Path]:
    """Yield the imported files in the current folder, except study.py, environments and ncpipe."""
    folder = Path.cwd().resolve()
    excluded = [Path(sys.prefix).resolve(), (ROOT / PACKAGE).resolve()]
    for name, module in list(sys.modules.items()):
        path = Path(os.path.abspath(getattr(module, "__file__", None) or os.sep))
        if name in ("__main__", STUDY) or any(path.resolve().is_relative_to(other) for other in excluded):
            continue
        if path.is_relative_to(folder) and path.suffix == ".py" and path.is_file():
            yield path.relative_to(folder)


def _python_files() -> Iterator[Path]:
    """Yield the Python files of the study's folder, except study.py, environments, data and other studies."""
    for parent, folders, files in os.walk(Path()):
        folders[:] = [
            folder
            for folder in folders
            if not (folder.startswith(".") or folder in SKIPPED)
            and not any(Path(parent, folder, file).is_file() for file in ("pyvenv.cfg", PARAMS_FILE))
        ]
        yield from (Path(parent, file) for file in files if file.endswith(".py") and file != f"{STUDY}.py")


def _words(path: Path) -> set[str]:
    """Return the parts of the names that a file imports, and of strings that may be a path or a module."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # cannot be imported
        return set()
    words: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            words |= {word for name in names for word in name.split(".")}
        elif isinstance(node, ast.Constant) and PATH_OR_MODULE.fullmatch(str(node.value)):
            words |= set(re.split(r"[./]", str(node.value)))
    return words
