"""Digest modules of the package and all that they import, by files.

A module's digest is of its syntax tree: comments, docstrings and layout do not count. Imports within
functions are followed too. In a module with a table (`ncpipe.config.choices`), entries that are not chosen do
not count, nor do the imports and private functions that only they use: a new entry changes nothing for
others.
"""

import ast
import functools
import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from ncpipe.config.choices import TABLES, UNIONS, Choices
from ncpipe.config.reading import PACKAGE, Reading
from ncpipe.config.study_files import parsed
from ncpipe.study import HOMES

ROOT = Path(__file__).resolve().parents[2]


class Module(NamedTuple):
    """Holds the digest of a module, and the names that it imports from each module of the package."""

    digest: str
    imports: tuple[tuple[str, str], ...]


def closure(
    roots: Collection[str],
    choices: Choices | None,
    without: Collection[str],
    reading: Reading,
    looked_up: bool = False,
) -> dict[str, str]:
    """Return the digests of modules of the package and of all that they import, by module.

    choices: what picks from tables; None for every entry. without: modules that are neither counted nor
    followed, unless they are roots. looked_up: whether the roots may look up any entry of a table; `choices`
    then picks from unions alone.
    """
    found: dict[str, str] = {}
    todo = list(roots)
    while todo:
        name = todo.pop()
        if name in found or (name in without and name not in roots):
            continue
        content = reading.content(_file(name))
        tables = UNIONS if looked_up else (*TABLES, *UNIONS)
        own = frozenset(table for home, table in tables if home == name)
        words = choices.words if own and choices is not None else None
        found[name], imports = digest_module(content, own, words)
        todo += {each for pair in imports for each in modules_of(*pair, reading)}
    return dict(sorted(found.items()))


def modules_of(module: str, name: str, reading: Reading) -> list[str]:
    """Return the modules that `from module import name` runs, less those without any code.

    Names of `ncpipe.study` are those of the modules that define them.
    """
    if module == "ncpipe.study" and name in HOMES:
        return modules_of(f"{PACKAGE}.{HOMES[name].partition(':')[0]}", "", reading)
    if (found := reading.imports.get((module, name))) is None:
        parts = [*module.split("."), *filter(None, [name])]
        names = [".".join(parts[:end]) for end in range(2, len(parts) + 1)]
        paths = {each: path for each in names if (path := _file(each)).is_file()}
        found = [each for each, path in paths.items() if reading.content(path).strip()]
        reading.imports[module, name] = found
    return found


def all_modules() -> set[str]:
    """Return the modules of the package."""
    return {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in module_files()}


def module_files() -> list[Path]:
    """Return the files of the package's modules."""
    return sorted((ROOT / PACKAGE).rglob("*.py"))


def _file(module: str) -> Path:
    stem = ROOT.joinpath(*module.split("."))
    return stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")


@functools.cache  # by content, so that it never needs to be forgotten
def digest_module(
    content: bytes, tables: frozenset[str] = frozenset(), words: frozenset[str] | None = None
) -> Module:
    """Return a module's digest; if `words` are given, without what only other entries of its tables use."""
    tree = parsed(content)
    if words is not None:
        _leave_out(tree, tables, words)
    imports = {pair for node in ast.walk(tree) for pair in _imported(node)}
    return Module(hashlib.sha256(_dumped(tree).encode()).hexdigest(), tuple(sorted(imports)))


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield module and name of what a node imports from the package."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, "") for alias in node.names if _is_ours(alias.name))
    elif isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
        yield from ((node.module or "", alias.name) for alias in node.names)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == PACKAGE


def _leave_out(tree: ast.Module, tables: Collection[str], words: Collection[str]) -> None:
    """Remove entries of tables that no word picks, and the imports and private functions of these alone."""
    spare: set[str] = set()
    for statement in tree.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        target = statement.target if isinstance(statement, ast.AnnAssign) else target
        if isinstance(target, ast.Name) and target.id in tables:
            for removed in _unpicked(statement, words):
                spare |= names_in(removed)
    while spare:
        used = set[str]()
        for statement in tree.body:
            used |= names_in(statement)
        gone, spare = spare - used, set()
        for statement in list(tree.body):
            if isinstance(statement, ast.Import | ast.ImportFrom):
                statement.names = [each for each in statement.names if (each.asname or each.name) not in gone]
            is_private = isinstance(statement, ast.FunctionDef | ast.ClassDef) and statement.name[0] == "_"
            if is_private and statement.name in gone:  # type: ignore[attr-defined]
                spare |= names_in(statement)
            elif not isinstance(statement, ast.Import | ast.ImportFrom) or statement.names:
                continue
            tree.body.remove(statement)


def _unpicked(statement: ast.stmt, words: Collection[str]) -> Iterator[ast.AST]:
    """Remove the entries of a dict or the members of a union that no word picks, and yield them."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Dict):
            pairs = list(zip(node.keys, node.values, strict=True))
            kept = [pair for pair in pairs if _word(pair[0]) in words]
            node.keys, node.values = [key for key, _ in kept], [value for _, value in kept]
            yield from (each for pair in pairs if pair not in kept for each in pair if each is not None)
            return
    value = getattr(statement, "value", None)
    members = [node for node in ast.walk(value) if isinstance(node, ast.Name)] if value else []
    statement.value = ast.Tuple([each for each in members if each.id in words])  # type: ignore[attr-defined]
    yield from (each for each in members if each.id not in words)


def _word(key: ast.expr | None) -> object:
    return key.id if isinstance(key, ast.Name) else getattr(key, "value", None)


def names_in(node: ast.AST) -> set[str]:
    """Return the names in a syntax tree."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _dumped(node: object) -> str:
    """Return a syntax tree as text without docstrings and empty fields, as in every version of Python."""
    if isinstance(node, list):
        return f"[{','.join([_dumped(each) for each in node if not _is_docstring(each)])}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [(name, getattr(node, name, None)) for name in node._fields if name != "ctx"]
    inner = [f"{name}={_dumped(value)}" for name, value in fields if value is not None and value != []]
    return f"{type(node).__name__}({','.join(inner)})"


def _is_docstring(node: object) -> bool:
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
