"""The Python files beside a study.py that it imports or names, which DVC has to watch too."""

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ncpipe.config.params import PARAMS_FILE
from ncpipe.runs.code_digests import PACKAGE, ROOT, STUDY

LIKE_A_PATH = re.compile(r"[\w./-]+")
SKIPPED = {PACKAGE, "data", "__pycache__"}


def study_modules() -> list[Path]:
    """Return the Python files in the study's folder that its study.py depends on, relative to that folder.

    They are those that have been imported, and those whose name, or whose folder's, occurs in an import or a
    text: what a function imports when it is called has not been imported yet.
    """
    found, waiting = set[Path](), [Path(f"{STUDY}.py")]
    candidates = set(_python_files())
    while waiting:
        words = _words(waiting.pop())
        named = {path for path in candidates - found if {path.stem, *path.parent.parts} & words}
        found |= named
        waiting += sorted(named)
    return sorted(found | set(_imported()))


def _imported() -> Iterator[Path]:
    """Return the imported modules that lie in the folder, but for environments and ncpipe itself."""
    folder = Path.cwd().resolve()
    others = [Path(sys.prefix).resolve(), (ROOT / PACKAGE).resolve()]
    for name, module in list(sys.modules.items()):
        path = Path(os.path.abspath(getattr(module, "__file__", None) or os.sep))
        elsewhere = any(path.resolve().is_relative_to(each) for each in others)
        ours = elsewhere or name in ("__main__", STUDY)
        if not ours and path.is_relative_to(folder) and path.suffix == ".py" and path.is_file():
            yield path.relative_to(folder)


def _python_files() -> Iterator[Path]:
    """Return the Python files of the study's folder, but for environments, data and other studies."""
    for place, folders, files in os.walk(Path()):
        folders[:] = [
            each
            for each in folders
            if not (each.startswith(".") or each in SKIPPED)
            and not any((Path(place, each, mark)).is_file() for mark in ("pyvenv.cfg", PARAMS_FILE))
        ]
        yield from (Path(place, each) for each in files if each.endswith(".py") and each != f"{STUDY}.py")


def _words(path: Path) -> set[str]:
    """Return the parts of the names that a file imports, and of its texts that may be a path or a module."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # which nothing can import
        return set()
    words: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            words |= {word for name in names for word in name.split(".")}
        elif isinstance(node, ast.Constant) and LIKE_A_PATH.fullmatch(str(node.value)):
            words |= set(re.split(r"[./]", str(node.value)))
    return words
