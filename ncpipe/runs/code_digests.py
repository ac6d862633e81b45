"""What code a result depends on: digests of the definitions that a function reaches, from their syntax trees.

The unit is what stands at the top of a module: a function, a class, a constant. From a function onwards
every name that is read in it leads to what defines it, across modules, until nothing new is found. Comments,
docstrings, layout, messages of errors and annotations are no part of a digest; annotations are followed,
though, because an object's methods are known by its type.

A choice of params.yaml (architecture, source of the data, loss) picks one entry of a table or one member of
a union, so that a new entry changes nothing for the others.

A digest that knows too much costs time, one that knows too little keeps a wrong result. So a class counts
with all its methods, a name counts for whatever it may stand for, and with the first definition of a module
counts all that it does when it is imported (loops, assignments to what is no name, what decorators of ours
see). What is looked up in a way that no syntax tree shows (getattr on a module, importlib) would be missed:
the package has nothing of the kind, and a test compares with the functions that really run. Of other
packages the names count that are used, not the versions, and of data the checksums that stages depend on.

A study.py may hold any Python. In plain form (`ncpipe.runs.plain_form`) an experiment's part of it is what
the entries of its tables reach. Otherwise the whole file and the whole package count, for every experiment.
Files besides it, such as modules that it imports, count if dvc.yaml lists them for the stage `code`.
"""

import ast
import functools
import hashlib
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ncpipe.config.choices import PICKED_BY, STUDY, STUDY_TABLES, TABLES, Choices, Definition
from ncpipe.runs.plain_form import Doubt, Rules, first_doubt
from ncpipe.system.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "ncpipe"
PIPELINE = Path("dvc.yaml")
READ_ONLY = "MappingProxyType"  # around a table of the package, which is then the same to a digest
WHOLE = "*"  # in place of a definition's name: all that its module defines
EFFECTS = "<import>"  # what a module does when it is imported, besides defining

ANNOTATIONS = ("annotation", "returns")
NOT_COUNTED = (*ANNOTATIONS, "simple", "ctx", "kind", "type_comment", "type_params")

# Where each stage of a dvc.yaml begins; the others are one for each experiment, these are one for a sweep.
SWEEP_STAGES: Mapping[str, Definition] = {
    "grid": ("ncpipe.commands.grid", "write_grid"),
    "aggregate": ("ncpipe.commands.aggregate", "aggregate"),
    "plot": ("ncpipe.commands.plot", "plot"),
    "claims": ("ncpipe.commands.claims", "claims"),
    "report": ("ncpipe.commands.report", "report"),
    "counterexample": ("ncpipe.papers.s25.commands.counterexample", "write_counterexample"),
    "low_rank": ("ncpipe.papers.s24.commands.low_rank", "low_rank"),
    "low_rank_real": ("ncpipe.papers.s24.commands.low_rank_real", "low_rank_real"),
    "theory": ("ncpipe.papers.s25.commands.theory", "theory"),
    "models": ("ncpipe.papers.k23.commands", "write_models"),
}
EXPERIMENT_STAGES: Mapping[str, Definition] = {
    "fetch": ("ncpipe.commands.fetch", "fetch"),
    "extract": ("ncpipe.commands.extract", "extract_experiment"),
    "measure": ("ncpipe.commands.measure", "measure"),
    "construct": ("ncpipe.papers.s25.commands.construct", "construct"),
    "series": ("ncpipe.papers.s24.commands.series", "series"),
}
# What decides the numbers of a run, and not which runs train when, side by side with what.
TRAIN = "train"
TRAINING = (
    ("ncpipe.datasets.prepared", "read_prepared"),
    ("ncpipe.runs.batches", "starts_of"),
    ("ncpipe.runs.fingerprint", "inputs_of"),  # what run.json says and is later compared with
    ("ncpipe.training.device", "prepare_device"),
    ("ncpipe.training.loop", "train_batch"),
    ("ncpipe.runs.run_folder", "write_run"),
)
# The tables of study.py that an experiment's stages look into, which no name in the package leads to. Every
# stage may ask a spec for what it declares. The stages of a sweep train nothing and count the whole file.
OWN_TABLES: Mapping[str, tuple[str, ...]] = {
    "fetch": ("DATA",),
    "extract": ("NETWORKS", "LOSSES"),
    "measure": ("NETWORKS", "LOSSES", "METRICS"),
    "series": ("NETWORKS", "LOSSES", "OPTIMIZERS"),
    TRAIN: ("NETWORKS", "LOSSES", "OPTIMIZERS"),
}
# Files that a stage reads from the package besides its modules: every byte of them counts.
PAGE_FILES: Mapping[str, str] = {"report": "report/templates"}
# What only speaks to the user, and this.
TALK = ("ncpipe", "ncpipe.runs.code_digests", "ncpipe.system.console", "ncpipe.system.errors")
# Reads, checks and files away, but decides no number of a run.
PLUMBING = (
    "ncpipe.system.artifacts",
    "ncpipe.config.params",
    "ncpipe.config.records",
    "ncpipe.runs.fingerprint",
    "ncpipe.config.study",
)
Picked = tuple[tuple[str, str], ...]  # kinds of choice, each with what is chosen


@dataclass(frozen=True)
class Module:
    """A module's statements by what they define, and what the names that it imports stand for."""

    definitions: dict[str, list[ast.stmt]]
    imports: dict[str, Definition]


def sweep_digests() -> dict[str, dict[str, str]]:
    """Stage -> module -> digest, of the stages that are one for a sweep."""
    own = _study_digests([(STUDY, WHOLE)], {})
    return {
        stage: code_digests([root], {}, TALK) | own | _page_digests(stage)
        for stage, root in SWEEP_STAGES.items()
    }


def _page_digests(stage: str) -> dict[str, str]:
    """File -> digest of what a stage reads from the package besides modules."""
    if stage not in PAGE_FILES:
        return {}
    return {
        path.relative_to(ROOT).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in _page_files(stage)
    }


def _page_files(stage: str) -> list[Path]:
    return sorted((ROOT / PACKAGE / PAGE_FILES[stage]).glob("*.*"))


def experiment_digests(choices: Choices) -> dict[str, dict[str, str]]:
    """The same of the stages that are one for an experiment (and of `train`), under its choices."""
    stages = {
        stage: code_digests([root], choices, TALK) | _own_digests(stage, choices)
        for stage, root in EXPERIMENT_STAGES.items()
    }
    return stages | {TRAIN: training_digests(choices)}


def training_digests(choices: Choices) -> dict[str, str]:
    """Module -> digest of what decides the numbers of a run."""
    return code_digests(TRAINING, choices, (*TALK, *PLUMBING)) | _own_digests(TRAIN, choices)


def _own_digests(stage: str, choices: Choices) -> dict[str, str]:
    """File -> digest of what an experiment's stage depends on beside params.yaml."""
    if not _is_module(STUDY) or study_doubt() is not None:
        return _study_digests([], {})
    picked = {table: choices[choice] for table, choice in PICKED_BY.items() if choice in choices}
    asked = [table for table in OWN_TABLES.get(stage, ()) if _table(table).keys]
    roots: list[Definition] = [(STUDY, table) for table in asked if table not in picked]
    for table, choice in picked.items():
        keys = [key for key in _table(table).keys if _is_key(key, STUDY, ((table, choice),))]
        roots += [(STUDY, key.id) for key in keys if isinstance(key, ast.Name)]
        if keys and table in asked:
            roots.append((STUDY, table))
    return _study_digests(roots, picked)


def _table(name: str) -> ast.Dict:
    """A table of a study.py in plain form; empty if the file does not define it."""
    for statement in read_module(STUDY).definitions.get(name, []):
        value = getattr(statement, "value", None)
        assert isinstance(value, ast.Dict)
        return value
    return ast.Dict([], [])


def _study_digests(roots: Collection[Definition], choices: Choices) -> dict[str, str]:
    """File -> digest of what `roots` reach from a study.py in plain form, or of all that another can reach.

    With them those of the files that dvc.yaml lists beside it.
    """
    if not _is_module(STUDY):
        return {}
    own = code_digests(roots, choices) if study_doubt() is None else _everything()
    text = "".join(f"{digest}  {module}\n" for module, digest in own.items())
    found = {path.as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in listed_files()}
    return ({f"{STUDY}.py": hashlib.sha256(text.encode()).hexdigest()} if own else {}) | found


@functools.cache
def _everything() -> dict[str, str]:
    """Digests of the whole study.py, but for docstrings, comments and layout, and of the package's files."""
    text = ast.unparse(_parsed(STUDY))
    return {
        STUDY: hashlib.sha256(text.encode()).hexdigest(),
        PACKAGE: _digest_of_files(_package_files()),
    }


@functools.cache
def study_doubt() -> Doubt | None:
    """Return what in study.py is not in plain form, with its line; None if all is, or there is no file."""
    if not _is_module(STUDY):
        return None
    imported = read_module(STUDY).imports
    return first_doubt(_parsed(STUDY), Rules(STUDY_TABLES, imported, _is_lasting, _is_local))


def _is_lasting(origin: Definition) -> bool:
    """Whether a name of the package is a function, a class or a constant that cannot be changed in place."""
    module, name = origin
    if not _is_ours(module) or not _file(module).is_file() or _file(module).name == "__init__.py":
        return False
    own = read_module(module)
    if name in own.imports:
        return name not in own.definitions and _is_lasting(own.imports[name])
    lasting = ast.Constant | ast.Subscript | ast.Tuple | ast.UnaryOp
    return name in own.definitions and all(
        isinstance(each, ast.FunctionDef | ast.ClassDef) or isinstance(getattr(each, "value", None), lasting)
        for each in own.definitions[name]
    )


def _is_local(module: str) -> bool:
    return Path(module).is_dir() or Path(f"{module}.py").is_file()


def dependencies(stage: str) -> list[str]:
    """The dependencies that dvc.yaml, where there is one, lists for a stage; normalised."""
    if not PIPELINE.is_file():
        return []
    from ncpipe.config.yaml_file import read_yaml  # slow, and needed beside a study.py alone

    stages = (read_yaml(PIPELINE) or {}).get("stages") or {}
    return [os.path.normpath(path) for path in stages.get(stage, {}).get("deps") or []]


def listed_files() -> list[Path]:
    """The files that dvc.yaml lists for the stage `code` besides the package and study.py; of folders all.

    Raises InputError if one is not here.
    """
    found = set()
    for path in (Path(each) for each in dependencies("code") if each not in (PACKAGE, f"{STUDY}.py")):
        if not path.exists():
            raise InputError(f"{PIPELINE}: {path}, a dependency of the stage code, is no file or folder")
        within = path.rglob("*") if path.is_dir() else [path]
        found |= {file for file in within if file.is_file() and "__pycache__" not in file.parts}
    return sorted(found)


def code_digests(
    roots: Collection[Definition], choices: Choices, without: Collection[str] = ()
) -> dict[str, str]:
    """Module -> digest of what `roots` reach in it.

    choices: by kind, as TABLES names them; a table whose kinds are not all among them counts whole. without:
    modules of which only `roots` are counted and followed.
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
    """The definitions that `roots` lead to, themselves among them, and the names from other packages in each.

    Names of types that only annotations use lead on to the classes that they stand for, and are not counted.
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
        elif name in own.imports:  # handed on
            todo += [(*found, is_type) for found in [own.imports[name]] if _is_ours(found[0])]
        elif name == WHOLE:
            todo += [(module, each, is_type) for each in own.definitions]
        elif _is_module(f"{module}.{name}"):
            todo.append((f"{module}.{name}", WHOLE, is_type))
        else:
            raise LookupError(f"{module} has no {name}")
    return counted


def files_digest() -> str:
    """Digest of every byte of the files that digests are taken of, comments and all."""
    return _digest_of_files(digested_files())


def _digest_of_files(paths: Collection[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def digested_files() -> list[Path]:
    """The files that digests are taken of: the package's, study.py and what is listed beside it."""
    return [*_package_files(), *study_files()]


def study_files() -> list[Path]:
    """study.py, if there is one, and what is listed beside it."""
    study = Path(f"{STUDY}.py")
    return [study, *listed_files()] if study.is_file() else []


def _package_files() -> list[Path]:
    """The package's modules and pages."""
    pages = [path for stage in PAGE_FILES for path in _page_files(stage)]
    return [*sorted((ROOT / PACKAGE).rglob("*.py")), *pages]


def forget() -> None:
    """Let files be read anew: they may have changed since."""
    for cached in (read_module, study_doubt, _everything, _statements, _text, _all_names):
        cached.cache_clear()


@functools.cache
def read_module(name: str) -> Module:
    """A module as its file is when it is first read (until `forget`)."""
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
    """A module's syntax tree, in which a table that is read-only is written as one that is not.

    That of study.py is without docstrings; the others' are left out where they are made text.
    """
    tree = ast.parse(_file(module).read_bytes())
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
                WHOLE,
            )
            for alias in statement.names
        }
    module = statement.module or ""
    return {
        alias.asname or alias.name: (
            (f"{module}.{alias.name}", WHOLE)
            if _is_ours(module) and _is_module(f"{module}.{alias.name}")
            else (module, alias.name)
        )
        for alias in statement.names
    }


def _defined(statement: ast.stmt) -> list[str]:
    """Names that a statement at the top of a module binds there."""
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
    """Whether a statement that defines names may change something else too: a loop, a decorator of ours."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        names = {name.id for decorator in statement.decorator_list for name in _members(decorator)}
        return any(name not in imports or _is_ours(imports[name][0]) for name in names)
    return not isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign)


def _choice(module: str, name: str, choices: Choices) -> Picked | None:
    """Return what is chosen from a table; None for anything else, and for a table that counts whole."""
    kinds = TABLES.get((module, name), ())
    known = kinds and all(kind in choices for kind in kinds)
    return tuple((kind, choices[kind]) for kind in kinds) if known else None


@functools.cache
def _statements(module: str, name: str, choice: Picked | None) -> list[ast.stmt]:
    """What defines a name; of a table what is chosen."""
    statements = read_module(module).definitions[name]
    return statements if choice is None else [_picked(each, module, name, choice) for each in statements]


@functools.cache
def _text(module: str, name: str, choice: Picked | None) -> str:
    as_text = ast.unparse if module == STUDY else _dumped  # annotations and messages count in study.py
    return "\n".join(as_text(statement) for statement in _statements(module, name, choice))


@functools.cache
def _all_names(
    module: str, name: str, choice: Picked | None, is_type: bool
) -> frozenset[tuple[str, str, bool]]:
    """`_names` of all that defines a name."""
    statements = _statements(module, name, choice)
    return frozenset(found for statement in statements for found in _names(statement, module, is_type))


def _picked(statement: ast.stmt, module: str, name: str, choice: Picked) -> ast.stmt:
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Dict):
        pairs = zip(value.keys, value.values, strict=True)
        chosen = [pair for pair in pairs if _is_key(pair[0], module, choice)]
        if not chosen:  # put there at run time
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
    """Whether a record has a field, named as a kind of choice, whose literals include what is chosen."""
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
    """What the names in a statement stand for, if the module's top or the statement imports or defines them.

    The third says whether it is part of an annotation only; is_type: whether all of the statement is. A local
    variable of the same name counts as that: a digest may know too much, never too little.
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
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports |= _imported(node)
        else:
            todo += _children(node, typed, messages=module == STUDY)
    for name, attribute, typed in used:
        if name in own.definitions:
            yield module, name, typed
        if name in imports:  # of the statement, perhaps
            home, what = imports[name]
            yield home, attribute if attribute and what == WHOLE else what, typed


def _children(node: ast.AST, typed: bool, messages: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Parts of a syntax tree, less what an error says, and whether each is part of an annotation.

    messages: whether what an error says is among them.
    """
    if not messages and isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        yield node.exc.func, typed
    elif not messages and isinstance(node, ast.Assert):
        yield node.test, typed
    elif typed and isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        kind, inner = node.value.id, node.slice
        if kind == "Annotated" and isinstance(inner, ast.Tuple):
            inner = inner.elts[0]
        yield from [(node.value, True)] + [(inner, True)] * (kind != "Literal")
    elif typed and isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield ast.parse(node.value, mode="eval"), True
    else:
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield child, typed or name in ANNOTATIONS


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _dumped(node: object, in_class: bool = False) -> str:
    """A syntax tree as text, the same in every version of Python: without what is empty.

    in_class: whether it stands directly in a class, where an annotation makes a variable a field.
    """
    if isinstance(node, list):
        return f"[{','.join(_dumped(each, in_class) for each in node if not _is_docstring(each))}]"
    if isinstance(node, ast.Raise | ast.Assert):
        return f"{type(node).__name__}{[_dumped(child) for child, _ in _children(node, False)]}"
    if isinstance(node, ast.AnnAssign) and node.value is not None and not in_class:
        node = ast.Assign([node.target], node.value)
    if not isinstance(node, ast.AST):
        return repr(node)
    of_class = isinstance(node, ast.ClassDef)
    fields = ((name, value) for name, value in ast.iter_fields(node) if name not in NOT_COUNTED)
    inner = (f"{name}={_dumped(value, of_class)}" for name, value in fields if value not in (None, []))
    return f"{type(node).__name__}({','.join(inner)})"
