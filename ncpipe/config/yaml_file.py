"""Read YAML as DVC does: PyYAML's C parser with the scalar rules of YAML 1.2, into plain values.

DVC reads params.yaml with ruamel.yaml, whose rules these are: 1e-3 and 010 are numbers, `no` and 1:30 text.
Values that other readers understand differently (dates, tags, a key twice) are refused.
"""

import contextlib
import math
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import yaml

from ncpipe.system.errors import InputError, shown, word

DEEPEST = 100  # levels of lists and keys
MOST_VALUES = 100_000  # with every alias counted as what it stands for
LONGEST_NUMBER = 400  # characters; the largest float has 309 digits
TAG = "tag:yaml.org,2002:"

_WORDS = {"~": None, "": None} | {
    form: value
    for word, value in (("null", None), ("true", True), ("false", False))
    for form in (word, word.capitalize(), word.upper())
}
_INTEGER = re.compile(r"[-+]?(?:0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+|[0-9_]+)")
_FLOAT = re.compile(
    r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|[-+]?\.[0-9_]+(?:[eE][-+][0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    re.ASCII,
)
_DATE = re.compile(
    r"\d{4}-\d\d-\d\d|\d{4}-\d\d?-\d\d?(?:[Tt]|[ \t]+)\d\d?:\d\d:\d\d(?:\.\d*)?"
    r"(?:[ \t]*(?:Z|[-+]\d\d?(?::\d\d)?))?",
    re.ASCII,
)
_TRUTH = {
    "y": True,
    "yes": True,
    "true": True,
    "on": True,
    "n": False,
    "no": False,
    "false": False,
    "off": False,
}


def read_yaml(path: Path) -> Any:
    """Return the values of a YAML file; raise InputError, with the line's number, if it is invalid."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"not valid YAML: byte {error.start} is not UTF-8") from None
    return parse_yaml(text)


def parse_yaml(text: str) -> Any:
    """Return the values of a YAML text."""
    try:
        return _Reader(text).document()
    except yaml.MarkedYAMLError as error:
        raise InputError(f"not valid YAML: {_problem(error, text)}") from None
    except (yaml.YAMLError, UnicodeEncodeError) as error:  # characters that no YAML has
        raise InputError(f"not valid YAML: {' '.join(str(error).split())}") from None


def _problem(error: yaml.MarkedYAMLError, text: str) -> str:
    """Return what is wrong, and where.

    PyYAML reports a bracket or quote that is not closed where it gives up, which is in a later line.
    """
    problem, mark = error.problem or error.context, error.problem_mark
    if mark is None:
        return str(problem)
    where = f"line {mark.line + 1}, column {mark.column + 1}"
    if "tab character" in str(problem) or _character(text, mark) == "\t":
        return f"{where}: a tab; indent with spaces"
    quoted = error.context_mark is not None and _character(text, error.context_mark) in [*"'\""]
    start = error.context_mark if quoted else _open_bracket(text, mark)
    if start is not None and start.line < mark.line:
        opened = f"line {start.line + 1}, column {start.column + 1}: {_character(text, start)}"
        return f"{opened} is not closed ({where}: {problem})"
    return f"{where}: {problem}"


def _open_bracket(text: str, end: Any) -> Any:
    """Return the mark of the last bracket before a mark that is not closed there; None if there is none.

    The parser's own mark may be of a later one: in `[1, a: [2], }` it takes `a: [2]` for an entry.
    """
    opened: list[Any] = []
    with contextlib.suppress(yaml.YAMLError):
        for token in yaml.scan(text, Loader=yaml.CSafeLoader):
            if token.start_mark.index >= end.index:
                break
            if isinstance(token, yaml.FlowSequenceStartToken | yaml.FlowMappingStartToken):
                opened.append(token.start_mark)
            elif isinstance(token, yaml.FlowSequenceEndToken | yaml.FlowMappingEndToken) and opened:
                opened.pop()
    return opened[-1] if opened else None


def _character(text: str, mark: Any) -> str:
    """Return the character at a mark; '' at the end of a line."""
    return "".join(text.split("\n")[mark.line : mark.line + 1])[mark.column : mark.column + 1]


def key_lines(text: str) -> dict[str, int]:
    """Return the line (from 1) of each key of a YAML text, by its dotted path.

    Merged keys (`<<`) have the line where they are written.
    """
    found: dict[str, int] = {}

    def walk(node: yaml.Node, path: str) -> None:
        if not isinstance(node, yaml.MappingNode):
            return
        merged = [value for key, value in node.value if key.value == "<<"]
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                name = f"{path}.{word(key.value)}" if path else word(key.value)
                found.setdefault(name, key.start_mark.line + 1)
                walk(value, name)
        for value in merged:
            for each in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                walk(each, path)

    root = yaml.compose(text, Loader=yaml.CSafeLoader)
    if root is not None:
        walk(root, "")
    return found


def shared_mappings(tree: Any) -> list[tuple[str, str]]:
    """Return the dotted paths of each mapping that an alias or a merge key has put in a second place.

    Each pair is the second path and the first. `tree` is what `read_yaml` returns, where an alias is the
    object that it names. Mappings below a shared one are left out.
    """
    first: dict[int, str] = {}
    found = []

    def walk(node: Any, path: str) -> None:
        if isinstance(node, dict):
            if id(node) in first:
                found.append((path, first[id(node)]))
                return
            first[id(node)] = path
        if isinstance(node, dict | list):
            for key, value in node.items() if isinstance(node, dict) else enumerate(node):
                walk(value, f"{path}.{word(key)}" if path else word(key))

    walk(tree, "")
    return found


def parse_number(text: str) -> int | float:
    """Return a number written as in params.yaml; raise InputError for anything else."""
    value = parse_yaml(text)
    if type(value) not in (int, float) or not math.isfinite(value):
        raise InputError(f"{shown(text)} is not a number")
    return typing.cast(int | float, value)


class _Reader:
    """One pass over a text's events; `line` is the current line, for messages."""

    def __init__(self, text: str) -> None:
        self.events: Iterator[Any] = iter(yaml.parse(text, Loader=yaml.CSafeLoader))
        self.line = 1
        self.values = 0
        self.named: dict[str, tuple[Any, int] | None] = {}  # anchor: value and size, None inside itself

    def document(self) -> Any:
        next(self.events)  # the stream's start
        start = self.next()
        if isinstance(start, yaml.StreamEndEvent):
            return None
        if start.version not in (None, (1, 2)):
            self.refuse("only YAML 1.2 is read; remove the %YAML line")
        value = self.node(self.next(), 0)
        self.next()  # the document's end
        if not isinstance(self.next(), yaml.StreamEndEvent):
            self.refuse("a second document begins; a file holds one")
        return value

    def next(self) -> Any:
        event = next(self.events)
        self.line = event.start_mark.line + 1
        return event

    def refuse(self, problem: str) -> NoReturn:
        raise InputError(f"line {self.line}: {problem}")

    def node(self, event: Any, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self.alias(str(event.anchor))
        before = self.values
        self.count(1)
        if depth > DEEPEST:
            self.refuse(f"nested more than {DEEPEST} deep")
        if event.anchor:
            self.named[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            value = self.scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self.sequence(event, depth)
        else:
            value = self.mapping(event, depth)
        if event.anchor:
            self.named[event.anchor] = (value, self.values - before)
        return value

    def alias(self, name: str) -> Any:
        if name not in self.named:
            self.refuse(f"*{shown(name)} names nothing above it")
        named = self.named[name]
        if named is None:
            self.refuse(f"*{shown(name)} stands inside what it names")
        self.count(named[1])
        return named[0]

    def count(self, values: int) -> None:
        self.values += values
        if self.values > MOST_VALUES:
            self.refuse(f"more than {MOST_VALUES} values, counting each alias as all it stands for")

    def sequence(self, event: Any, depth: int) -> list[Any]:
        self.check_tag(event.tag, "seq")
        values = []
        while not isinstance(event := self.next(), yaml.SequenceEndEvent):
            values.append(self.node(event, depth + 1))
        return values

    def mapping(self, event: Any, depth: int) -> dict[Any, Any]:
        self.check_tag(event.tag, "map")
        own: dict[Any, Any] = {}
        merged: dict[Any, Any] | None = None
        while not isinstance(event := self.next(), yaml.MappingEndEvent):
            if _is_merge(event):
                if merged is not None:
                    self.refuse("the key << is there twice; merge a list: <<: [*a, *b]")
                merged = self.merged(self.node(self.next(), depth + 1))
                continue
            key = self.node(event, depth + 1)
            if isinstance(key, list | dict):
                self.refuse("a key is one word, not a list or keys with values")
            if key in own:
                self.refuse(f"the key {shown(key)} is there twice; remove one")
            own[key] = self.node(self.next(), depth + 1)
        return (merged or {}) | own

    def merged(self, value: Any) -> dict[Any, Any]:
        """Return what a merge key brings; of a list, the first member that has a key gives its value."""
        members = value if isinstance(value, list) else [value]
        merged: dict[Any, Any] = {}
        for member in reversed(members):
            if not isinstance(member, dict):
                self.refuse("<< takes keys with values, or a list of such")
            merged |= member
        return merged

    def scalar(self, event: Any) -> Any:
        text, tag = event.value, event.tag
        if tag is None:
            return self.plain(text) if event.implicit[0] else text
        if tag in (f"{TAG}int", f"{TAG}float"):
            self.check_length(text)
        try:
            match tag.removeprefix(TAG):
                case "str":
                    return text
                case "null":
                    return None
                case "bool":
                    return _TRUTH[text.lower()]
                case "int":
                    return _integer(text)
                case "float":
                    return _float(text)
        except (KeyError, ValueError):
            self.refuse(f"{shown(text)} is no {tag.removeprefix(TAG)}")
        return self.check_tag(tag, "str")

    def plain(self, text: str) -> Any:
        """Return a word without quotes, as YAML 1.2 reads it."""
        if text in _WORDS:
            return _WORDS[text]
        if text[0] in "-+.0123456789":
            number = _integer if _INTEGER.fullmatch(text) else _float if _FLOAT.fullmatch(text) else None
            if number:
                self.check_length(text)
                try:
                    return number(text)
                except ValueError:
                    self.refuse(f"{shown(text)} is neither a number nor, without quotes, text")
            if _DATE.fullmatch(text):
                self.refuse(f"{shown(text)} is a date, which nothing here takes; quote it if it is text")
        if text in ("=", "<<"):
            self.refuse(f"{text} means nothing here; quote it if it is text")
        return text

    def check_length(self, number: str) -> None:
        if len(number) > LONGEST_NUMBER:
            self.refuse(f"a number of {len(number)} characters; {LONGEST_NUMBER} are the most")

    def check_tag(self, tag: str | None, expected: str) -> None:
        if tag not in (None, TAG + expected):
            self.refuse(f"the tag {shown(tag.removeprefix(TAG))} means nothing here; remove it")


def _is_merge(event: Any) -> bool:
    return (
        isinstance(event, yaml.ScalarEvent)
        and event.value == "<<"
        and event.tag is None
        and event.implicit[0]
    )


def _integer(text: str) -> int:
    digits = text.replace("_", "")
    sign = -1 if digits.startswith("-") else 1
    if digits[:1] in ("-", "+"):
        digits = digits[1:]
    base = {"0b": 2, "0o": 8, "0x": 16}.get(digits[:2], 10)
    return sign * int(digits if base == 10 else digits[2:], base)


def _float(text: str) -> float:
    text = text.replace("_", "").lower()
    sign = -1.0 if text.startswith("-") else 1.0
    if text[:1] in ("-", "+"):
        text = text[1:]
    return sign * float({".inf": "inf", ".nan": "nan"}.get(text, text))
