"""Find where a study's modules do more than define things, so that one entry's code may change another's."""

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

from ncpipe.config.reading import PACKAGE, Reading
from ncpipe.config.study import TABLES
from ncpipe.config.study_files import FILE, parsed, study_modules

# Calls that only make something, and decorators, by the package that has them.
CONSTRUCTORS = (
    dict.fromkeys(("Bound", "Family", "Hooked", "Metric", "Stage", "Training"), PACKAGE)
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
# Names by which code finds modules or objects that it does not name, and methods that run unseen.
IMPORTERS = frozenset({"__import__", "importlib", "runpy", "sys", "exec", "eval"})
UNSEEN = IMPORTERS | {
    *("builtins", "__builtins__", "enum", "globals", "locals", "vars", "getattr", "setattr", "delattr"),
    *("__init_subclass__", "__set_name__", "__class_getitem__", "__getattr__"),
}


def study_effect(reading: Reading, shared: bool = True) -> str | None:
    """Return where a study's modules first do more than define things; None if they do not.

    shared: whether a dict or list that the study keeps counts, by which one entry may change another.
    """
    for path in (Path(FILE), *study_modules([Path(FILE)], reading.content)) if Path(FILE).is_file() else ():
        tree = parsed(reading.content(path))
        for node in _effects(tree, TABLES if path == Path(FILE) else (), shared):
            return f"{path.as_posix()}: line {getattr(node, 'lineno', 1)}"
    return None


def _effects(tree: ast.Module, tables: Collection[str], shared: bool) -> Iterator[ast.AST]:
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

    holders = [part.value for part in tree.body if {*_defined(part)} & {*tables} and hasattr(part, "value")]
    holders += [node for node in ast.walk(tree) if isinstance(node, ast.Call) and makes(node.func)]
    written = {id(node) for holder in holders for node in ast.walk(holder)}  # nothing else has a name for it
    for node in _at_import(tree):
        decorators = [part for part in getattr(node, "decorator_list", []) if not isinstance(part, ast.Call)]
        if not (
            (isinstance(node, ast.Dict | ast.List) and (not shared or id(node) in written))
            or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            or (isinstance(node, ast.Call) and makes(node.func))
            or (isinstance(node, (*DEFINES, *VALUES, *PARTS, *SIGNS)) and all(map(makes, decorators)))
        ) or (isinstance(node, ast.ClassDef) and node.keywords):
            yield node
    for node in ast.walk(tree):
        part = isinstance(node, ast.Attribute | ast.Subscript) and _root(node) in {"", *origins, *defined}
        typed = getattr(node, "annotation", None)  # as a text, it may be evaluated too
        calls = any("(" in str(getattr(text, "value", "")) for text in ast.walk(typed)) if typed else False
        names = {str(getattr(node, field, None)).partition(".")[0] for field in ("id", "name", "module")}
        names |= {str(getattr(node, "attr", None))} - {"eval"}  # networks have a method of this name
        unseen = names & {*UNSEEN, "*"}
        if isinstance(node, ast.Global) or calls or unseen or (part and _is_changed(node)):
            yield node


def _defined(statement: ast.stmt) -> list[str]:
    """Return the names that a statement at the top of a module defines, imports aside."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    return [node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and _is_changed(node)]


def _is_changed(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)


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


def names_in(node: ast.AST) -> set[str]:
    """Return the names in a syntax tree."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
