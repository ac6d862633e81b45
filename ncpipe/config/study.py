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

PARAMS is a frozen dataclass, no table: its fields are further keys of params.yaml (`Params.study_keys`).

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
from collections.abc import Callable, Collection, Iterator, Mapping
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
from ncpipe.config.study_files import CODE, FILE, study_modules
from ncpipe.config.study_reads import called_by, forget_modules, watch
from ncpipe.config.unions import join_unions, values_of
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
Table = Mapping[Any, Any]


@dataclass(frozen=True)
class Study:
    """The tables of a study.py; lines: where its names are defined.

    paths: of the file and of the modules beside it, as tracebacks name them; empty if there is none.
    modules: the file of each of them that is imported, in the study's folder, by the module's name.
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
    lines: Mapping[str, int]
    paths: tuple[str, ...]
    modules: Mapping[str, Path]

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

    def mistake(self, name: str, what: str) -> InputError:
        """Return the error for a mistake, with the line that defines `name`."""
        return InputError(f"{FILE}: line {self.lines.get(name, 1)}: {what}")

    def mistake_of(self, function: object, what: str) -> InputError:
        """Return the error for what a function of a Training does, with its line."""
        name = getattr(function, "__name__", "TRAININGS")
        return self.mistake(name, f"{name} {what}")


NO_STUDY = Study(**{name.lower(): {} for name in TABLES}, params=None, lines={}, paths=(), modules={})
_loaded = NO_STUDY


def loaded() -> Study:
    """Return the study of the params.yaml that was read last."""
    return _loaded


def load_study(folder: Path) -> Study:
    """Run the study.py of a folder, if there is one; raise InputError, in one line, if it fails."""
    global _loaded
    folder = folder.resolve()
    if (folder / FILE).is_file():
        read_again(folder)
        modules = study_modules(read=at_start().content, folder=folder)
        watch(folder, modules)
        paths = [folder / FILE, *(folder / module for module in modules)]
        _loaded = _run(tuple(map(str, paths)), tuple(map(at_start().content, paths)))
    else:
        watch(None)
        _loaded = NO_STUDY
    join_unions(_loaded.records)
    return _loaded


def call(function: Callable[..., Any], *arguments: Any, stage: str = CODE, **named: Any) -> Any:
    """Call a function of study.py; raise InputError, in one line with its line, if it raises.

    stage: whose `deps` in dvc.yaml may list what it reads, besides those of `code`.
    """
    try:
        with called_by(stage):
            return function(*arguments, **named)
    except InputError:
        raise
    except Exception as error:
        begins = getattr(getattr(function, "__code__", None), "co_firstlineno", 1)
        raise _failure(error, *(_last_frame(error, _loaded.paths) or (FILE, begins, ""))) from None


@contextlib.contextmanager
def study_errors() -> Iterator[None]:
    """Convert errors raised in study.py, or below it, into InputErrors (`study_error`)."""
    try:
        yield
    except Exception as error:
        mistake = study_error(error)
        if mistake is None:
            raise
        raise mistake from error


def study_error(error: Exception) -> InputError | None:
    """Return an error raised in study.py, or below it, as one line with its line; None for any other.

    A call with wrong arguments is raised where the call is, so Python's words tell the function:
    `Sine.layers() takes 2 positional arguments but 3 were given`.
    """
    if isinstance(error, InputError):
        return None
    if frame := _last_frame(error, _loaded.paths):
        return _failure(error, *frame)
    called = re.match(r"(\w+)(\.\w+)*\(\) ", str(error)) if isinstance(error, TypeError) else None
    if called and called[1] in _loaded.lines:
        return _failure(error, FILE, _loaded.lines[called[1]], "")
    return None


@functools.cache  # so that unchanged files give the same classes
def _run(paths: tuple[str, ...], sources: tuple[bytes, ...]) -> Study:
    """Run a study.py, the first of the paths; the others are the modules beside it."""
    forget_modules()
    path, source = paths[0], sources[0]
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
        raise _failure(error, *(_last_frame(error, paths) or (FILE, 1, ""))) from None
    tables = {name: getattr(module, name, {}) for name in TABLES}
    own: dict[str, Any] = {name.lower(): table for name, table in tables.items()}
    files = {name: getattr(each, "__file__", None) for name, each in sys.modules.items()}
    folder = os.path.dirname(path)
    modules = {name: Path(os.path.relpath(file, folder)) for name, file in files.items() if file in paths}
    params = getattr(module, PARAMS, None)
    study = Study(**own, params=params, lines=_lines(tree), paths=paths, modules=modules)
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise study.mistake(name, f"{name} is of type {type(table).__name__}; it has to be a dict")
    for name, (base, union) in RECORDS.items():
        _check_specs(study, name, base, union)
    for spec, family in study.networks.items():
        if not (
            callable(getattr(family, "reshape_inputs", None)) and callable(getattr(family, "build", None))
        ):
            raise study.mistake("NETWORKS", f"NETWORKS[{spec.__name__}] is no Family (ncpipe.models.network)")
        if missing := sorted(getattr(family.build, "__abstractmethods__", ())):  # a class, as a rule
            network = family.build.__name__
            raise study.mistake(network, f"{network} lacks {', '.join(missing)}, which a Network defines")
    for spec, training in study.trainings.items():
        if not all(callable(getattr(training, part, None)) for part in ("build", "loaders", "train")):
            what = f"TRAININGS[{spec.__name__}] is no Training (ncpipe.training.own_loop)"
            raise study.mistake("TRAININGS", what)
    for call, functions in study.calls.items():
        pair = isinstance(functions, tuple) and 1 <= len(functions) <= 2 and all(map(callable, functions))
        if not (isinstance(call, str) and pair):
            raise study.mistake("CALLS", f"CALLS[{call!r}] has to be a tuple of one function, or of two")
    for name, stage in study.stages.items():
        _check_stage(study, name, stage)
    if study.params is not None and not _is_frozen_record(study.params):
        raise study.mistake(PARAMS, "PARAMS is no frozen dataclass; its fields are keys of params.yaml")
    for table, keys in (("STARTS", study.starts), ("RUN_COLUMNS", study.columns)):
        for word in keys:
            if not isinstance(word, str) or not word.isidentifier():
                raise study.mistake(table, f"{table} has the key {word!r}, which is no name")
    for name in ("DATA", "LOSSES", "OPTIMIZERS", "METRICS", "FIGURES", "STARTS", "RUN_COLUMNS"):
        for key, function in study.tables[name].items():
            what = f"{name}[{getattr(key, '__name__', getattr(key, 'name', key))}]"
            if not callable(function):
                raise study.mistake(name, f"{what} is of type {type(function).__name__}, no function")
            if name in RECORDS and name in READABLE and (problem := unreadable(function, READABLE[name])):
                raise study.mistake(getattr(function, "__name__", name), f"{what} {problem}")
    return study


def _records_of(union: Any) -> list[type]:
    """Return the records of a union, without names."""
    members: tuple[type, ...] = typing.get_args(union)
    return [member for member in members if is_dataclass(member)]


def _failure(error: BaseException, file: str, line: int, within: str) -> InputError:
    what = " ".join(str(error).split()) or "no message"
    if types.MappingProxyType.__name__ in what:
        what = f"a table of the package cannot be changed ({what}); {PUT_THERE}"
    where = f"{within}: " if within else ""
    return InputError(cut(f"{file}: line {line}: {where}{type(error).__name__}: {what}"))


def _last_frame(error: BaseException, paths: Collection[str]) -> tuple[str, int, str] | None:
    """Return the last line of study.py, or of its modules, in an error's traceback: file, line, class and
    method; or None."""
    frames = traceback.walk_tb(error.__traceback__)
    places = [
        (os.path.basename(frame.f_code.co_filename), line, frame.f_code.co_qualname)
        for frame, line in frames
        if frame.f_code.co_filename in paths
    ]
    if not places:
        return None
    file, line, name = places[-1]
    return file, line, "" if name.startswith("<") else name


def _lines(tree: ast.Module) -> dict[str, int]:
    """Return the line of each name that is defined at the top."""
    lines = {}
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            lines[statement.name] = statement.lineno
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            lines |= {target.id: statement.lineno for target in targets if isinstance(target, ast.Name)}
    return lines


def _check_specs(study: Study, table: str, base: type, union: Any) -> None:
    """Raise InputError unless the keys of a table are valid specs that do not collide with the package's."""
    records = _records_of(union)
    key = _first_key(records[0]) if records else "name"
    taken = {word: "the package" for spec in records for word in values_of(spec, key)}
    for spec in study.tables[table]:
        name = getattr(spec, "__name__", repr(spec))
        if not (isinstance(spec, type) and issubclass(spec, base) and is_dataclass(spec)):
            raise study.mistake(
                name if name in study.lines else table,
                f"{name} in {table} is no spec: make it a frozen dataclass below {base.__name__} "
                f"({base.__module__})",
            )
        if not _is_frozen_record(spec):
            raise study.mistake(name, f"{name} is not frozen; write @dataclass(frozen=True)")
        if isinstance(state := getattr(spec, "state", ()), str):
            raise study.mistake(name, f"the state of {name} is a text; write a tuple: ({state!r},)")
        if _first_key(spec) != key:
            raise study.mistake(name, f"{name} has to begin with the key {key}: Literal[...], its name")
        try:
            words = values_of(spec, key)
            _check_type(spec)
        except (NameError, TypeError) as error:
            raise study.mistake(name, f"an annotation of {name} is no type ({error})") from None
        if not words or not all(isinstance(word, str) for word in words):
            raise study.mistake(name, f"{name}.{key} is no name; write {key}: Literal['...']")
        for word in words:
            if (owner := taken.setdefault(word, name)) != name:
                raise study.mistake(name, f"{key} {word!r} exists already, in {owner}; take another name")
        known = {field.name for field in fields(spec)}
        for required in REQUIRED_ATTRIBUTES[table]:
            if required not in known and not hasattr(spec, required):
                raise study.mistake(name, f"{name} has no {required}; make it a key or a ClassVar")


def _is_frozen_record(kind: object) -> bool:
    """Return whether a value is a frozen dataclass, not an instance of one."""
    return isinstance(kind, type) and is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def _check_stage(study: Study, name: object, stage: object) -> None:
    """Raise InputError unless an entry of STAGES can be run by its name."""
    if problem := name_problem(name):
        raise study.mistake("STAGES", f"the stage {name!r} {problem}")
    if not isinstance(stage, Stage) or not callable(stage.function):
        raise study.mistake("STAGES", f"STAGES[{name!r}] is no Stage of a function; write Stage(FUNCTION)")
    own = getattr(stage.function, "__name__", "STAGES")
    try:
        for kind in stage.options().values():
            _check_type(kind)
    except (NameError, TypeError, ValueError) as error:
        raise study.mistake(own, f"STAGES[{name!r}] {error}") from None


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
        inner = [each for each in arguments if each is not ...]
    elif origin is Literal or kind in (bool, int, float, str, Any, type(None)):
        inner = []
    else:
        raise TypeError(f"{getattr(kind, '__name__', kind)} is no type of a key: use those of ncpipe.study")
    for each in inner:
        _check_type(each)


def _holds_records(kind: Any) -> bool:
    """Return whether a type is a record, or made of some; run.json writes none within a list or dict."""
    return is_dataclass(kind) or any(map(_holds_records, typing.get_args(kind)))
