"""Find the files that a study.py depends on, and refuse whatever else it reads.

The files are study.py, the modules beside it that it imports, and what dvc.yaml lists for the stage `code`.
Their content is part of every digest of the study (`ncpipe.runs.code_digests`). A hook sees each file that
study.py opens, itself or through a library, and ends the command if none of these lists has it: a result must
not depend on a file whose changes nothing notices. Readers that are not written in Python, such as those of
safetensors and HDF5, open files unseen; `named_files` finds these by their names in strings.
"""

import ast
import linecache
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from importlib.util import source_from_cache
from pathlib import Path
from types import FrameType
from typing import Any

from ncpipe.config.reading import PACKAGE, AsRead, Reading
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
MADE = (DIGESTS, GRID, PREPARED, RUNS, FEATURES, METRICS)  # by stages, and known by other digests

PACKAGE_FOLDER = Path(__file__).resolve().parents[1]
# Files of the system, of installed packages and of their caches: they are not part of a run's identity.
SYSTEM = ("/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sys", "/usr", "/Library", "/System")
CACHES = tuple(os.path.expanduser(f"~/{name}") for name in (".cache", ".triton"))
COMPILED = os.path.join(tempfile.gettempdir(), "torchinductor_")
INSTALLED = {"site-packages", "dist-packages", "__pycache__"}
# Python 3.11 counts the recursion of all threads that parse source code together, and fails if two overlap.
_ONE_AT_A_TIME = threading.Lock()
OFFICIAL = f"{PACKAGE_FOLDER / 'datasets'}{os.sep}"  # reads official files, whose MD5 it checks


def dependencies(stage: str, folder: Path = Path()) -> list[str]:
    """Return the dependencies that a folder's dvc.yaml, if there is one, lists for a stage; normalised."""
    return [os.path.normpath(path) for path in _stage(stage, folder).get("deps") or []]


def always_runs(stage: str, folder: Path = Path()) -> bool:
    """Return whether dvc.yaml says that a stage always runs."""
    return bool(_stage(stage, folder).get("always_changed"))


def _stage(stage: str, folder: Path) -> dict[str, Any]:
    if not (folder / PIPELINE).is_file():
        return {}
    from ncpipe.config.yaml_file import read_yaml  # slow, and only needed with a study.py

    stages = (read_yaml(folder / PIPELINE) or {}).get("stages") or {}
    found: dict[str, Any] = stages.get(stage) or {}
    return found


def listed_paths(stage: str = CODE) -> list[Path]:
    """Return the files and folders that dvc.yaml lists for a stage, less addresses and what ncpipe knows.

    Raises InputError if one is missing.
    """
    found = []
    for text in dependencies(stage):
        path = Path(text)
        if text in (PACKAGE, FILE, PIPELINE.name) or "${" in text or ":/" in text:
            continue
        if any(path.is_relative_to(made) for made in MADE):
            continue
        if not path.exists():
            raise InputError(f"{PIPELINE}: {path}, a dependency of the stage {stage}, is no file or folder")
        found.append(path)
    return found


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
    known, found, todo = list(_python_files(folder)), set[Path](), list(roots)
    while todo:
        try:
            tree = parsed(read(folder / todo.pop()))
        except (SyntaxError, ValueError):  # cannot be imported
            continue
        named = set(modules_named(words(tree), known)) - found
        found |= named
        todo += named
    return sorted(found)


def modules_named(names: Collection[str], known: Iterable[Path] | None = None) -> list[Path]:
    """Return the Python files of a study, less study.py, whose name or folder is among the names."""
    known = _python_files(Path()) if known is None else known
    return [path for path in known if not {path.stem, *path.parent.parts}.isdisjoint(names)]


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
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            first = (names[-1] or names[0]).partition(".")[0]
            if first != PACKAGE and first not in sys.stdlib_module_names:
                found |= {word for name in names for word in name.split(".")}
        elif isinstance(node, ast.Constant) and PATH_OR_MODULE.fullmatch(str(node.value)):
            found |= set(re.split(r"[./]", str(node.value)))
    return found


def parsed(content: bytes) -> ast.Module:
    """Return the syntax tree of a module."""
    with _ONE_AT_A_TIME:
        return ast.parse(content)


def named_files() -> list[Path]:
    """Return the files beside study.py that a string of it, or of its modules, names."""
    known = {FILE, PARAMS, CLAIMS, PIPELINE.name}
    found = set()
    for module in (Path(FILE), *study_modules()):
        for node in ast.walk(parsed(module.read_bytes())):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and PATH_OR_MODULE.fullmatch(text) and text not in known:
                path = Path(os.path.normpath(text))
                if path.suffix and path.suffix != ".py" and path.is_file():
                    found.add(path)
    return sorted(found)


def is_listed(path: Path, stages: Sequence[str], folder: Path = Path()) -> bool:
    """Return whether dvc.yaml lists a file, or a folder of it, as a dependency of one of the stages.

    A stage other than `code` that always runs needs no list, but for an own loop.
    """
    real = os.path.realpath(folder / path)
    for stage in stages:
        if stage not in (CODE, LOOP) and always_runs(stage, folder):
            return True
        stage = FETCH if stage == LOOP else stage
        for other in dependencies(stage, folder):
            if _is_within(real, os.path.realpath(folder / other)):
                return True
    return False


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


class _AsRead(MetaPathFinder):
    """Finds modules as the other finders do, and has the package's and the study's imported as read.

    Those beside study.py are found first, as Python does for a script; never one of the standard library.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        spec = None
        if _folder and path is None and name != PACKAGE and name not in sys.stdlib_module_names:
            spec = FileFinder(str(_folder), (AsRead, [".py"])).find_spec(name)
            if spec is not None and spec.loader is None:  # a folder without an __init__.py
                spec = None
        for finder in sys.meta_path:
            if spec is None and finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
        if spec and isinstance(spec.loader, SourceFileLoader) and _counts(spec.loader.name, spec.loader.path):
            spec.loader = AsRead(spec.loader.name, spec.loader.path)
        return spec


def _counts(module: str, file: str) -> bool:
    """Return whether a module is the package's, or one of the study that is loaded."""
    if module.partition(".")[0] == PACKAGE:
        return True
    if _folder is None or not INSTALLED.isdisjoint(file.split(os.sep)):
        return False
    return any(_is_within(os.path.realpath(file), own) for own in _own)


def import_as_read() -> None:
    """Import modules of the package, and of a study, from the bytes that are digested."""
    if not any(isinstance(finder, _AsRead) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AsRead())


_folder: Path | None = None  # of the study.py that is loaded
_modules: set[str] = set()  # files that were imported from beside a study.py
_allowed: set[tuple[str, str]] = set()  # files that were read already, each with the stage
_made: set[str] = set()  # files that study.py has written itself, in this process
_own: tuple[str, ...] = ()  # study.py and the files and folders listed with it, behind links too
_thread = threading.local()
_hooked = False


def watch(folder: Path | None, modules: Sequence[Path] = ()) -> None:
    """Let the study.py of a folder import its modules, and refuse whatever it reads unlisted; None: stop.

    modules: of `study_modules`.
    """
    global _folder, _hooked, _own
    folder = None if folder is None else folder.resolve()
    if folder != _folder:
        forget_modules()
    _folder = folder
    _allowed.clear()
    if _folder is None:
        return
    own = [FILE, *map(str, modules), *(each for each in dependencies(CODE, _folder) if each != PACKAGE)]
    _own = tuple({f(_folder / each): None for each in own for f in (os.path.abspath, os.path.realpath)})
    _modules.update(str(_folder / module) for module in modules)
    import_as_read()
    if not _hooked:
        sys.addaudithook(_on_event)
        _hooked = True


def forget_modules() -> None:
    """Remove the modules beside a study.py from sys.modules: they may have changed, or be another study's."""
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) in _modules:
            del sys.modules[name]


@contextmanager
def called_by(stage: str | None) -> Iterator[None]:
    """Let study.py read in the block what dvc.yaml lists for this stage, too; None: whatever it likes.

    A stage of the study's own depends on what it reads by its own `deps`, as any stage of DVC.
    """
    before = getattr(_thread, "stage", CODE)
    _thread.stage = stage
    try:
        yield
    finally:
        _thread.stage = before


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise InputError if study.py opens a file that is not listed (a hook of sys.addaudithook)."""
    if event not in ("open", "import") or _folder is None or getattr(_thread, "busy", False):
        return
    file = arguments[0] if event == "open" else arguments[1]  # of an import only that of compiled code
    if not isinstance(file, str | bytes | os.PathLike):
        return
    frame = _frame_of_study(sys._getframe(1))
    if frame is None:
        return
    if event == "open" and _writes(*arguments[1:3]):
        if "w" in str(arguments[1]) or not os.path.isfile(file):
            _made.add(os.path.realpath(os.fsdecode(file)))
        return
    _thread.busy = True
    try:
        _check_read(os.fsdecode(file), frame, getattr(_thread, "stage", CODE))
    finally:
        _thread.busy = False


def _writes(mode: object, flags: object) -> bool:
    if isinstance(mode, str):
        return bool(set(mode) & set("wax"))
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_CREAT))


def _frame_of_study(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of study.py or a file of its own; None if there is none, the package reads
    an official data set for it, or Python reads the lines of a traceback, as PyTorch has it do."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name == linecache.__file__:
            return None
        if any(_is_within(name, own) for own in _own) and not INSTALLED.intersection(name.split(os.sep)):
            return frame
        if name.startswith(OFFICIAL) and not os.path.basename(name).startswith("array"):
            return None
        frame = frame.f_back
    return None


def _check_read(file: str, frame: FrameType, stage: str | None) -> None:
    assert _folder is not None
    if file.endswith(".pyc"):
        try:
            file = source_from_cache(file)
        except ValueError:
            return
    path = os.path.realpath(file)
    if stage is None or path in _made or (path, stage) in _allowed or not os.path.isfile(path):
        return
    if not (
        any(_is_within(path, own) for own in _own)
        or _is_installed(path, str(_folder))
        or (stage not in (CODE, LOOP) and not (_folder / PIPELINE).is_file())  # without DVC these always run
        or is_listed(Path(path), [CODE] if stage == CODE else [CODE, stage], _folder)
    ):
        beside = os.path.relpath(path, _folder)
        shown = path if beside.startswith(os.path.join(*[os.pardir] * 3)) else beside
        shown = os.path.dirname(shown) if os.path.basename(shown) == "__init__.py" else shown
        where = os.path.relpath(frame.f_code.co_filename, _folder)
        raise InputError(
            f"{where}: line {frame.f_lineno}: reads {shown}, whose changes nothing would notice; add the "
            f"line `- {shown}` to the deps of the stage {FETCH if stage == LOOP else stage} in {PIPELINE}"
        )
    _allowed.add((path, stage))


def _is_installed(path: str, folder: str) -> bool:
    """Return whether a file is of the system, of an installed package or of a cache; not in the study."""
    if INSTALLED.intersection(path.split(os.sep)) or _is_within(path, str(PACKAGE_FOLDER)):
        return True
    standard = os.path.realpath(os.path.dirname(os.__file__))
    homes = (*SYSTEM, *CACHES, *map(os.path.realpath, (sys.prefix, sys.base_prefix)))
    homes = tuple(home for home in homes if not _is_within(folder, home))
    return path.startswith(COMPILED) or any(_is_within(path, home) for home in (standard, *homes))
