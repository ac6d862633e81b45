"""Digest a study's own code: study.py and the modules beside it, by files.

If all that they do when they are imported is to define things (`study_effect`), an experiment's part is the
modules that its entries of the tables come from, with all that these reach; an entry that is written in
study.py itself counts with all of the study. In any other study all of it counts for every experiment,
because one entry's code may then change another's.
"""

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

from ncpipe.config.choices import Choices
from ncpipe.config.reading import PACKAGE, Reading
from ncpipe.config.study import TABLES
from ncpipe.config.study_files import (
    CODE,
    FILE,
    listed_digests,
    modules_named,
    parsed,
    study_modules,
    words,
)
from ncpipe.runs.closures import all_modules, closure, digest_module, modules_of, names_in

MEASURED = ("METRICS", "RUN_COLUMNS")  # tables of which the stage measure calls every entry
ALL_TABLES = frozenset(TABLES)
# Calls that only make something, and decorators, by the package that has them.
CONSTRUCTORS = (
    dict.fromkeys(("Family", "Hooked", "Metric", "Bound", "Stage", "Training"), PACKAGE)
    | dict.fromkeys(("property", "staticmethod", "classmethod"), "")
    | {
        "cache": "functools",
        "dataclass": "dataclasses",
        "field": "dataclasses",
        "abstractmethod": "abc",
        "override": "typing",
    }
)
# What a module that only defines things is made of, bodies of functions aside.
DEFINES = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.Pass)
VALUES = (ast.Name, ast.Attribute, ast.Constant, ast.Tuple, ast.UnaryOp, ast.BinOp, ast.Subscript, ast.Lambda)
PARTS = (ast.Module, ast.alias, ast.arguments, ast.arg, ast.keyword)
SIGNS = (ast.operator, ast.unaryop, ast.expr_context)
# What an entry may hold besides names, and still come from the files of these alone.
WRITTEN_OUT = (
    *(ast.Attribute, ast.Call, ast.Constant, ast.keyword, ast.expr_context),
    *(ast.Dict, ast.List, ast.Tuple),
)
# Names by which code finds modules or objects that it does not name, and methods that run unseen.
IMPORTERS = frozenset({"__import__", "importlib", "runpy", "sys", "exec", "eval"})
UNSEEN = IMPORTERS | {
    *("enum", "globals", "locals", "vars", "getattr", "setattr", "delattr"),
    *("__init_subclass__", "__set_name__", "__class_getitem__", "__getattr__"),
}


def study_digests(
    choices: Choices | None, read: Collection[str], reading: Reading, without: Collection[str]
) -> dict[str, str]:
    """Return the digests of what a stage depends on in a study, and in the package by it, by file.

    choices: of an experiment; None for all of the study. read: the tables whose entries the stage calls.
    """
    if not Path(FILE).is_file():
        return {}
    files, package = {Path(FILE)}, set[str]()
    if choices is not None and study_effect(reading) is None:
        files, package = _entries(choices, read, reading)
    own = {}
    for path in sorted({*files, *study_modules(files, reading.content)}):
        content = reading.content(path)
        own[path.as_posix()], imports = digest_module(content)
        package |= {module for pair in imports for module in modules_of(*pair, reading)}
        if names_in(parsed(content)) & IMPORTERS:  # then any of its modules may be imported, by a text
            package |= all_modules()
    listed = listed_digests(reading, CODE)
    return closure(package, choices, without, reading, looked_up=True) | listed | own


def _entries(choices: Choices, read: Collection[str], reading: Reading) -> tuple[set[Path], set[str]]:
    """Return the study's files and the package's modules that an experiment's entries come from."""
    tree = parsed(reading.content(Path(FILE)))
    origins, tables = _origins(tree, reading), _tables(tree)
    parts: list[ast.expr | None] = []
    files = set[Path]()
    for table, record in choices.own:
        found = [pair for pair in tables.get(table, ()) if record in _names_there(pair[0], origins)]
        if not found:  # the table, or the key, is made in another way
            files.add(Path(FILE))
        if table in read or "NETWORKS" in read:  # any stage but fetch may read an attribute of each record
            parts += [key for key, _ in found]
        if table in read:
            parts += [entry for _, entry in found]
    for name in MEASURED:
        if name in read and name in origins:
            parts += [each for pair in tables.get(name, [(ast.Name(name), None)]) for each in pair]
    package = set[str]()
    for node in (node for part in parts if part is not None for node in ast.walk(part)):
        if isinstance(node, ast.Name):
            homes = [home for _, home in origins.get(node.id, [])]
            files |= {home for home in homes if isinstance(home, Path)}
            package |= {home for home in homes if isinstance(home, str)}
        elif not isinstance(node, WRITTEN_OUT):
            files.add(Path(FILE))
    return files, package


def _tables(tree: ast.Module) -> dict[str, list[tuple[ast.expr | None, ast.expr]]]:
    """Return the entries of the tables that are written out in study.py."""
    return {
        name: list(zip(statement.value.keys, statement.value.values, strict=True))
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Dict)
        for name in _defined(statement)
    }


def _defined(statement: ast.stmt) -> list[str]:
    """Return the names that a statement at the top of a module defines, imports aside."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    return [node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and _is_changed(node)]


def _is_changed(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)


def _origins(tree: ast.Module, reading: Reading) -> dict[str, list[tuple[str, Path | str]]]:
    """Return by each name of study.py its name in each file or module of the package that it may be from."""
    origins: dict[str, list[tuple[str, Path | str]]] = {}
    for statement in tree.body:
        for name in _defined(statement):
            origins.setdefault(name, []).append((name, Path(FILE)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                module = node.module or "" if isinstance(node, ast.ImportFrom) else alias.name
                homes: list[Path | str] = [
                    *modules_named(words(node)),
                    *modules_of(module, alias.name, reading),
                ]
                origins.setdefault(name, []).extend((alias.name, home) for home in homes)
    return origins


def _names_there(key: ast.expr | None, origins: dict[str, list[tuple[str, Path | str]]]) -> set[str]:
    return {there for there, _ in origins.get(key.id, [])} if isinstance(key, ast.Name) else set()


def study_effect(reading: Reading) -> str | None:
    """Return where a study's modules first do more than define things; None if they do not."""
    for path in (Path(FILE), *study_modules([Path(FILE)], reading.content)) if Path(FILE).is_file() else ():
        tree = parsed(reading.content(path))
        for node in _effects(tree, ALL_TABLES if path == Path(FILE) else frozenset()):
            return f"{path.as_posix()}: line {getattr(node, 'lineno', 1)}"
    return None


def _effects(tree: ast.Module, tables: Collection[str]) -> Iterator[ast.AST]:
    """Yield the parts of a module that may change other code: when it is imported, or by assignment later."""
    origins = {
        alias.asname or alias.name.partition(".")[0]: getattr(node, "module", None) or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    defined = {name for statement in tree.body for name in _defined(statement)}
    anywhere = {name for node in ast.walk(tree) if isinstance(node, ast.stmt) for name in _defined(node)}

    def makes(called: ast.expr) -> bool:
        name = called.id if isinstance(called, ast.Name) else ""
        home = origins.get(name, "").partition(".")[0]
        return name not in anywhere and CONSTRUCTORS.get(name) == home

    holders = [each.value for each in tree.body if {*_defined(each)} & {*tables} and hasattr(each, "value")]
    holders += [node for node in ast.walk(tree) if isinstance(node, ast.Call) and makes(node.func)]
    written = {id(node) for each in holders for node in ast.walk(each)}  # what nothing else has a name for
    for node in _at_import(tree):
        decorators = [each for each in getattr(node, "decorator_list", []) if not isinstance(each, ast.Call)]
        if not (
            (isinstance(node, ast.Dict | ast.List) and id(node) in written)
            or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            or (isinstance(node, ast.Call) and makes(node.func))
            or (isinstance(node, (*DEFINES, *VALUES, *PARTS, *SIGNS)) and all(map(makes, decorators)))
        ) or (isinstance(node, ast.ClassDef) and node.keywords):
            yield node
    for node in ast.walk(tree):
        shared = isinstance(node, ast.Attribute | ast.Subscript) and _root(node) in {"", *origins, *defined}
        typed = getattr(node, "annotation", None)  # as a text, it may be evaluated too
        calls = any("(" in str(getattr(each, "value", "")) for each in ast.walk(typed)) if typed else False
        named = (getattr(node, field, None) for field in ("id", "attr", "name", "module"))
        unseen = {str(name).partition(".")[0] for name in named} & {*UNSEEN, "*"}
        if isinstance(node, ast.Global) or calls or unseen or (shared and _is_changed(node)):
            yield node


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what Python evaluates as it imports a module: all but the bodies of functions."""
    yield node
    for name, value in ast.iter_fields(node):
        if not (name == "body" and isinstance(node, ast.FunctionDef | ast.Lambda)):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _at_import(child)


def _root(node: ast.AST) -> str:
    """Return the name that a chain of attributes and items begins with; empty if it begins otherwise."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
