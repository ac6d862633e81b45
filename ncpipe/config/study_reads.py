"""Import a study's modules as they were digested, and refuse whatever else its code reads.

A hook sees each file that study.py opens, itself or through a library, and ends the command if neither an
import nor dvc.yaml names it: a result must not depend on a file whose changes nothing notices. It works in
every command that runs a study, since no trial before knows what a function reads at a later epoch.
"""

import functools
import linecache
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from importlib.util import source_from_cache
from pathlib import Path
from types import FrameType
from typing import Any

from ncpipe.config.reading import PACKAGE, ROOT, AsRead
from ncpipe.config.study_files import (
    CODE,
    FETCH,
    FILE,
    LOOP,
    MEASURE,
    PIPELINE,
    is_within,
    places,
    readable,
)
from ncpipe.system.errors import InputError

# Files of the system, of installed packages and of their caches: they are not part of a run's identity.
SYSTEM = ("/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sys", "/usr", "/Library", "/System")
HOME = os.path.expanduser("~")
PERSONAL = tuple(os.path.realpath(f"{HOME}/{name}") for name in (".cache", ".config", ".triton"))
COMPILED = os.path.join(os.path.realpath(tempfile.gettempdir()), "torchinductor_")
INSTALLED = {"site-packages", "dist-packages", "__pycache__"}
OFFICIAL = f"{ROOT / PACKAGE / 'datasets'}{os.sep}"  # reads official files, whose MD5 it checks


@dataclass(frozen=True)
class _Watched:
    """Holds what the code of a study may read.

    modules: files beside its study.py that it imports. code: study.py, these, and what is listed with them,
    behind links too. listed: further paths by the stage that calls the code; None for any. system: folders of
    Python and of the system, but for those that the study is in. outputs: what the code has written itself.
    """

    folder: Path
    modules: frozenset[str]
    code: tuple[str, ...]
    listed: Mapping[str, tuple[str, ...] | None]
    system: tuple[str, ...]
    outputs: set[str]

    def may_read(self, file: str, stage: str) -> bool:
        """Return whether the code may read a file when a stage calls it."""
        path, listed = os.path.realpath(file), self.listed[stage]
        if listed is None or path in self.outputs or not os.path.isfile(path) or is_within(path, self.system):
            return True
        if path.startswith(COMPILED) or INSTALLED.intersection(path.split(os.sep)):
            return True
        return any(is_within(place, (*self.code, *listed)) for place in places([Path(file)]))


_watched: _Watched | None = None  # the study that is loaded
_stage: ContextVar[str | None] = ContextVar("stage", default=CODE)  # which calls its code


def watch(folder: Path | None, modules: Sequence[Path] = ()) -> None:
    """Let the study.py of a folder import its modules, and refuse whatever it reads unlisted; None: stop.

    folder: without links. modules: of `study_modules`.
    """
    global _watched
    if _watched and _watched.folder != folder:
        forget_modules()
        _watched = None
    if folder is None:
        return
    paths = [folder / module for module in modules]
    listed = {stage: readable(stage, folder) for stage in (CODE, FETCH, MEASURE, LOOP)}
    python = os.path.dirname(os.__file__), sys.prefix, sys.base_prefix
    homes = (*SYSTEM, *PERSONAL, *map(os.path.realpath, python))
    _watched = _Watched(
        folder,
        frozenset(map(str, paths)) | (_watched.modules if _watched else frozenset()),
        places([folder / FILE, *paths]) + (listed[CODE] or ()),
        listed,
        (str(ROOT / PACKAGE), *(home for home in homes if not is_within(str(folder), [home]))),
        _watched.outputs if _watched else set(),
    )
    import_as_read()
    _add_hook()


@functools.cache  # once: nothing removes a hook
def _add_hook() -> None:
    sys.addaudithook(_on_event)


def forget_modules() -> None:
    """Remove the modules beside a study.py from sys.modules: they may have changed, or be another study's."""
    for name, module in list(sys.modules.items()):
        if _watched and getattr(module, "__file__", None) in _watched.modules:
            del sys.modules[name]


@contextmanager
def called_by(stage: str | None) -> Iterator[None]:
    """Let study.py read in the block what dvc.yaml lists for this stage, too; None: whatever it likes.

    A stage of the study's own depends on what it reads by its own `deps`, as any stage of DVC.
    """
    before = _stage.set(stage)
    try:
        yield
    finally:
        _stage.reset(before)


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise InputError if study.py opens a file that is not listed (a hook of sys.addaudithook)."""
    if event not in ("open", "import") or _watched is None:
        return
    file = arguments[0] if event == "open" else arguments[1]  # of an import only that of compiled code
    if not isinstance(file, str | bytes | os.PathLike):
        return
    frame = _frame_of_study(sys._getframe(1))
    if frame is None:
        return
    name = os.fsdecode(file)
    if event == "open" and _writes(*arguments[1:3]):
        if "w" in str(arguments[1]) or not os.path.isfile(name):
            _watched.outputs.add(os.path.realpath(name))
        return
    if name.endswith(".pyc"):
        try:
            name = source_from_cache(name)
        except ValueError:
            return
    stage = _stage.get()
    if stage is not None and not _watched.may_read(name, stage):
        path = os.path.realpath(name)
        beside = os.path.relpath(path, _watched.folder)
        shown = path if beside.startswith(os.path.join(*[os.pardir] * 3)) else beside
        shown = os.path.dirname(shown) if os.path.basename(shown) == "__init__.py" else shown
        where = os.path.relpath(frame.f_code.co_filename, _watched.folder)
        raise InputError(
            f"{where}: line {frame.f_lineno}: reads {shown}, whose changes nothing would notice; add the "
            f"line `- {shown}` to the deps of the stage {FETCH if stage == LOOP else stage} in {PIPELINE}"
        )


def _writes(mode: object, flags: object) -> bool:
    if isinstance(mode, str):
        return bool(set(mode) & set("wax"))
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_CREAT))


def is_of_study(file: str) -> bool:
    """Return whether a file is code of the study that is loaded."""
    installed = INSTALLED.intersection(file.split(os.sep))
    return _watched is not None and is_within(file, _watched.code) and not installed


def _frame_of_study(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the study's code; None if there is none, the package reads an official
    data set for it, or Python reads the lines of a traceback, as PyTorch has it do."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name == linecache.__file__:
            return None
        if is_of_study(name):
            return frame
        if name.startswith(OFFICIAL) and not os.path.basename(name).startswith("array"):
            return None
        frame = frame.f_back
    return None


class _AsRead(MetaPathFinder):
    """Finds modules as the other finders do, and has the package's and the study's imported as read.

    Those beside study.py are found first, as Python does for a script; never one of the standard library.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        spec = None
        if _watched and path is None and name != PACKAGE and name not in sys.stdlib_module_names:
            spec = FileFinder(str(_watched.folder), (AsRead, [".py"])).find_spec(name)
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
    return INSTALLED.isdisjoint(file.split(os.sep)) and is_of_study(os.path.realpath(file))


def import_as_read() -> None:
    """Import modules of the package, and of a study, from the bytes that are digested."""
    if not any(isinstance(finder, _AsRead) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AsRead())
