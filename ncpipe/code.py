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
"""

import ast
import functools
import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "ncpipe"
STUDY = "study"  # the module study.py beside params.yaml, if there is one
WHOLE = "*"  # in place of a definition's name: all that its module defines
EFFECTS = "<import>"  # what a module does when it is imported, besides defining

ANNOTATIONS = ("annotation", "returns")
NOT_COUNTED = (*ANNOTATIONS, "simple", "ctx", "kind", "type_comment", "type_params")

Definition = tuple[str, str]  # module, name at its top
Choices = Mapping[str, str]
# The choice that picks from a table (a dict whose keys are text, or records) or from a union of records.
TABLES: Mapping[Definition, str] = {
    ("ncpipe.training.objective", "FITS"): "loss",
    ("ncpipe.datasets.prepare", "SOURCES"): "source",
    ("ncpipe.datasets.prepare", "TARGETS"): "target",
    ("ncpipe.models.build", "FAMILIES"): "architecture",
    ("ncpipe.scheduling.batches", "STARTS"): "architecture",
    ("ncpipe.specs", "Data"): "source",
    ("ncpipe.specs", "SIDES"): "source",
    ("ncpipe.specs", "Model"): "architecture",
    (STUDY, "NETWORKS"): "architecture",
    (STUDY, "DATA"): "source",
}

# Where each stage of a dvc.yaml begins; the others are one for each experiment, these are one for a sweep.
SWEEP_STAGES: Mapping[str, Definition] = {
    "grid": ("ncpipe.commands.grid", "write_grid"),
    "aggregate": ("ncpipe.commands.aggregate", "aggregate"),
    "plot": ("ncpipe.commands.plot", "plot"),
    "claims": ("ncpipe.commands.claims", "claims"),
    "report": ("ncpipe.commands.report", "report"),
    "counterexample": ("ncpipe.commands.counterexample", "write_counterexample"),
    "low_rank": ("ncpipe.commands.low_rank", "low_rank"),
    "low_rank_real": ("ncpipe.commands.low_rank_real", "low_rank_real"),
    "theory": ("ncpipe.commands.theory", "theory"),
    "models": ("ncpipe.commands.models", "write_models"),
}
EXPERIMENT_STAGES: Mapping[str, Definition] = {
    "fetch": ("ncpipe.commands.fetch", "fetch"),
    "extract": ("ncpipe.commands.extract", "extract_experiment"),
    "measure": ("ncpipe.commands.measure", "measure"),
    "construct": ("ncpipe.commands.construct", "construct"),
    "series": ("ncpipe.commands.series", "series"),
}
# What decides the numbers of a run, and not which runs train when, side by side with what.
TRAIN = "train"
TRAINING = (
    ("ncpipe.datasets.prepared", "read_prepared"),
    ("ncpipe.scheduling.batches", "starts_of"),
    ("ncpipe.stamps", "inputs_of"),  # what run.json says and is later compared with
    ("ncpipe.training.device", "prepare_device"),
    ("ncpipe.training.loop", "train_batch"),
    ("ncpipe.training.run_folder", "write_run"),
)
# The tables of study.py that stages look into, which no name in the package leads to.
OWN_TABLES: Mapping[str, tuple[str, ...]] = {
    "grid": ("METRICS",),
    "aggregate": ("METRICS",),
    "plot": ("METRICS",),
    "claims": ("METRICS",),
    "report": ("METRICS",),
    "fetch": ("DATA",),
    "extract": ("NETWORKS",),
    "measure": ("NETWORKS", "METRICS"),
    "series": ("NETWORKS",),
    TRAIN: ("NETWORKS",),
}
# Files that a stage reads from the package besides its modules: every byte of them counts.
PAGE_FILES: Mapping[str, str] = {"report": "report/templates"}
# What only speaks to the user, and this.
TALK = ("ncpipe", "ncpipe.code", "ncpipe.console", "ncpipe.errors")
# Reads, checks and files away, but decides no number of a run.
PLUMBING = (
    "ncpipe.artifacts",
    "ncpipe.code_memory",
    "ncpipe.params",
    "ncpipe.records",
    "ncpipe.stamps",
    "ncpipe.study",
)


@dataclass(frozen=True)
class Module:
    """A module's statements by what they define, and what the names that it imports stand for."""

    definitions: dict[str, list[ast.stmt]]
    imports: dict[str, Definition]


def sweep_digests() -> dict[str, dict[str, str]]:
    """Stage -> module -> digest, of the stages that are one for a sweep."""
    return {
        stage: code_digests([root, *_own_roots(stage, {})], {}, TALK) | _page_digests(stage)
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
        stage: code_digests([root, *_own_roots(stage, choices)], choices, TALK)
        for stage, root in EXPERIMENT_STAGES.items()
    }
    return stages | {TRAIN: training_digests(choices)}


def training_digests(choices: Choices) -> dict[str, str]:
    """Module -> digest of what decides the numbers of a run."""
    return code_digests((*TRAINING, *_own_roots(TRAIN, choices)), choices, (*TALK, *PLUMBING))


def _own_roots(stage: str, choices: Choices) -> list[Definition]:
    """The tables of study.py that a stage looks into, if they have what is chosen."""
    if not _is_module(STUDY):
        return []
    defined = read_module(STUDY).definitions
    tables = [table for table in OWN_TABLES.get(stage, ()) if table in defined]
    return [(STUDY, table) for table in tables if _has(table, choices)]


def _has(table: str, choices: Choices) -> bool:
    """Whether a table of study.py has the choice; any has that is not written out as a dict."""
    choice = _choice(STUDY, table, choices)
    values = [getattr(each, "value", None) for each in read_module(STUDY).definitions[table]]
    return choice is None or any(
        not isinstance(value, ast.Dict)
        or any(_is_key(key, STUDY, TABLES[STUDY, table], choice) for key in value.keys)
        for value in values
    )


def code_digests(
    roots: Collection[Definition], choices: Choices, without: Collection[str] = ()
) -> dict[str, str]:
    """Module -> digest of what `roots` reach in it.

    choices: by kind, as TABLES names them; a table whose kind is not among them counts whole. without:
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
    digest = hashlib.sha256()
    for path in digested_files():
        digest.update(f"{path.relative_to(ROOT) if path.is_absolute() else path}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def digested_files() -> list[Path]:
    """The files that digests are taken of: the package's modules and pages, and study.py if there is one."""
    study = Path(f"{STUDY}.py")
    pages = [path for stage in PAGE_FILES for path in _page_files(stage)]
    modules = sorted((ROOT / PACKAGE).rglob("*.py"))
    return [*modules, *pages, *([study] if study.is_file() else [])]


def forget() -> None:
    """Let files be read anew: they may have changed since."""
    for cached in (read_module, _statements, _text, _all_names):
        cached.cache_clear()


@functools.cache
def read_module(name: str) -> Module:
    """A module as its file is when it is first read (until `forget`)."""
    definitions: dict[str, list[ast.stmt]] = {}
    imports: dict[str, Definition] = {}
    for statement in ast.parse(_file(name).read_bytes()).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            imports |= _imported(statement)
        elif not _is_docstring(statement):
            names = _defined(statement)
            for defined in names if names and not _does_more(statement, imports) else [*names, EFFECTS]:
                definitions.setdefault(defined, []).append(statement)
    return Module(definitions, imports)


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


def _choice(module: str, name: str, choices: Choices) -> str | None:
    """What is chosen from a table; None of anything else, and of a table that counts whole."""
    return choices.get(TABLES.get((module, name), ""))


@functools.cache
def _statements(module: str, name: str, choice: str | None) -> list[ast.stmt]:
    """What defines a name; of a table what is chosen."""
    statements = read_module(module).definitions[name]
    return statements if choice is None else [_picked(each, module, name, choice) for each in statements]


@functools.cache
def _text(module: str, name: str, choice: str | None) -> str:
    return "\n".join(_dumped(statement) for statement in _statements(module, name, choice))


@functools.cache
def _all_names(module: str, name: str, choice: str | None, is_type: bool) -> frozenset[tuple[str, str, bool]]:
    """`_names` of all that defines a name."""
    statements = _statements(module, name, choice)
    return frozenset(found for statement in statements for found in _names(statement, module, is_type))


def _picked(statement: ast.stmt, module: str, name: str, choice: str) -> ast.stmt:
    value = getattr(statement, "value", None)
    kind = TABLES[module, name]
    if isinstance(value, ast.Dict):
        pairs = zip(value.keys, value.values, strict=True)
        chosen = [pair for pair in pairs if _is_key(pair[0], module, kind, choice)]
        if not chosen:  # put there at run time
            return statement
        kept: ast.expr = ast.Dict([key for key, _ in chosen], [entry for _, entry in chosen])
    elif isinstance(value, ast.BinOp):
        members = [member for member in _members(value) if _takes(member, module, kind, choice)]
        kept = ast.Tuple(list(members), ast.Load())
    elif module == STUDY:  # made in some other way
        return statement
    else:
        raise LookupError(f"{module}.{name} is neither a dict nor a union")
    return ast.Assign([ast.Name(name, ast.Store())], kept)


def _is_key(key: ast.expr | None, module: str, kind: str, choice: str) -> bool:
    if isinstance(key, ast.Name):
        return _takes(key, module, kind, choice)
    return isinstance(key, ast.Constant) and key.value == choice


def _members(union: ast.expr) -> Iterator[ast.Name]:
    for node in ast.walk(union):
        if isinstance(node, ast.Name):
            yield node


def _takes(member: ast.Name, module: str, kind: str, choice: str) -> bool:
    """Whether a record has a field `kind` whose literal values include the choice."""
    home, name = read_module(module).imports.get(member.id, (module, member.id))
    return any(
        isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == kind
        and any(isinstance(leaf, ast.Constant) and leaf.value == choice for leaf in ast.walk(node.annotation))
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
            todo += _children(node, typed)
    for name, attribute, typed in used:
        if name in own.definitions:
            yield module, name, typed
        if name in imports:  # of the statement, perhaps
            home, what = imports[name]
            yield home, attribute if attribute and what == WHOLE else what, typed


def _children(node: ast.AST, typed: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Parts of a syntax tree, less what an error says, and whether each is part of an annotation."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        yield node.exc.func, typed
    elif isinstance(node, ast.Assert):
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
