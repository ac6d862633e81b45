"""Digest the code that a result depends on: the definitions that a function reaches, by syntax trees.

The unit is a definition at the top of a module: a function, a class, a constant. Every name in a function
leads to its definition, across modules, until nothing new is found. Comments, docstrings, layout, error
messages and annotations are not digested. Annotations are followed, because the type of an object shows
which methods it has.

A choice of params.yaml (architecture, source of the data, loss) selects one entry of a table or one member of
a union, so that a new entry changes nothing for the others.

Digests are conservative: they may rerun too much, never too little. A class counts with all its methods, and
a name counts for everything that it may refer to. If any definition of a module counts, so do all effects of
importing the module (loops, assignments to attributes, decorators of the package). Lookups that syntax does
not show (getattr on a module, importlib) would be missed; the package has none, and a test compares with the
functions that really run. Of other packages, the names in use count, but not the versions. Data count by
their checksums.

A study.py may hold any Python. If it is in plain form (`ncpipe.runs.plain_form`), an experiment's part of it
is what the entries of its tables reach. Otherwise the whole file and the whole package count for every
experiment. Modules beside it that it imports count, and so do the files that dvc.yaml lists for the stage
`code`; `ncpipe.config.study_files` refuses whatever else it reads.

Digests are of the files as this process first read them, the package's as this module is imported: an edit
while a command runs does not change them. `read_anew` digests the files as they are now.
"""

import ast
import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from ncpipe.config.choices import PICKED_BY, STUDY, STUDY_TABLES, TABLES, Choices, Definition
from ncpipe.config.study_files import PACKAGE, PIPELINE, listed_files, study_modules
from ncpipe.runs.plain_form import Rules, Violation, first_violation
from ncpipe.system.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
READ_ONLY = "MappingProxyType"  # around a table of the package; it does not change the digest
ALL = "*"  # instead of a name: all definitions of the module
EFFECTS = "<import>"  # effects of importing a module, besides definitions

ANNOTATIONS = ("annotation", "returns")
NOT_COUNTED = frozenset((*ANNOTATIONS, "simple", "ctx", "kind", "type_comment", "type_params"))
IMPORTS = (ast.Import, ast.ImportFrom)
WITH_MESSAGE = (ast.Raise, ast.Assert)

# The function that each stage of every sweep calls: stages of the whole sweep, then of an experiment.
SWEEP_STAGES: Mapping[str, Definition] = {
    "grid": ("ncpipe.commands.grid", "write_grid"),
    "aggregate": ("ncpipe.commands.aggregate", "aggregate"),
    "plot": ("ncpipe.commands.plot", "plot"),
    "claims": ("ncpipe.commands.claims", "claims"),
    "report": ("ncpipe.commands.report", "report"),
}
EXPERIMENT_STAGES: Mapping[str, Definition] = {
    "fetch": ("ncpipe.commands.fetch", "fetch"),
    "extract": ("ncpipe.commands.extract", "extract_experiment"),
    "measure": ("ncpipe.commands.measure", "measure"),
}
# The functions that decide a run's numbers, but not those that decide which runs train together, and when.
TRAIN = "train"
TRAINING = (
    ("ncpipe.datasets.prepared", "read_prepared"),
    ("ncpipe.runs.batches", "starts_of"),
    ("ncpipe.runs.fingerprint", "inputs_of"),  # the content of run.json, which is compared later
    ("ncpipe.training.device", "prepare_device"),
    ("ncpipe.training.loop", "train_batch"),
    ("ncpipe.runs.run_folder", "write_run"),
)
OWN_TRAINING = (  # of a run that a loop of study.py trains
    ("ncpipe.runs.fingerprint", "inputs_of"),
    ("ncpipe.training.device", "prepare_device"),
    ("ncpipe.training.own_loop", "train_own"),
    ("ncpipe.runs.run_folder", "write_run"),
)
# The tables of study.py that an experiment's stages read; no name in the package leads to them. Further
# stages of a study read those of `train`. Every stage may read a spec's attributes. For the stages of a sweep
# the whole file counts.
STUDY_TABLES_READ: Mapping[str, tuple[str, ...]] = {
    "fetch": ("DATA", "TRAININGS"),
    "extract": ("NETWORKS", "LOSSES", "TRAININGS"),
    "measure": ("NETWORKS", "LOSSES", "TRAININGS", "METRICS"),
    TRAIN: ("NETWORKS", "LOSSES", "OPTIMIZERS", "TRAININGS"),
}
# Files that a stage reads from the package besides its modules: every byte of them counts.
TEMPLATES: Mapping[str, str] = {"report": "report/templates"}
# Modules that only print messages, and this one.
MESSAGES = ("ncpipe", "ncpipe.runs.code_digests", "ncpipe.system.console", "ncpipe.system.errors")
# Modules that read, check and store, but decide no number of a run.
PLUMBING = (
    "ncpipe.system.artifacts",
    "ncpipe.config.params",
    "ncpipe.config.records",
    "ncpipe.runs.fingerprint",
    "ncpipe.config.study",
    "ncpipe.config.study_files",
)
Picked = tuple[tuple[str, str], ...]  # kinds of choice, each with what is chosen
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# Contents of files, and what follows from them, by function and arguments. All threads share the first
# reading, which only grows. A thread that reads the files anew has its own.
_first: dict[Any, Any] = {}
_anew: ContextVar[dict[Any, Any] | None] = ContextVar("anew", default=None)


def _once(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Call a function once for each of its arguments in a reading of the files."""

    @functools.wraps(function)
    def once(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        assert not named
        anew, call = _anew.get(), (function, arguments)
        reading = _first if anew is None else anew
        if call not in reading:
            reading.setdefault(call, function(*arguments, **named))  # the first one, of two threads
        result: Result = reading[call]
        return result

    return once


@contextlib.contextmanager
def read_anew() -> Iterator[None]:
    """Digest the files as they are now, in this thread and until the block ends."""
    before = _anew.set({})
    try:
        yield
    finally:
        _anew.reset(before)


@_once
def _content(path: Path) -> bytes:
    return path.read_bytes()


@dataclass(frozen=True)
class Module:
    """Holds a module's statements by the names they define, and the origins of the names that it imports."""

    definitions: dict[str, list[ast.stmt]]
    imports: dict[str, Definition]


def sweep_digests(further: Mapping[str, Definition] = MappingProxyType({})) -> dict[str, dict[str, str]]:
    """Return the digests of the stages that run once for a sweep, by stage and module.

    further: the stages of a study besides those of every sweep.
    """
    own = _study_digests([(STUDY, ALL)], {})
    return {
        stage: code_digests([root], {}, MESSAGES) | own | _template_digests(stage)
        for stage, root in (*SWEEP_STAGES.items(), *further.items())
    }


def _template_digests(stage: str) -> dict[str, str]:
    """Return the digests of the files that a stage reads from the package besides modules."""
    if stage not in TEMPLATES:
        return {}
    return {
        path.relative_to(ROOT).as_posix(): hashlib.sha256(_content(path)).hexdigest()
        for path in _template_files(stage)
    }


def _template_files(stage: str) -> list[Path]:
    return sorted((ROOT / PACKAGE / TEMPLATES[stage]).glob("*.*"))


def experiment_digests(
    choices: Choices, further: Mapping[str, Definition] = MappingProxyType({})
) -> dict[str, dict[str, str]]:
    """Return the digests of the stages of one experiment, `train` among them, for its choices."""
    stages = {
        stage: code_digests([root], choices, MESSAGES) | _own_digests(stage, choices)
        for stage, root in (*EXPERIMENT_STAGES.items(), *further.items())
    }
    return stages | {TRAIN: training_digests(choices)}


def training_digests(choices: Choices) -> dict[str, str]:
    """Return the digests of the code that decides a run's numbers, by module."""
    roots = TRAINING if choices.get("training", "none") == "none" else OWN_TRAINING
    return code_digests(roots, choices, (*MESSAGES, *PLUMBING)) | _own_digests(TRAIN, choices)


def _own_digests(stage: str, choices: Choices) -> dict[str, str]:
    """Return the digests of a study's files that an experiment's stage depends on."""
    if not _is_module(STUDY) or study_violation() is not None:
        return _study_digests([], {})
    picked = {table: choices[choice] for table, choice in PICKED_BY.items() if choice in choices}
    read = [table for table in STUDY_TABLES_READ.get(stage, STUDY_TABLES_READ[TRAIN]) if _table(table).keys]
    roots: list[Definition] = [(STUDY, table) for table in read if table not in picked]
    for table, choice in picked.items():
        keys = [key for key in _table(table).keys if _is_key(key, STUDY, ((table, choice),))]
        roots += [(STUDY, key.id) for key in keys if isinstance(key, ast.Name)]
        if keys and table in read:
            roots.append((STUDY, table))
    return _study_digests(roots, picked)


def _table(name: str) -> ast.Dict:
    """Return a table of a study.py in plain form; empty if the file does not define it."""
    for statement in read_module(STUDY).definitions.get(name, []):
        value = getattr(statement, "value", None)
        assert isinstance(value, ast.Dict)
        return value
    return ast.Dict([], [])


def _study_digests(roots: Collection[Definition], choices: Choices) -> dict[str, str]:
    """Return the digest of what `roots` reach in a study.py in plain form; otherwise that of everything.

    Includes the digests of the modules beside it that it imports, whatever dvc.yaml lists, and of the files
    that dvc.yaml lists with it.
    """
    if not _is_module(STUDY):
        return {}
    own = code_digests(roots, choices) if study_violation() is None else _whole_digests()
    text = "".join(f"{digest}  {module}\n" for module, digest in own.items())
    found = {path.as_posix(): hashlib.sha256(_content(path)).hexdigest() for path in _beside_study()}
    return ({f"{STUDY}.py": hashlib.sha256(text.encode()).hexdigest()} if own else {}) | found


@_once
def _whole_digests() -> dict[str, str]:
    """Return digests of the whole study.py, without docstrings, comments and layout, and of the package."""
    text = ast.unparse(_parsed(STUDY))
    return {
        STUDY: hashlib.sha256(text.encode()).hexdigest(),
        PACKAGE: _digest_of_files(_package_files()),
    }


@_once
def study_violation() -> Violation | None:
    """Return the first violation of plain form in study.py; None without one, or without the file."""
    if not _is_module(STUDY):
        return None
    imported = read_module(STUDY).imports
    return first_violation(_parsed(STUDY), Rules(STUDY_TABLES, imported, _is_immutable, _is_local))


def _is_immutable(origin: Definition) -> bool:
    """Return whether a name of the package is a function, a class or an immutable constant."""
    module, name = origin
    if not _is_ours(module) or not _file(module).is_file() or _file(module).name == "__init__.py":
        return False
    own = read_module(module)
    if name in own.imports:
        return name not in own.definitions and _is_immutable(own.imports[name])
    lasting = ast.Constant | ast.Subscript | ast.Tuple | ast.UnaryOp
    return name in own.definitions and all(
        isinstance(each, ast.FunctionDef | ast.ClassDef) or isinstance(getattr(each, "value", None), lasting)
        for each in own.definitions[name]
    )


def _is_local(module: str) -> bool:
    return Path(module).is_dir() or Path(f"{module}.py").is_file()


def code_digests(
    roots: Collection[Definition], choices: Choices, without: Collection[str] = ()
) -> dict[str, str]:
    """Return the digest of what `roots` reach in each module.

    choices: by kind, as TABLES names them. A table counts as a whole unless `choices` has all its kinds.
    without: modules of which only `roots` are counted and followed.
    """
    texts: dict[str, list[str]] = {}
    for (module, name), foreign in sorted(reached(roots, choices, without).items()):
        texts.setdefault(module, []).extend(
            [name, _text(module, name, _choice(module, name, choices)), *foreign]
        )
    return {module: hashlib.sha256("\n".join(parts).encode()).hexdigest() for module, parts in texts.items()}


def reached(
    roots: Collection[Definition], choices: Choices, without: Collection[str] = ()
) -> dict[Definition, list[str]]:
    """Return the definitions that `roots` lead to, with the names from other packages in each.

    Aliases of types that occur only in annotations are not counted, but the names in them are followed.
    """
    counted: dict[Definition, list[str]] = {}
    types: set[Definition] = set()
    todo = [(*root, False) for root in roots]
    while todo:
        module, name, is_type = todo.pop()
        definition = module, name
        if module in without and definition not in roots:
            continue
        if definition in counted or (is_type and definition in types):
            continue
        own = read_module(module)
        if name in own.definitions:
            choice = _choice(module, name, choices)
            is_type = is_type and not isinstance(_statements(module, name, choice)[0], ast.ClassDef)
            names = _all_names(module, name, choice, is_type)
            if is_type:
                types.add(definition)
            else:
                foreign = {f"{home}.{what}" for home, what, typed in names if not (typed or _is_ours(home))}
                counted[definition] = sorted(foreign)
            todo += [found for found in names if _is_ours(found[0])]
            if EFFECTS in own.definitions:
                todo.append((module, EFFECTS, False))
        elif name in own.imports:  # re-exported
            todo += [(*found, is_type) for found in [own.imports[name]] if _is_ours(found[0])]
        elif name == ALL:
            todo += [(module, each, is_type) for each in own.definitions]
        elif _is_module(f"{module}.{name}"):
            todo.append((f"{module}.{name}", ALL, is_type))
        else:
            raise LookupError(f"{module} has no {name}")
    return counted


@_once
def files_digest() -> str:
    """Return the digest of every byte of the files that digests depend on, comments included."""
    return _digest_of_files(digested_files())


def _digest_of_files(paths: Collection[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.sha256(_content(path)).digest())
    return digest.hexdigest()


def digested_files() -> list[Path]:
    """Return the files that digests depend on: the package's, study.py and those listed with it."""
    return [*_package_files(), *study_files()]


def study_files() -> list[Path]:
    """Return study.py, if there is one, its modules and the files listed with it."""
    study = Path(f"{STUDY}.py")
    return [study, *_beside_study()] if study.is_file() else []


def _beside_study() -> list[Path]:
    return sorted({*study_modules(), *listed_files()})


def study_contents() -> dict[str, bytes]:
    """Return study.py, the files listed with it and the dvc.yaml that lists them, as they were first read.

    Raises InputError if a file lies outside the study's folder.
    """
    files = study_files()
    for path in files:
        if not Path(os.path.normpath(path)).resolve().is_relative_to(Path.cwd()):
            raise InputError(f"{path}: lies outside the study's folder, so it cannot be sent to workers")
    files += [PIPELINE] if files and PIPELINE.is_file() else []
    return {path.as_posix(): _content(path) for path in files}


def code_contents() -> dict[str, bytes]:
    """Return the package's files and `study_contents`, by their paths in a folder that has both."""
    return {path.relative_to(ROOT).as_posix(): _content(path) for path in _package_files()} | study_contents()


def _package_files() -> list[Path]:
    """Return the package's modules and page templates."""
    pages = [path for stage in TEMPLATES for path in _template_files(stage)]
    return [*sorted((ROOT / PACKAGE).rglob("*.py")), *pages]


@_once
def read_module(name: str) -> Module:
    """Return what a module defines and imports."""
    definitions: dict[str, list[ast.stmt]] = {}
    imports: dict[str, Definition] = {}
    for statement in _parsed(name).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            imports |= _imported(statement)
        elif not _is_docstring(statement):
            names = _defined(statement)
            for defined in names if names and not _does_more(statement, imports) else [*names, EFFECTS]:
                definitions.setdefault(defined, []).append(statement)
    return Module(definitions, imports)


def _parsed(module: str) -> ast.Module:
    """Return a module's syntax tree, with a read-only table written as a plain one.

    That of study.py has no docstrings; those of other modules are left out by `_dumped`.
    """
    tree = ast.parse(_content(_file(module)))
    for statement in tree.body:
        value = getattr(statement, "value", None)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == READ_ONLY:
            statement.value = value.args[0]  # type: ignore[attr-defined]
    if module == STUDY:
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                body = [each for each in node.body if not _is_docstring(each)]
                node.body = body or ([] if isinstance(node, ast.Module) else [ast.Pass()])
    return tree


def _file(module: str) -> Path:
    stem = (Path() if module == STUDY else ROOT).joinpath(*module.split("."))
    return stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")


def _is_module(name: str) -> bool:
    return _file(name).is_file()


def _is_ours(module: str) -> bool:
    return module == STUDY or module.partition(".")[0] == PACKAGE


def _imported(statement: ast.Import | ast.ImportFrom) -> dict[str, Definition]:
    if isinstance(statement, ast.Import):
        return {
            alias.asname or alias.name.partition(".")[0]: (
                alias.name if alias.asname else alias.name.partition(".")[0],
                ALL,
            )
            for alias in statement.names
        }
    module = statement.module or ""
    return {
        alias.asname or alias.name: (
            (f"{module}.{alias.name}", ALL)
            if _is_ours(module) and _is_module(f"{module}.{alias.name}")
            else (module, alias.name)
        )
        for alias in statement.names
    }


def _defined(statement: ast.stmt) -> list[str]:
    """Return the names that a statement at the top of a module binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    names = []
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):  # below an `if` or a `try`
            names += _imported(node)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
    return list(dict.fromkeys(names))


def _does_more(statement: ast.stmt, imports: Mapping[str, Definition]) -> bool:
    """Return whether a defining statement may have other effects: a loop, a decorator of the package."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        names = {name.id for decorator in statement.decorator_list for name in _members(decorator)}
        return any(name not in imports or _is_ours(imports[name][0]) for name in names)
    return not isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign)


def _choice(module: str, name: str, choices: Choices) -> Picked | None:
    """Return what is chosen from a table; None for other names, and for a table that counts as a whole."""
    kinds = TABLES.get((module, name), ())
    known = kinds and all(kind in choices for kind in kinds)
    return tuple((kind, choices[kind]) for kind in kinds) if known else None


@_once
def _statements(module: str, name: str, choice: Picked | None) -> list[ast.stmt]:
    """Return the statements that define a name; of a table only what is chosen."""
    statements = read_module(module).definitions[name]
    return statements if choice is None else [_picked(each, module, name, choice) for each in statements]


@_once
def _text(module: str, name: str, choice: Picked | None) -> str:
    as_text = ast.unparse if module == STUDY else _dumped  # annotations and messages count in study.py
    return "\n".join(as_text(statement) for statement in _statements(module, name, choice))


@_once
def _all_names(
    module: str, name: str, choice: Picked | None, is_type: bool
) -> frozenset[tuple[str, str, bool]]:
    """Return `_names` of all statements that define a name."""
    statements = _statements(module, name, choice)
    return frozenset(found for statement in statements for found in _names(statement, module, is_type))


def _picked(statement: ast.stmt, module: str, name: str, choice: Picked) -> ast.stmt:
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Dict):
        pairs = zip(value.keys, value.values, strict=True)
        chosen = [pair for pair in pairs if _is_key(pair[0], module, choice)]
        if not chosen:  # the entry is added at run time
            return statement
        kept: ast.expr = ast.Dict([key for key, _ in chosen], [entry for _, entry in chosen])
    elif isinstance(value, ast.BinOp):
        members = [member for member in _members(value) if _takes(member, module, choice)]
        kept = ast.Tuple(list(members), ast.Load())
    else:
        raise LookupError(f"{module}.{name} is neither a dict nor a union")
    return ast.fix_missing_locations(ast.Assign([ast.Name(name, ast.Store())], kept))


def _is_key(key: ast.expr | None, module: str, choice: Picked) -> bool:
    if isinstance(key, ast.Name):
        return _takes(key, module, choice)
    return isinstance(key, ast.Constant) and key.value in dict(choice).values()


def _members(union: ast.expr) -> Iterator[ast.Name]:
    for node in ast.walk(union):
        if isinstance(node, ast.Name):
            yield node


def _takes(member: ast.Name, module: str, choice: Picked) -> bool:
    """Return whether a record has a field named as a kind of choice whose literals include the choice."""
    fields = {STUDY_TABLES.get(kind, kind): value for kind, value in choice}
    home, name = read_module(module).imports.get(member.id, (module, member.id))
    return any(
        isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id in fields
        and any(
            isinstance(leaf, ast.Constant) and leaf.value == fields[node.target.id]
            for leaf in ast.walk(node.annotation)
        )
        for statement in read_module(home).definitions[name]
        for node in ast.walk(statement)
    )


def _names(statement: ast.stmt, module: str, is_type: bool) -> Iterator[tuple[str, str, bool]]:
    """Yield the definitions that the names in a statement refer to, by imports and the module's top level.

    The third value is whether the name is only in an annotation. is_type: whether the whole statement is. A
    local variable with the name of a definition counts as that definition.
    """
    own = read_module(module)
    imports = dict(own.imports)
    used: list[tuple[str, str, bool]] = []  # name, attribute of it or ''
    todo: list[tuple[ast.AST, bool]] = [(statement, is_type)]
    while todo:
        node, typed = todo.pop()
        if isinstance(node, ast.Name):
            used.append((node.id, "", typed))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used.append((node.value.id, node.attr, typed))
        elif isinstance(node, IMPORTS):
            imports |= _imported(node)
        else:
            todo += _children(node, typed, messages=module == STUDY)
    for name, attribute, typed in used:
        if name in own.definitions:
            yield module, name, typed
        if name in imports:  # of the statement, perhaps
            home, what = imports[name]
            yield home, attribute if attribute and what == ALL else what, typed


def _children(node: ast.AST, typed: bool, messages: bool = False) -> list[tuple[ast.AST, bool]]:
    """Return the parts of a syntax tree without messages of errors, and whether each is in an annotation.

    messages: whether to include messages of errors.
    """
    if not messages and isinstance(node, WITH_MESSAGE):
        if isinstance(node, ast.Assert):
            return [(node.test, typed)]
        if isinstance(node.exc, ast.Call):
            return [(node.exc.func, typed)]
    if typed and isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        kind, inner = node.value.id, node.slice
        if kind == "Annotated" and isinstance(inner, ast.Tuple):
            inner = inner.elts[0]
        return [(node.value, True)] + [(inner, True)] * (kind != "Literal")
    if typed and isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [(ast.parse(node.value, mode="eval"), True)]
    found = []
    for name in node._fields:
        value = getattr(node, name, None)
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                found.append((child, typed or name in ANNOTATIONS))
    return found


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _dumped(node: object, in_class: bool = False) -> str:
    """Return a syntax tree as text, the same in every version of Python: without empty fields.

    in_class: whether the node is in the body of a class, where an annotation makes a variable a field.
    """
    if isinstance(node, list):
        return f"[{','.join([_dumped(each, in_class) for each in node if not _is_docstring(each)])}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, WITH_MESSAGE):
        return f"{type(node).__name__}{[_dumped(child) for child, _ in _children(node, False)]}"
    if isinstance(node, ast.AnnAssign) and node.value is not None and not in_class:
        node = ast.Assign([node.target], node.value)
    of_class = isinstance(node, ast.ClassDef)
    inner = []
    for name in node._fields:
        value = getattr(node, name, None)
        if name not in NOT_COUNTED and value is not None and value != []:
            inner.append(f"{name}={_dumped(value, of_class)}")
    return f"{type(node).__name__}({','.join(inner)})"


for _path in _package_files():  # now, before most modules are imported: no older code runs than is digested
    _content(_path)
