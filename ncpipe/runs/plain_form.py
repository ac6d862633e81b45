"""Check the plain form of a study.py, in which syntax alone shows what belongs to each entry of its tables.

A file is in plain form if it consists of imports, functions, classes, constants and the tables, each a single
literal dict, and if nothing in it has effects on other code: neither while the file is imported, nor later by
assignment. The check accepts known constructs and rejects all others. A rejected file still runs; its digests
then cover all of it (`ncpipe.runs.code_digests`).
"""

import ast
import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

PACKAGE = "ncpipe"
# Packages whose import changes nothing for other code: of the standard library, and those that ncpipe uses.
HARMLESS = frozenset(
    {"__future__", "abc", "bisect", "collections", "contextlib", "copy", "csv", "dataclasses", "decimal"}
    | {"fractions", "functools", "gzip", "hashlib", "heapq", "io", "itertools", "json", "math", "numbers"}
    | {"os", "pathlib", "random", "re", "statistics", "string", "textwrap", "time", "typing", "warnings"}
    | {"zipfile", "numpy", "safetensors", "scipy", "sklearn", "torch", "torchvision"}
)
# Builtins that find an object by a name in a string, and attributes with two underscores that are harmless.
BY_TEXT = frozenset(
    {"eval", "exec", "compile", "globals", "locals", "vars", "dir", "getattr", "setattr", "delattr"}
    | {"breakpoint"}
)
KNOWN_DUNDERS = frozenset(["__init__", "__post_init__", "__name__", "__file__", "__future__"])
CLASS_HOOKS = frozenset(["__init_subclass__", "__set_name__", "__class_getitem__"])
# Calls that are allowed outside functions, and decorators: they have no other effects.
CONSTRUCTORS = frozenset(
    {(f"{PACKAGE}.models.build", "Family"), (f"{PACKAGE}.metrics.catalogue", "Metric")}
    | {(f"{PACKAGE}.training.own_loop", "Training")}
)
DECORATORS = frozenset(
    {("", "property"), ("", "staticmethod"), ("", "classmethod"), ("abc", "abstractmethod")}
    | {("dataclasses", "dataclass"), ("typing", "override")}
)

Origin = tuple[str, str]  # the module that a name is imported from ("" for a builtin), and its name there
Function = ast.FunctionDef | ast.Lambda


class Violation(Exception):
    """Names the first thing in a file that is not in plain form, and its line."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line}: {what}")


@dataclass(frozen=True)
class Rules:
    """Holds the inputs of the check besides the file.

    tables: the key in params.yaml that selects an entry of each table; "" if none does.
    imported: names that the file imports, with their origins.
    is_definition: whether an origin in the package is a function, a class or a constant that cannot change.
    is_local: whether a module is a file or folder beside study.py.
    """

    tables: Mapping[str, str]
    imported: Mapping[str, Origin]
    is_definition: Callable[[Origin], bool]
    is_local: Callable[[str], bool]


def first_violation(tree: ast.Module, rules: Rules) -> Violation | None:
    """Return the first thing in a file that is not in plain form; None if all of it is."""
    try:
        bound = _check_names(tree, rules)
        for statement in tree.body:
            _check_statement(statement, tree, rules)
        for node in ast.walk(tree):
            _check_anywhere(node, bound, rules)
    except Violation as violation:
        return violation
    return None


def _violation(node: ast.AST, what: str) -> Violation:
    return Violation(getattr(node, "lineno", 1), what)


def _check_names(tree: ast.Module, rules: Rules) -> set[str]:
    """Return the names that the file shares among its parts; each has to have one meaning throughout."""
    defined: dict[str, ast.AST] = {}
    for statement in tree.body:
        for name in _bound_at_top(statement):
            if name in defined or name in rules.imported:
                raise _violation(statement, f"{name} is defined twice")
            if hasattr(builtins, name) or _is_dunder(name):
                raise _violation(statement, f"{name} is a built-in or special name of Python")
            defined[name] = statement
    origins: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                origin = (getattr(node, "module", None) or "", alias.name if alias.asname else name)
                if hasattr(builtins, name) or origins.setdefault(name, origin) != origin:
                    raise _violation(node, f"the import of {name} hides another import or a built-in name")
    return {*defined, *origins, *dir(builtins)}


def _bound_at_top(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def _check_statement(statement: ast.stmt, tree: ast.Module, rules: Rules) -> None:
    """Raise Violation unless a statement at the top only imports or defines something."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            pass
        case ast.FunctionDef():
            _check_function(statement, rules)
        case ast.ClassDef():
            _check_class(statement, rules)
        case ast.Assign(targets=[ast.Name(name)], value=value) if name in rules.tables:
            _check_table(name, value, tree, rules)
        case ast.AnnAssign(target=ast.Name(name), value=ast.expr() as value) if name in rules.tables:
            _check_annotation(statement.annotation)
            _check_table(name, value, tree, rules)
        case ast.Assign(targets=[ast.Name()], value=value):
            _check_constant(value, rules)
        case ast.AnnAssign(target=ast.Name(), value=ast.expr() as value):
            _check_annotation(statement.annotation)
            _check_constant(value, rules)
        case _:
            raise _violation(statement, "a statement that is no import, function, class, constant or table")


def _check_table(table: str, value: ast.expr, tree: ast.Module, rules: Rules) -> None:
    if not isinstance(value, ast.Dict) or None in value.keys:
        raise _violation(value, f"{table} is not a single literal dict")
    classes = {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}
    for key, entry in zip(value.keys, value.values, strict=True):
        assert key is not None
        _check_quiet(entry, rules)
        if not rules.tables[table]:
            _check_quiet(key, rules)
        elif not isinstance(key, ast.Name) or not _declares(classes.get(key.id), rules.tables[table], rules):
            raise _violation(
                key, f"a key of {table} is no class of this file with {rules.tables[table]}: Literal['...']"
            )


def _declares(spec: ast.ClassDef | None, field: str, rules: Rules) -> bool:
    """Return whether a class declares a field in its own body, as a Literal of strings."""
    fields = [
        each.annotation
        for each in (spec.body if spec else [])
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.target.id == field
    ]
    return bool(fields) and all(_is_literal(each, rules) for each in fields)


def _is_literal(annotation: ast.expr, rules: Rules) -> bool:
    match annotation:
        case ast.Subscript(value=ast.Name(name), slice=chosen):
            words = chosen.elts if isinstance(chosen, ast.Tuple) else [chosen]
            return rules.imported.get(name) == ("typing", "Literal") and all(
                isinstance(word, ast.Constant) and isinstance(word.value, str) for word in words
            )
    return False


def _check_class(node: ast.ClassDef, rules: Rules) -> None:
    if node.keywords or getattr(node, "type_params", None):
        raise _violation(node, f"the class {node.name} has keyword arguments or type parameters")
    for base in node.bases:
        if not _is_dotted(base):
            raise _violation(base, f"a base class of {node.name} is not a name")
    _check_decorators(node.decorator_list, rules)
    for statement in node.body:
        if {*_bound_at_top(statement)} & {*rules.imported, *(name for _, name in DECORATORS)}:
            raise _violation(statement, f"the class {node.name} redefines an import or a decorator")
        match statement:
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case ast.FunctionDef(name=name) if name not in CLASS_HOOKS:
                _check_function(statement, rules)
            case ast.AnnAssign(target=ast.Name(), value=value):
                _check_annotation(statement.annotation)
                if value is not None:
                    _check_constant(value, rules)
            case ast.Assign(targets=[ast.Name()], value=ast.Call(func=ast.Name("property")) as call):
                _check_arguments(call, rules)
            case ast.Assign(targets=[ast.Name()], value=value):
                _check_constant(value, rules)
            case _:
                raise _violation(statement, f"a statement in the class {node.name} may affect other code")


def _check_function(node: Function, rules: Rules) -> None:
    """Raise Violation if defining a function does anything else; its body is not checked."""
    if isinstance(node, ast.FunctionDef):
        if getattr(node, "type_params", None):
            raise _violation(node, f"{node.name} has type parameters")
        _check_decorators(node.decorator_list, rules)
        if node.returns is not None:
            _check_annotation(node.returns)
    own = node.args
    for default in (*own.defaults, *(each for each in own.kw_defaults if each is not None)):
        if not _is_constant(default):
            raise _violation(default, "a default value is not a constant")
    for argument in (*own.posonlyargs, *own.args, own.vararg, *own.kwonlyargs, own.kwarg):
        if argument is not None and argument.annotation is not None:
            _check_annotation(argument.annotation)


def _check_decorators(decorators: Sequence[ast.expr], rules: Rules) -> None:
    for decorator in decorators:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = called.id if isinstance(called, ast.Name) else ""
        if rules.imported.get(name, ("", name)) not in DECORATORS:
            raise _violation(decorator, "a decorator of another kind than dataclass or property")
        if isinstance(decorator, ast.Call):
            _check_arguments(decorator, rules)


def _check_annotation(annotation: ast.expr) -> None:
    """Raise Violation unless evaluating an annotation, which may be a string, only names types."""
    match annotation:
        case ast.Subscript(value=ast.Name("Literal")):
            return
        case ast.Constant(value=str(text)):
            try:
                parts = [ast.parse(text, mode="eval").body]
            except SyntaxError:
                raise _violation(annotation, "an annotation is a string that is not a type") from None
        case ast.Name() | ast.Constant():
            return
        case ast.Attribute() | ast.Subscript() | ast.Tuple() | ast.List() | ast.BinOp():
            parts = [each for each in ast.iter_child_nodes(annotation) if isinstance(each, ast.expr)]
        case _:
            raise _violation(annotation, "an annotation does more than name a type")
    for part in parts:
        _check_annotation(part)


def _check_constant(value: ast.expr, rules: Rules) -> None:
    """Raise Violation unless a value is a number, a string, a tuple of these, or a call of CONSTRUCTORS."""
    if isinstance(value, ast.Call):
        _check_quiet(value, rules)
    elif not _is_constant(value):
        raise _violation(value, "a value that is not a number, a string or a tuple of these")


def _is_constant(value: ast.expr) -> bool:
    match value:
        case ast.Constant() | ast.UnaryOp(operand=ast.Constant()):
            return True
        case ast.Tuple(elts=elements):
            return all(map(_is_constant, elements))
    return False


def _check_quiet(value: ast.expr, rules: Rules) -> None:
    """Raise Violation unless evaluating an expression has no side effects."""
    if isinstance(value, ast.Lambda):
        _check_function(value, rules)
    elif isinstance(value, ast.Call):
        if not isinstance(value.func, ast.Name) or rules.imported.get(value.func.id) not in CONSTRUCTORS:
            raise _violation(value, "a call outside of a function")
        _check_arguments(value, rules)
    elif not (_is_constant(value) or _is_dotted(value)):
        raise _violation(value, "an expression outside of a function that is not a name or a constant")


def _check_arguments(call: ast.Call, rules: Rules) -> None:
    if any(keyword.arg is None for keyword in call.keywords):
        raise _violation(call, "a call with ** outside of a function")
    for value in (*call.args, *(keyword.value for keyword in call.keywords)):
        _check_quiet(value, rules)


def _check_anywhere(node: ast.AST, shared: set[str], rules: Rules) -> None:
    """Raise Violation for anything that can read or change objects without naming them."""
    match node:
        case ast.Import() | ast.ImportFrom():
            _check_import(node, rules)
        case ast.Global():
            raise _violation(node, "a global statement")
        case ast.Name(name) if name in BY_TEXT or _is_dunder(name):
            raise _violation(node, f"{name} can access objects that the code does not name")
        case ast.Name(name, ctx=ast.Load()) if name in rules.tables:
            raise _violation(node, f"{name} is used; a table may only be defined")
        case ast.Attribute(attr=name) if _is_dunder(name):
            raise _violation(node, f"{name} can access objects that the code does not name")
        case ast.Attribute(ctx=ast.Store() | ast.Del()) if _root(node) != "self":
            raise _violation(node, "an attribute of another object than self is set")
        case ast.Subscript(ctx=ast.Store() | ast.Del()) if (_root(node) or "") in {*shared, ""}:
            raise _violation(node, "an item of an object that other code may use is set")


def _check_import(node: ast.Import | ast.ImportFrom, rules: Rules) -> None:
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    if isinstance(node, ast.ImportFrom) and (node.level or any(each.name == "*" for each in node.names)):
        raise _violation(node, "a relative import, or an import of *")
    for module in modules:
        top = module.partition(".")[0]
        if top != PACKAGE and (top not in HARMLESS or rules.is_local(top)):
            raise _violation(node, f"the import of {top} may have side effects")
        if top == PACKAGE and not (
            isinstance(node, ast.ImportFrom)
            and all(rules.is_definition((module, alias.name)) for alias in node.names)
        ):
            raise _violation(node, "an import from ncpipe that is no function, class or constant")


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name not in KNOWN_DUNDERS


def _is_dotted(node: ast.expr) -> bool:
    """Return whether an expression is a name, or an attribute of one."""
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_dotted(node.value))


def _root(node: ast.expr) -> str | None:
    """Return the name that a chain of attributes and items begins with; None if it begins otherwise."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
