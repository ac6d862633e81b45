"""Read YAML as DVC does: PyYAML's C parser with the scalar rules of YAML 1.2, into plain values.

DVC reads params.yaml with ruamel.yaml, whose rules these are: 1e-3 and 010 are numbers, `no` and 1:30 text.
Values that other readers understand differently (dates, tags, a key twice) are refused.
"""

import math
import re
import typing
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import yaml

from ncpipe.system.errors import InputError, cut, shown, word

DEEPEST = 100  # levels of lists and keys
MOST_VALUES = 100_000  # with every alias counted as what it stands for
LONGEST_NUMBER = 400  # characters; the largest float has 309 digits
TAG = "tag:yaml.org,2002:"
NUMERIC = "-+.0123456789"
RESOLVERS = (  # of a word without quotes: its tag, its form and what it begins with
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+|[0-9_]+)", NUMERIC),
    (
        "float",
        r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|[-+]?\.[0-9_]+(?:[eE][-+][0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        NUMERIC,
    ),
    (
        "timestamp",
        r"\d{4}-\d\d-\d\d|\d{4}-\d\d?-\d\d?(?:[Tt]|[ \t]+)\d\d?:\d\d:\d\d(?:\.\d*)?"
        r"(?:[ \t]*(?:Z|[-+]\d\d?(?::\d\d)?))?",
        NUMERIC,
    ),
    ("merge", "<<", "<"),
    ("value", "=", "="),
)


class Loader(yaml.CSafeLoader):
    """Composes the nodes of a text, with the tags of YAML 1.2."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]


for tag, form, first in RESOLVERS:
    Loader.add_implicit_resolver(TAG + tag, re.compile(rf"(?:{form})\Z", re.ASCII), list(first))


def read_yaml(path: Path) -> Any:
    """Return the values of a YAML file; raise InputError, with its path and the line, if it is invalid."""
    try:
        return parse_yaml(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not valid YAML: byte {error.start} is not UTF-8") from None
    except InputError as error:
        raise InputError(cut(f"{path}: {error}")) from None


def parse_yaml(text: str) -> Any:
    """Return the values of a YAML text; an alias is the object that it names."""
    if re.search(r"^%YAML (?!1\.2)", text, re.MULTILINE):
        raise InputError("line 1: only YAML 1.2 is read; remove the %YAML line")
    try:
        _check_depth(text)
        root = yaml.compose(text, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        raise InputError(f"not valid YAML: {_problem(error)}") from None
    except (yaml.YAMLError, UnicodeEncodeError) as error:  # characters that no YAML has
        raise InputError(f"not valid YAML: {' '.join(str(error).split())}") from None
    return None if root is None else _Values().of(root)


def _check_depth(text: str) -> None:
    """Raise InputError for lists and keys so deep that composing them would end the process."""
    depth = 0
    for event in yaml.parse(text, Loader=Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            line = event.start_mark.line + 1  # type: ignore[union-attr]
            raise InputError(f"line {line}: nested more than {DEEPEST} deep")


def _problem(error: yaml.MarkedYAMLError) -> str:
    """Return what is wrong and where, and where that began: an open bracket is missed in a later line."""
    mark, start = error.problem_mark, error.context_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    began = f"{error.context} (line {start.line + 1}): " if start else ""
    return f"{where}{began}{error.problem or error.context}"


def key_lines(text: str) -> dict[str, int]:
    """Return the line (from 1) of each key of a YAML text, by its dotted path.

    Merged keys (`<<`) have the line where they are written.
    """
    lines: dict[str, int] = {}

    def walk(node: yaml.Node | None, path: str) -> None:
        if not isinstance(node, yaml.MappingNode):
            return
        merged = [value for key, value in node.value if key.value == "<<"]
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                name = f"{path}.{word(key.value)}" if path else word(key.value)
                lines.setdefault(name, key.start_mark.line + 1)
                walk(value, name)
        for value in merged:
            for member in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                walk(member, path)

    walk(yaml.compose(text, Loader=Loader), "")
    return lines


def shared_mappings(tree: Any) -> list[tuple[str, str]]:
    """Return the dotted paths of each mapping that an alias or a merge key has put in a second place.

    Each pair is the second path and the first. `tree` is what `read_yaml` returns, where an alias is the
    object that it names. Mappings below a shared one are left out.
    """
    first: dict[int, str] = {}
    pairs = []

    def walk(node: Any, path: str) -> None:
        if isinstance(node, dict):
            if id(node) in first:
                pairs.append((path, first[id(node)]))
                return
            first[id(node)] = path
        if isinstance(node, dict | list):
            for key, value in node.items() if isinstance(node, dict) else enumerate(node):
                walk(value, f"{path}.{word(key)}" if path else word(key))

    walk(tree, "")
    return pairs


def parse_number(text: str) -> int | float:
    """Return a number written as in params.yaml; raise InputError for anything else."""
    value = parse_yaml(text)
    if type(value) not in (int, float) or not math.isfinite(value):
        raise InputError(f"{shown(text)} is not a number")
    return typing.cast(int | float, value)


class _Values:
    """One pass over a text's nodes; `line` is the current line, for messages."""

    def __init__(self) -> None:
        self.line = 1
        self.count = 0
        self.values: dict[int, tuple[Any, int] | None] = {}  # by node: value and size, None inside itself

    def refuse(self, problem: str) -> NoReturn:
        raise InputError(f"line {self.line}: {problem}")

    def of(self, node: yaml.Node) -> Any:
        self.line = node.start_mark.line + 1
        before = self.count
        if id(node) in self.values:  # an alias
            if (target := self.values[id(node)]) is None:
                self.refuse("an alias stands inside what it names")
            value, size = target
            self.count += size
        else:
            self.values[id(node)] = None
            self.count += 1
            value = self.new(node)
            self.values[id(node)] = value, self.count - before
        if self.count > MOST_VALUES:
            self.refuse(f"more than {MOST_VALUES} values, counting each alias as all it stands for")
        return value

    def new(self, node: yaml.Node) -> Any:
        """Return the value of a node that is no alias."""
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node.value, node.tag.removeprefix(TAG))
        if node.tag not in (f"{TAG}seq", f"{TAG}map"):
            self.refuse(f"the tag {shown(node.tag.removeprefix(TAG))} means nothing here; remove it")
        if isinstance(node, yaml.SequenceNode):
            return [self.of(member) for member in node.value]
        mapping: dict[str, Any] = {}
        merged: dict[str, Any] | None = None
        for key_node, value_node in node.value:
            self.line = key_node.start_mark.line + 1
            if key_node.tag == f"{TAG}merge":
                if merged is not None:
                    self.refuse("the key << is there twice; merge a list: <<: [*a, *b]")
                merged = self.merged(self.of(value_node))
                continue
            key = self.of(key_node)
            if not isinstance(key, str):
                self.refuse(f"the key {shown(key)} is no text; put quotes around it")
            if key in mapping:
                self.refuse(f"the key {shown(key)} is there twice; remove one")
            mapping[key] = self.of(value_node)
        return (merged or {}) | mapping

    def merged(self, value: Any) -> dict[str, Any]:
        """Return what a merge key brings; of a list, the first member that has a key gives its value."""
        members = value if isinstance(value, list) else [value]
        merged: dict[str, Any] = {}
        for member in reversed(members):
            if not isinstance(member, dict):
                self.refuse("<< takes keys with values, or a list of such")
            merged |= member
        return merged

    def scalar(self, text: str, tag: str) -> Any:
        if tag in ("int", "float") and len(text) > LONGEST_NUMBER:
            self.refuse(f"a number of {len(text)} characters; {LONGEST_NUMBER} are the most")
        plain = text.lower().replace("_", "")
        try:
            match tag:
                case "str":
                    return text
                case "null":
                    return None
                case "bool":
                    return {"true": True, "false": False}[plain]
                case "int":
                    return int(plain, {"0b": 2, "0o": 8, "0x": 16}.get(plain.lstrip("+-")[:2], 10))
                case "float":
                    return float(plain.replace(".inf", "inf").replace(".nan", "nan"))
        except (KeyError, ValueError):
            self.refuse(f"{shown(text)} is no {tag}; put quotes around it if it is text")
        if tag == "timestamp":
            self.refuse(f"{shown(text)} is a date, which nothing here takes; quote it if it is text")
        if tag in ("merge", "value"):
            self.refuse(f"{text} means nothing here; quote it if it is text")
        return self.refuse(f"the tag {shown(tag)} means nothing here; remove it")
