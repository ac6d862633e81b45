"""Digest the code that a result depends on, by stage, as DVC and the store compare it.

A stage counts every room of the package up to its own, and its module of `ncpipe.commands`. An experiment's
stage also counts the files of a study that define the entries which the experiment picks from study.py's
tables, and all that these files import; a sweep's stage counts all of the study. A file's digest is of its
syntax tree: comments, docstrings and layout do not count. Other files that dvc.yaml lists for the stage
`code` count for every stage; `ncpipe.config.study_reads` refuses whatever else a study reads. Data count by
their checksums. Of other packages, neither files nor versions count.

Digests are of the files as this process first read them and runs them (`ncpipe.config.reading`): an edit
while a command runs does not change them. A new `Reading` has the files as they are now.
"""

import ast
import functools
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ncpipe.config.experiment import Experiment
from ncpipe.config.reading import PACKAGE, ROOT, Reading, at_start
from ncpipe.config.stages import Stage
from ncpipe.config.study import PARTS, Study, file_of
from ncpipe.config.study_files import CODE, FILE, PIPELINE, listed_digests, parsed, study_modules
from ncpipe.runs.study_effect import IMPORTERS, names_in, study_effect
from ncpipe.system.artifacts import digest_of
from ncpipe.system.errors import InputError

# The rooms of the package, each before those that import from it. The room `runs` decides which runs train,
# when and where, and keeps them; what decides a run's numbers needs only the format of its folder.
ROOMS = (
    *("system", "config", "datasets", "models", "training", "runs/run_folder", "metrics", "theory"),
    *("features", "tables", "claims", "figures", "report", "runs", "integrations", "papers", "commands"),
)
# The last room that a stage counts: stages of the whole sweep, then of an experiment.
SWEEP_STAGES: Mapping[str, str] = MappingProxyType(
    {"grid": "metrics", "aggregate": "tables", "plot": "figures", "claims": "figures", "report": "commands"}
)
EXPERIMENT_STAGES: Mapping[str, str] = MappingProxyType(
    {"fetch": "datasets", "extract": "features", "measure": "features"}
)
TRAIN, TRAINED = "train", "runs/run_folder"
FETCHED = ("DATA", "TRAININGS")  # the tables whose entries the stage fetch calls
TEMPLATES = "report/templates"  # every byte of these counts
ALL = object()  # the entries of a stage that counts all of the study
CONSTANTS = (type(None), bool, int, float, str, bytes)


class Names(NamedTuple):
    """Holds the names that a module imports from modules of the package, and all its names."""

    imports: tuple[tuple[str, str], ...]
    all: frozenset[str]


def sweep_digests() -> dict[str, dict[str, str]]:
    """Return the digests of the stages that run once for a sweep, by stage and by room or file."""
    return {stage: _stage(last, ALL, at_start(), stage) for stage, last in SWEEP_STAGES.items()}


def experiment_digests(spec: Experiment, study: Study) -> dict[str, dict[str, str]]:
    """Return the digests of an experiment's stages, `train` among them, by stage and by room or file."""
    picked = picked_entries(spec)
    entries: dict[str, object] = {
        "fetch": {table: entry for table, entry in picked.items() if table in FETCHED},
        "measure": (picked, study.metrics, study.run_columns),
    }
    stages = {
        stage: _stage(last, entries.get(stage, picked), at_start(), stage)
        for stage, last in EXPERIMENT_STAGES.items()
    }
    return stages | {TRAIN: training_digests(spec, study, at_start())}


def stage_digests(stage: Stage, study: Study, spec: Experiment | None = None) -> dict[str, str]:
    """Return the digests of a stage of the study's own, by room or file; spec: of the experiment it runs for.

    Its measurements may be of the study's own metrics.
    """
    entries = stage, stage.function.__qualname__
    if spec is None:
        return _stage("system", entries, at_start())
    return _stage("system", (*entries, picked_entries(spec), study.metrics), at_start())


def training_digests(spec: Experiment, study: Study, reading: Reading) -> dict[str, str]:
    """Return the digests of the code that decides a run's numbers, by room or file."""
    start = study.starts.get(getattr(spec, "start", None))
    return _stage(TRAINED, picked_entries(spec) if start is None else (picked_entries(spec), start), reading)


def picked_entries(spec: Experiment) -> dict[str, tuple[type, object]]:
    """Return the entries of study.py's tables that an experiment picks, each with its record, by table."""
    parts = {table: getattr(spec, part, None) for part, table in PARTS.items()}
    entries = {table: getattr(part, "study_entry", None) for table, part in parts.items()}
    return {table: (type(parts[table]), entry) for table, entry in entries.items() if entry is not None}


def _stage(last: str, entries: object, reading: Reading, module: str = "") -> dict[str, str]:
    """Return the digests of the rooms up to a last one, of a command's module and of what entries need."""
    study, reached = _of_study(entries, reading)
    rooms = [*ROOMS[: 1 + max(ROOMS.index(last), reached)]]
    if module:
        rooms.append(f"commands/{module}")
    return {f"{PACKAGE}/{room}": _room(room, reading) for room in rooms} | study


def _room(room: str, reading: Reading) -> str:
    """Return the digest of a room, or of one module."""
    if room not in reading.digests:
        start = f"{PACKAGE}/{room}"
        files = package_files(reading).items()
        in_room = {name: path for name, path in files if name.startswith((f"{start}/", f"{start}.py"))}
        reading.digests[room] = digest_of({name: _digest(path, reading) for name, path in in_room.items()})
    return reading.digests[room]


def _digest(path: Path, reading: Reading) -> str:
    content = reading.content(path)
    return module_digest(content) if path.suffix == ".py" else hashlib.sha256(content).hexdigest()


def _of_study(entries: object, reading: Reading) -> tuple[dict[str, str], int]:
    """Return the digests of what entries need of a study and of papers, and the last room that they need.

    The files that define the entries count, and what these import; the entries' constants have a digest
    together. All of the study counts if it does more than define, or if an entry holds another object.
    """
    if not Path(FILE).is_file():
        return {}, 0
    parts = [] if entries is ALL else list(_parts(entries))
    whole = entries is ALL or study_effect(reading, shared=bool(parts)) is not None
    homes, constants = set[Path | tuple[str, str]](), []
    for part in () if whole else parts:
        module = getattr(part, "__module__", None) if callable(part) else None
        if isinstance(part, CONSTANTS):
            constants.append(part)
        elif isinstance(module, str):
            file = file_of(module)
            homes.add(Path(os.path.relpath(file)) if file else (module, ""))
        else:
            whole = True
    files = [Path(FILE)] if whole else [home for home in homes if isinstance(home, Path)]
    digests, last = _followed([*homes, *files, *study_modules(files, reading.content)], reading)
    values = {} if whole else {"constants": hashlib.sha256(repr(constants).encode()).hexdigest()}
    # Modules are listed only so that DVC looks at them.
    modules = {path.as_posix() for path in study_modules(read=reading.content)}
    listed = listed_digests(reading, CODE)
    others = {name: digest for name, digest in listed.items() if name not in modules}
    return others | digests | values, last


def _parts(entry: object) -> Iterator[object]:
    """Yield the functions, classes, constants and other objects that an entry is made of."""
    if is_dataclass(entry) and not isinstance(entry, type):
        entry = type(entry), *(getattr(entry, field.name) for field in fields(entry))
    if isinstance(entry, Mapping):
        entry = *entry, *entry.values()
    if isinstance(entry, list | tuple):
        for part in entry:
            yield from _parts(part)
    else:
        yield entry


def _followed(homes: Iterable[Path | tuple[str, str]], reading: Reading) -> tuple[dict[str, str], int]:
    """Return the digests of files and of the modules of papers that they import, and the last room imported.

    homes: files, and imports of modules, each with a name.
    """
    todo, digests, last = list(homes), dict[str, str](), 0
    while todo:
        home = todo.pop()
        if isinstance(home, tuple):
            room = _room_of(*home)
            if room == "papers":
                todo += _files_of(*home)
            elif room in ROOMS:
                last = max(last, ROOMS.index(room))
        elif (name := _name(home)) not in digests:
            content = reading.content(home)
            digests[name], names = module_digest(content), module_names(content)
            todo += names.imports
            if not home.is_absolute() and names.all & IMPORTERS:  # a study's, which may import by a text
                last = len(ROOMS) - 1
    return dict(sorted(digests.items())), last


def _room_of(module: str, name: str) -> str:
    """Return the room that `from module import name` imports from; the last one where it does not tell."""
    package, _, inside = module.partition(".")
    if package != PACKAGE:
        return ""
    room = (inside or name).partition(".")[0]
    if (ROOT / PACKAGE / room).is_dir() and room:
        return room
    offering = ROOT / PACKAGE / f"{inside or '__init__'}.pyi"  # names for users
    if offering.is_file():
        for source, offered in module_names(offering.read_bytes()).imports:
            if offered == name:
                return _room_of(source, name)
    return ROOMS[-1]


def _files_of(module: str, name: str) -> list[Path]:
    """Return the files of the package that `from module import name` runs."""
    parts = [*module.split("."), *filter(None, [name])]
    stems = [ROOT.joinpath(*parts[:end]) for end in range(3, len(parts) + 1)]
    files = (file for stem in stems for file in (stem.with_suffix(".py"), stem / "__init__.py"))
    return [file for file in files if file.is_file()]


def _name(path: Path) -> str:
    return (path.relative_to(ROOT) if path.is_relative_to(ROOT) else path).as_posix()


@functools.cache  # by content, so that it never needs to be forgotten
def module_digest(content: bytes) -> str:
    """Return the digest of a module's syntax tree."""
    return hashlib.sha256(_dumped(parsed(content)).encode()).hexdigest()


@functools.cache
def module_names(content: bytes) -> Names:
    """Return the names of a module, apart from its digest: those of the package's modules are not needed."""
    tree = parsed(content)
    imports = set[tuple[str, str]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= {(alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imports |= {(node.module or "", alias.name) for alias in node.names}
    ours = sorted(pair for pair in imports if pair[0].partition(".")[0] == PACKAGE)
    return Names(tuple(ours), frozenset(names_in(tree)))


def _dumped(node: object) -> str:
    """Return a syntax tree as text without docstrings and empty fields, as in every version of Python."""
    if isinstance(node, ast.AST):
        texts = []
        for name in node._fields:
            value = getattr(node, name, None)
            if name != "ctx" and value is not None and value != []:
                texts.append(f"{name}={_dumped(value)}")
        return f"{type(node).__name__}({','.join(texts)})"
    if isinstance(node, list):
        return f"[{','.join([_dumped(part) for part in node if not _is_docstring(part)])}]"
    return repr(node)


def _is_docstring(node: object) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def files_digest() -> str:
    """Return the digest of every byte of the files that digests depend on, comments included."""
    files = package_files(at_start()) | {path.as_posix(): path for path in _study_files()}
    contents = {name: hashlib.sha256(at_start().content(path)).hexdigest() for name, path in files.items()}
    return digest_of([contents, _listed()])


def code_contents() -> dict[str, bytes]:
    """Return the code as it was first read, by paths in a folder that has all of it.

    The code is the package's files, study.py and its modules, the files listed with them and dvc.yaml. Raises
    InputError if a file lies outside the study's folder.
    """
    study = {path.as_posix(): at_start().content(path) for path in _study_files()}
    study |= {name: Path(name).read_bytes() for name in _listed()}
    for name in study:
        if not Path(os.path.normpath(name)).resolve().is_relative_to(Path.cwd()):
            raise InputError(f"{name}: lies outside the study's folder, so jobs cannot have a copy")
    if study and PIPELINE.is_file():
        study[PIPELINE.name] = at_start().content(PIPELINE)
    return {name: at_start().content(path) for name, path in package_files(at_start()).items()} | study


def package_files(reading: Reading) -> dict[str, Path]:
    """Return the package's modules, stubs and page templates, as a reading first listed them."""
    if not reading.package:
        package = ROOT / PACKAGE
        paths = sorted([*package.rglob("*.py"), *package.glob("*.pyi"), *(package / TEMPLATES).glob("*.*")])
        named = {_name(path): path for path in paths}
        # Those with a dot before their name are of an editor or of the system.
        reading.package |= {name: path for name, path in named.items() if "/." not in f"/{name}"}
    return reading.package


def _study_files() -> list[Path]:
    """Return study.py, if there is one, and its modules."""
    study = Path(FILE)
    return [study, *study_modules(read=at_start().content)] if study.is_file() else []


def _listed() -> dict[str, str]:
    """Return the digests of the files that dvc.yaml lists for study.py, if there is one."""
    return listed_digests(at_start(), CODE) if Path(FILE).is_file() else {}


for _path in package_files(at_start()).values():  # now, all at once: not some before an edit and some after
    at_start().content(_path)
