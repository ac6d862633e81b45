"""Validate plain values into frozen records by pydantic, and report mistakes in our words.

The annotations of `ncpipe.config.experiment` and `ncpipe.config.params` define the type of each key: records,
lists, names, numbers with a Bound, and unions (`ncpipe.config.unions`). pydantic reads the values as JSON and
strictly: a list becomes a tuple and a whole number a float, but no text becomes a number.
"""

import difflib
import functools
import json
import math
import operator
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ncpipe.config.bounds import LARGEST, Bound, key_of
from ncpipe.config.unions import (
    NAME,
    WITH,
    ByPresence,
    TaggedBy,
    names_of,
    records_of,
    specs_of_study,
    values_of,
)
from ncpipe.system.errors import WORD, InputError, cut, shown, word

CONFIG = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, alias_generator=key_of)
UNIONS: tuple[Any, ...] = (typing.Union, types.UnionType)


def read(kind: Any, value: object, path: str = "") -> Any:
    """Return `value` as the annotated type `kind`; raise InputError with a line for each mistake."""
    record, mistakes = check(kind, value, path)
    if mistakes:
        raise InputError("\n".join(mistakes))
    return record


def check(kind: Any, value: object, path: str = "") -> tuple[Any, list[str]]:
    """Return `value` as the annotated type `kind` and no mistakes, or None and its mistakes."""
    odd: dict[str, str] = {}
    text = json.dumps([_with_names(value, path, odd)])
    try:
        (record,), found = adapter(kind).validate_json(text), []
    except ValidationError as error:
        record, found = None, [_mistake(kind, path, dict(each)) for each in error.errors(include_url=False)]
    known = [mistake.partition(": ")[0] for mistake in found]
    found += [line for where, line in odd.items() if not any(_is_within(where, each) for each in known)]
    return (None if found else record), list(dict.fromkeys(found))


def adapter(kind: Any) -> TypeAdapter[tuple[Any]]:
    """Return pydantic's adapter of a tuple of one value of a type; a dataclass itself takes no config."""
    return _adapter(kind, specs_of_study())


@functools.cache
def _adapter(kind: Any, joined_specs: object) -> TypeAdapter[tuple[Any]]:
    return TypeAdapter(tuple[kind], config=CONFIG)


def _is_within(path: str, other: str) -> bool:
    return path == other or path.startswith((f"{other}.", f"{other}["))


def _with_names(value: Any, path: str, odd: dict[str, str]) -> Any:
    """Return a value all of whose keys are text, as in JSON; `odd` takes a mistake for each other key."""
    if isinstance(value, list | tuple):
        return [_with_names(each, f"{path}[{index}]", odd) for index, each in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    named = {}
    for key, inner in value.items():
        where = joined(path, key)
        if not isinstance(key, str):
            odd[where] = cut(f"{where}: expected text for a name, got {kind_of(key)}")
        named[key if isinstance(key, str) else repr(key)] = _with_names(inner, where, odd)
    return named


def _mistake(kind: Any, path: str, error: dict[str, Any]) -> str:
    """Return one line for one of pydantic's errors."""
    location, name, wrong = error["loc"][1:], error["type"], error["input"]
    if name in ("missing", "unexpected_keyword_argument"):
        where, record = _walk(kind, path, location[:-1], wrong)
        key, known = location[-1], [key_of(field.name) for field in fields(record)]
        where = joined(where, key)
        problem = "missing; add it" if name == "missing" else f"unknown key; {suggest(key, known)}"
    else:
        where, expected = _walk(kind, path, location, wrong)
        if name.startswith("union_tag"):
            union, key = typing.cast(tuple[Any, str], _tagged(expected))
            where, problem = joined(where, key), _wrong_tag(union, key, wrong)
        else:
            problem = _wrong_name(kind, location, wrong) or _wrong_value(expected, error)
    if not where and name != "value_error":
        where = "the file"
    return cut(f"{where}: {problem}" if where else problem)


def _wrong_tag(union: Any, key: str, wrong: Mapping[str, Any]) -> str:
    if key not in wrong:
        return "missing; add it"
    return f"{shown(wrong[key])} is unknown; {suggest(wrong[key], _tags(union, key))}"


def _tags(union: Any, key: str) -> list[Any]:
    """Return the values of the key by which a union's records are chosen."""
    return [value for record in records_of(union) for value in values_of(record, key)]


def _wrong_name(kind: Any, location: Sequence[Any], wrong: object) -> str:
    """Return what to write for a record's name that is unknown, or lacks its keys; '' if it is no name."""
    if location[-1:] != (NAME,) or not (tagged := _tagged(_walk(kind, "", location[:-1], wrong)[1])):
        return ""
    union, key = tagged
    if wrong in (tags := _tags(union, key)):
        return f"{shown(wrong)} has keys of its own; write `{{{key}: {wrong}, ...}}`"
    known = dict.fromkeys([*typing.get_args(names_of(union)), *tags])
    return f"{shown(wrong)} is unknown; {suggest(wrong, known)}"


def _wrong_value(expected: Any, error: dict[str, Any]) -> str:
    wrong = error["input"]
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if is_dataclass(expected) or origin is dict or _tagged(expected):
        return f"expected keys with values, got {kind_of(wrong)}"
    if origin is tuple:
        return f"expected a list, got {kind_of(wrong)}"
    if origin is Literal:
        return f"{shown(wrong)} is unknown; {suggest(wrong, arguments)}"
    kind, bound = arguments if origin is Annotated else (expected, Bound())
    if (type(wrong) is int and kind in (int, float)) or (type(wrong) is float and kind is float):
        above = wrong > bound.high
        if bound.high >= LARGEST and not above:
            bound = replace(bound, high=math.inf)  # the end of float32 is not what is wrong
        why = f": {bound.why}" if bound.why and above else ""
        return f"{shown(wrong)} is out of range; it must be {bound}{why}"
    quoted = kind in (int, float) and isinstance(wrong, str) and _is_number(wrong)
    hint = "; write the number without quotes, as 0.001 or 1e-3" if quoted else ""
    return f"expected {_KINDS[kind]}, got {kind_of(wrong)}{hint}"


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _walk(kind: Any, path: str, location: Iterable[Any], wrong: object) -> tuple[str, Any]:
    """Return the dotted path of a location in pydantic's terms, and the type that is expected there.

    wrong: the value there, which decides what is expected of `64 | full`.
    """
    steps = iter(location)
    for step in steps:
        if forms := _by_presence(kind := _required(kind)):
            kind = forms[step == WITH]
        elif tagged := _tagged(kind):
            union, key = tagged
            if step == NAME:
                kind = names_of(union)
            elif names_of(union) is None or (step := next(steps, None)):
                kind = next(record for record in records_of(union) if step in values_of(record, key))
        elif typing.get_origin(kind) in UNIONS:
            kind = _meant(kind, wrong)
        elif is_dataclass(kind):
            hints = _hints(typing.cast(type, kind))
            path, kind = joined(path, step), hints.get(step) or hints[f"{step}_"]
        elif typing.get_origin(kind) is dict:
            path, kind = joined(path, step), typing.get_args(kind)[1]
        else:
            path, kind = f"{path}[{step}]", typing.get_args(kind)[0]
    return path, _meant(_required(kind), wrong)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _tagged(kind: Any) -> tuple[Any, str] | None:
    """Return the union and the key of a union that a key tells apart; None for any other type."""
    if typing.get_origin(kind) is Annotated:
        union, annotation, *_ = typing.get_args(kind)
        return (union, annotation.key) if isinstance(annotation, TaggedBy) else None
    return None


def _by_presence(kind: Any) -> tuple[Any, Any] | None:
    """Return the two records of a union that the presence of a key tells apart; None for any other type."""
    if typing.get_origin(kind) is Annotated:
        union, annotation, *_ = typing.get_args(kind)
        if isinstance(annotation, ByPresence):
            one, other = typing.get_args(union)
            return one, other
    return None


def _required(kind: Any) -> Any:
    """Return `kind` without its None."""
    if typing.get_origin(kind) not in UNIONS:
        return kind
    return functools.reduce(operator.or_, (each for each in typing.get_args(kind) if each is not type(None)))


def _meant(kind: Any, wrong: object) -> Any:
    """Return what a value is meant for in a union of names and another type: text is meant for the names."""
    if typing.get_origin(kind) not in UNIONS:
        return kind
    options = typing.get_args(kind)
    if set(options) == {int, float}:
        return float
    others = [option for option in options if typing.get_origin(option) is not Literal]
    return names_of(kind) if isinstance(wrong, str) or not others else others[0]


def suggest(name: object, known: Iterable[object]) -> str:
    """Return what to write in place of an unknown name."""
    words = [word(each) for each in known]
    if not words:
        return "nothing is allowed here"
    near = difflib.get_close_matches(str(name)[:WORD], words, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}allowed: {', '.join(words)}"


_KINDS: dict[type, str] = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def kind_of(value: object) -> str:
    """Describe a value's type: `text ('x')`."""
    if value is None:
        return "nothing (null)"
    if type(value) in _KINDS:
        return f"{_KINDS[type(value)]} ({shown(value)})"
    return "a list" if isinstance(value, list) else "keys with values"


def joined(path: str, key: object) -> str:
    """Return the dotted path of a key."""
    name = word(key if isinstance(key, str) else repr(key))
    return f"{path}.{name}" if path else name
