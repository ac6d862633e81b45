"""Load study.py beside params.yaml: networks, data sets, losses, optimizers, metrics and training loops.

Like conftest.py for pytest, it is code of the study, run by every command that reads params.yaml. It may hold
these tables:

NETWORKS  spec -> Family, as `ncpipe.models.network` has it, or Hooked (`ncpipe.training.hooked`); a spec is a
          frozen dataclass below OwnModel
DATA      spec -> function of the spec that gives arrays by name, those of a file for `source: arrays`; a spec
          is a frozen dataclass below OwnData
LOSSES    spec -> function of what it names (`ncpipe.config.arguments`); a spec is a frozen dataclass below
          OwnLoss
OPTIMIZERS  the same, below OwnOptimizer
TRAININGS  spec -> Training, as `ncpipe.training.own_loop` has it; a spec is a frozen dataclass below
          OwnTraining
METRICS   entry, as `ncpipe.metrics.catalogue` has it -> function of what it names
CALLS     name -> functions of the arguments of a claim with `quantity: theory`: the number, and optionally
          the same number computed in another way
FIGURES   name -> function of `table`, which returns a table of data/results by its name; returns a Figure
STAGES    name -> Stage (`ncpipe.config.stages`), which `ncpipe stage NAME` runs
STARTS    name -> function of (run, data) that gives the initial weights of a network by name
RUN_COLUMNS  name -> function of a TrainedRun (`ncpipe.features.trained_run`) that gives its value in this
          column of runs.csv; or a tuple of names -> a function that gives a dict of their values

PARAMS is a frozen dataclass, no table: its fields are further keys of params.yaml.

params.yaml may then use the values of a spec's first key (`architecture`, `source`, `name`), the metric's
name, and a start's name as `start`. `ncpipe.study` has what an entry may import.
"""

import ast
import contextlib
import functools
import os
import re
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from ncpipe.config.architectures.architecture import Architecture
from ncpipe.config.arguments import READABLE, unreadable
from ncpipe.config.experiment import Data, Model
from ncpipe.config.loss_specs import Loss
from ncpipe.config.optimizer_specs import Optimizer
from ncpipe.config.reading import at_start, read_again, show_lines
from ncpipe.config.specs import OwnData, OwnLoss, OwnOptimizer, OwnTraining
from ncpipe.config.stages import Stage, name_problem
from ncpipe.config.study_files import CODE, FILE, parsed, study_modules
from ncpipe.config.study_reads import called_by, forget_modules, is_of_study, watch
from ncpipe.config.unions import join, values_of
from ncpipe.system.errors import InputError, cut

MODULE = "study"
TABLES = (
    *("NETWORKS", "DATA", "LOSSES", "OPTIMIZERS", "TRAININGS", "METRICS", "CALLS", "FIGURES"),
    *("STAGES", "STARTS", "RUN_COLUMNS"),
)
PARAMS = "PARAMS"
# Tables whose keys are records: the base of these, and the package's union that they join.
RECORDS: Mapping[str, tuple[type, Any]] = {
    "NETWORKS": (Architecture, Model),
    "DATA": (OwnData, Data),
    "LOSSES": (OwnLoss, Loss),
    "OPTIMIZERS": (OwnOptimizer, Optimizer),
    "TRAININGS": (OwnTraining, OwnTraining),  # the package has none
}
# Those that params.yaml picks from, by the part of an experiment that names an entry.
PARTS: Mapping[str, str] = {
    "model": "NETWORKS",
    "data": "DATA",
    "loss": "LOSSES",
    "optimizer": "OPTIMIZERS",
    "training": "TRAININGS",
}
PUT_THERE = f"put your entries into {', '.join(TABLES[:-1])} or {TABLES[-1]} of {FILE}"
REQUIRED_ATTRIBUTES = {  # of a spec, as a key or a ClassVar
    "NETWORKS": ("norm", "initialisation", "last_bias"),
    "DATA": ("kind",),
    "LOSSES": (),
    "OPTIMIZERS": ("learning_rate",),
    "TRAININGS": ("epochs",),
}
ENTRIES = {  # of a table that takes no function: the entry's class, and the functions that it has
    "NETWORKS": ("Family (ncpipe.models.network)", ("reshape_inputs", "build")),
    "TRAININGS": ("Training (ncpipe.training.own_loop)", ("build", "loaders", "train")),
}
Table = Mapping[Any, Any]


@dataclass(frozen=True, eq=False)
class Study:
    """The tables of a study.py.

    files: path and content of study.py, first, and of the modules beside it. modules: of these files, those
    that are imported, by name.
    """

    networks: Table
    data: Table
    losses: Table
    optimizers: Table
    trainings: Table
    metrics: Table
    calls: Table
    figures: Table
    stages: Mapping[str, Stage]
    starts: Table
    run_columns: Table
    params: type | None
    files: tuple[tuple[str, bytes], ...]
    modules: Mapping[str, types.ModuleType]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the files: another process has its own tables, whose functions may have no name."""
        return _run, (self.files,)

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables by name."""
        return {name: getattr(self, name.lower()) for name in TABLES}

    @property
    def columns(self) -> tuple[object, ...]:
        """The names of the columns that RUN_COLUMNS adds."""
        keys = (key if isinstance(key, tuple) else (key,) for key in self.run_columns)
        return tuple(name for names in keys for name in names)

    @property
    def records(self) -> tuple[tuple[type, type], ...]:
        """The specs, each behind a record of the package whose union it joins."""
        return tuple(
            (next(iter(_records_of(union)), union), spec)
            for name, (_, union) in RECORDS.items()
            for spec in self.tables[name]
        )


NO_STUDY = Study(**{name.lower(): {} for name in TABLES}, params=None, files=(), modules={})


def file_of(module: str) -> str:
    """Return the file of a module of the study that is loaded; '' for any other."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return file if is_of_study(file) else ""


def mistake(part: object, problem: str, table: str = "") -> InputError:
    """Return the error for a mistake, with the line where a study defines the part.

    part: a function, a class or an object of one, or the name of a table. table: whose line it has if the
    study does not define the part; without one, that has no line.
    """
    definition: Any = part if hasattr(part, "__qualname__") else type(part)
    file, name = file_of(definition.__module__), definition.__name__
    line = getattr(getattr(definition, "__code__", None), "co_firstlineno", 1)
    if not file and (table := table or (part if isinstance(part, str) else "")):
        file, name, line = file_of(MODULE), table, 1
    where = f"{os.path.basename(file)}: line {_lines(file).get(name, line)}: " if file else ""
    return InputError(cut(f"{where}{problem}"))


def mistake_of(function: object, problem: str) -> InputError:
    """Return the error for what a function of a study does, with its name and line."""
    return mistake(function, f"{getattr(function, '__name__', type(function).__name__)} {problem}")


def load_study(folder: Path) -> Study:
    """Run the study.py of a folder, if there is one; raise InputError, in one line, if it fails.

    Its specs join the unions of params.yaml, and its metrics those that tables and figures know by name.
    """
    folder = folder.resolve()
    if (folder / FILE).is_file():
        read_again(folder)
        modules = study_modules(read=at_start().content, folder=folder)
        watch(folder, modules)
        paths = [folder / FILE, *(folder / module for module in modules)]
        study = _run(tuple((str(path), at_start().content(path)) for path in paths))
    else:
        watch(None)
        sys.modules.pop(MODULE, None)
        study = NO_STUDY
    sys.modules.update(study.modules)
    for name in RECORDS:
        for spec, entry in study.tables[name].items():
            spec.study_entry = staticmethod(entry)  # which no instance binds as its method
    join(study.records, study.metrics)
    return study


def call(function: Callable[..., Any], *arguments: Any, stage: str = CODE, **keywords: Any) -> Any:
    """Call a function of study.py; raise InputError, in one line with its line, if it raises.

    stage: whose `deps` in dvc.yaml may list what it reads, besides those of `code`.
    """
    try:
        with called_by(stage):
            return function(*arguments, **keywords)
    except InputError:
        raise
    except Exception as error:
        begins = getattr(getattr(function, "__code__", None), "co_firstlineno", 1)
        raise _failure(error, *(_last_frame(error) or (FILE, begins, ""))) from None


@contextlib.contextmanager
def study_errors() -> Iterator[None]:
    """Convert errors raised in study.py, or below it, into InputErrors (`study_error`)."""
    try:
        yield
    except Exception as error:
        if (translated := study_error(error)) is None:
            raise
        raise translated from error


def study_error(error: Exception) -> InputError | None:
    """Return an error raised in study.py, or below it, as one line with its line; None for any other.

    A call with wrong arguments is raised where the call is, so Python's words tell the function:
    `Sine.layers() takes 2 positional arguments but 3 were given`.
    """
    if isinstance(error, InputError):
        return None
    if frame := _last_frame(error):
        return _failure(error, *frame)
    called = re.match(r"(\w+)(\.\w+)*\(\) ", str(error)) if isinstance(error, TypeError) else None
    if called and (line := _lines(file_of(MODULE)).get(called[1])):
        return _failure(error, FILE, line, "")
    return None


@functools.cache  # so that unchanged files give the same classes
def _run(files: tuple[tuple[str, bytes], ...]) -> Study:
    """Run a study.py, the first of the files; the others are the modules beside it."""
    if not files:
        return NO_STUDY
    forget_modules()
    path, source = files[0]
    module = types.ModuleType(MODULE)
    module.__file__ = path
    sys.modules[MODULE] = module  # where dataclasses look their own module up
    try:
        tree = ast.parse(source, path)
        show_lines(path, source)
        exec(compile(tree, path, "exec"), module.__dict__)
    except SyntaxError as error:
        where = os.path.basename(error.filename or FILE)
        raise InputError(f"{where}: line {error.lineno}: {error.msg}") from None
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise _failure(error, *(_last_frame(error) or (FILE, 1, ""))) from None
    tables: dict[str, Any] = {name.lower(): getattr(module, name, {}) for name in TABLES}
    paths = {path for path, _ in files}
    modules = {name: other for name, other in sys.modules.items() if getattr(other, "__file__", "") in paths}
    study = Study(**tables, params=getattr(module, PARAMS, None), files=files, modules=modules)
    _check_tables(study)
    return study


def _check_tables(study: Study) -> None:
    """Raise InputError for the first entry that its table cannot have."""
    for name, table in study.tables.items():
        if not isinstance(table, dict):
            raise mistake(name, f"{name} is of type {type(table).__name__}; it has to be a dict")
    for name, (base, union) in RECORDS.items():
        _check_specs(study.tables[name], name, base, union)
    for name, (kind, functions) in ENTRIES.items():
        for spec, entry in study.tables[name].items():
            if not all(callable(getattr(entry, function, None)) for function in functions):
                raise mistake(name, f"{name}[{spec.__name__}] is no {kind}")
    for family in study.networks.values():
        if missing := sorted(getattr(family.build, "__abstractmethods__", ())):  # a class, as a rule
            raise mistake_of(family.build, f"lacks {', '.join(missing)}, which a Network defines")
    for call, functions in study.calls.items():
        pair = isinstance(functions, tuple) and 1 <= len(functions) <= 2 and all(map(callable, functions))
        if not (isinstance(call, str) and pair):
            raise mistake("CALLS", f"CALLS[{call!r}] has to be a tuple of one function, or of two")
    for name, stage in study.stages.items():
        _check_stage(name, stage)
    if study.params is not None and not _is_frozen_record(study.params):
        raise mistake(PARAMS, "PARAMS is no frozen dataclass; its fields are keys of params.yaml")
    for name, keys in (("STARTS", study.starts), ("RUN_COLUMNS", study.columns)):
        for word in keys:
            if not isinstance(word, str) or not word.isidentifier():
                raise mistake(name, f"{name} has the key {word!r}, which is no name")
    for name in ("DATA", "LOSSES", "OPTIMIZERS", "METRICS", "FIGURES", "STARTS", "RUN_COLUMNS"):
        for key, function in study.tables[name].items():
            entry = f"{name}[{getattr(key, '__name__', getattr(key, 'name', key))}]"
            if not callable(function):
                raise mistake(name, f"{entry} is of type {type(function).__name__}, no function")
            if name in RECORDS and name in READABLE and (problem := unreadable(function, READABLE[name])):
                raise mistake(function, f"{entry} {problem}", name)


def _records_of(union: Any) -> list[type]:
    """Return the records of a union, without names."""
    members: tuple[type, ...] = typing.get_args(union)
    return [member for member in members if is_dataclass(member)]


def _failure(error: BaseException, file: str, line: int, within: str) -> InputError:
    message = " ".join(str(error).split()) or "no message"
    if types.MappingProxyType.__name__ in message:
        message = f"a table of the package cannot be changed ({message}); {PUT_THERE}"
    where = f"{within}: " if within else ""
    return InputError(cut(f"{file}: line {line}: {where}{type(error).__name__}: {message}"))


def _last_frame(error: BaseException) -> tuple[str, int, str] | None:
    """Return the last line of study.py, or of its modules, in an error's traceback: file, line, class and
    method; or None."""
    frames = traceback.walk_tb(error.__traceback__)
    places = [
        (os.path.basename(frame.f_code.co_filename), line, frame.f_code.co_qualname)
        for frame, line in frames
        if is_of_study(frame.f_code.co_filename)
    ]
    if not places:
        return None
    file, line, name = places[-1]
    return file, line, "" if name.startswith("<") else name


def _lines(file: str) -> dict[str, int]:
    """Return the line of each name that is defined at the top of a file of the study."""
    lines = {}
    for statement in parsed(at_start().content(Path(file))).body if file else ():
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            lines[statement.name] = statement.lineno
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            lines |= {target.id: statement.lineno for target in targets if isinstance(target, ast.Name)}
    return lines


def _check_specs(specs: Table, table: str, base: type, union: Any) -> None:
    """Raise InputError unless the keys of a table are valid specs that do not collide with the package's."""
    records = _records_of(union)
    key = _first_key(records[0]) if records else "name"
    owners = {word: "the package" for spec in records for word in values_of(spec, key)}
    for spec in specs:
        name = getattr(spec, "__name__", repr(spec))
        if not (isinstance(spec, type) and issubclass(spec, base) and is_dataclass(spec)):
            advice = f"make it a frozen dataclass below {base.__name__} ({base.__module__})"
            raise mistake(spec, f"{name} in {table} is no spec: {advice}", table)
        if not _is_frozen_record(spec):
            raise mistake_of(spec, "is not frozen; write @dataclass(frozen=True)")
        if isinstance(state := getattr(spec, "state", ()), str):
            raise mistake(spec, f"the state of {name} is a text; write a tuple: ({state!r},)")
        if _first_key(spec) != key:
            raise mistake_of(spec, f"has to begin with the key {key}: Literal[...], its name")
        try:
            words = values_of(spec, key)
            _check_type(spec)
        except (NameError, TypeError) as error:
            raise mistake(spec, f"an annotation of {name} is no type ({error})") from None
        if not words or not all(isinstance(word, str) for word in words):
            raise mistake(spec, f"{name}.{key} is no name; write {key}: Literal['...']")
        for word in words:
            if (owner := owners.setdefault(word, name)) != name:
                raise mistake(spec, f"{key} {word!r} exists already, in {owner}; take another name")
        for required in REQUIRED_ATTRIBUTES[table]:
            if required not in spec.__dataclass_fields__ and not hasattr(spec, required):
                raise mistake_of(spec, f"has no {required}; make it a key or a ClassVar")


def _is_frozen_record(kind: object) -> bool:
    """Return whether a value is a frozen dataclass, not an instance of one."""
    return isinstance(kind, type) and is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def _check_stage(name: object, stage: object) -> None:
    """Raise InputError unless an entry of STAGES can be run by its name."""
    if problem := name_problem(name):
        raise mistake("STAGES", f"the stage {name!r} {problem}")
    if not isinstance(stage, Stage) or not callable(stage.function):
        raise mistake("STAGES", f"STAGES[{name!r}] is no Stage of a function; write Stage(FUNCTION)")
    try:
        for kind in stage.options().values():
            _check_type(kind)
    except (NameError, TypeError, ValueError) as error:
        raise mistake(stage.function, f"STAGES[{name!r}] {error}", "STAGES") from None


def _first_key(spec: Any) -> str:
    return next((field.name for field in fields(spec)), "")


def _check_type(kind: Any) -> None:
    """Raise TypeError unless a key of params.yaml may have this type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        inner = [hints[field.name] for field in fields(kind)]
    elif origin is Annotated:
        inner = [arguments[0]]
    elif origin in (typing.Union, types.UnionType) and sum(map(is_dataclass, arguments)) > 1:
        raise TypeError("a union of records has no key: write Annotated[A | B, TaggedBy('key')]")
    elif origin in (tuple, dict) and any(map(_holds_records, arguments)):
        raise TypeError("a list or dict of records cannot be a key: take lists of numbers or texts")
    elif origin in (tuple, dict, typing.Union, types.UnionType):
        inner = [argument for argument in arguments if argument is not ...]
    elif origin is Literal or kind in (bool, int, float, str, Any, type(None)):
        inner = []
    else:
        raise TypeError(f"{getattr(kind, '__name__', kind)} is no type of a key: use those of ncpipe.study")
    for part in inner:
        _check_type(part)


def _holds_records(kind: Any) -> bool:
    """Return whether a type is a record, or made of some; run.json writes none within a list or dict."""
    return is_dataclass(kind) or any(map(_holds_records, typing.get_args(kind)))
