"""Validate plain values into frozen records by pydantic's validator, and report mistakes in our words.

The annotations of `ncpipe.config.specs` and `ncpipe.config.params` define the type of each key: records,
lists, names, numbers with a Bound, and unions whose members differ in a record's first key. Values are not
converted, except whole numbers to floats and lists to tuples. pydantic_core is pydantic's validator without
its models: importing these would make the stages that take a trained run from the store half as slow again.
"""

import difflib
import functools
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, Literal

from pydantic_core import CoreSchema, SchemaValidator, ValidationError, core_schema

from ncpipe.config.bounds import LARGEST, Bound, key_of
from ncpipe.system.errors import WORD, InputError, cut, shown, word

UNIONS: tuple[Any, ...] = (typing.Union, types.UnionType)
NUMBER = "number"  # our name for the error of a value that is no number
MARK = "\0"  # begins the tag of a union's member, which pydantic puts into an error's path
# Tags that no name in params.yaml has behind the mark: `text` is a source of data.
TEXT, OTHER = f"{MARK}{MARK}text", f"{MARK}{MARK}other"


@dataclass(frozen=True)
class About:
    """Description of a record and of each of its keys, for a schema."""

    record: str
    keys: Mapping[str, str]


Describe = Callable[[type], About]
# Records of a study.py that join a union of the package, each behind a member of that union.
ExtraRecords = tuple[tuple[type, type], ...]


def read(kind: Any, value: object, path: str = "", extra: ExtraRecords = ()) -> Any:
    """Return `value` as the annotated type `kind`; raise InputError with a line for each mistake."""
    record, mistakes = check(kind, value, path, extra)
    if mistakes:
        raise InputError("\n".join(mistakes))
    return record


def check(kind: Any, value: object, path: str = "", extra: ExtraRecords = ()) -> tuple[Any, list[str]]:
    """Return `value` as the annotated type `kind` and no mistakes, or None and its mistakes.

    extra: records that join a union, each behind a member of that union.
    """
    try:
        return _validator(kind, extra).validate_python(value), []
    except ValidationError as error:
        found = [_mistake(kind, path, dict(each), extra) for each in error.errors(include_url=False)]
        return None, list(dict.fromkeys(found))


@functools.cache
def _validator(kind: Any, extra: ExtraRecords) -> SchemaValidator:
    return SchemaValidator(schema_of(kind, None, extra))


def schema_of(kind: Any, describe: Describe | None = None, extra: ExtraRecords = ()) -> CoreSchema:
    """Return pydantic's schema of an annotated type; with `describe` it describes each key.

    extra: see `check`.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind):
        return _record_schema(typing.cast(type, kind), describe, extra)
    if origin is Annotated:
        return _number_schema(arguments[0], arguments[1])
    if origin in UNIONS:
        rest = _options(kind, extra)
        schema: CoreSchema
        if set(rest) == {int, float}:
            schema = core_schema.union_schema(
                [_number_schema(int, Bound()), _number_schema(float, Bound())],
                custom_error_type=NUMBER,
                custom_error_message=NUMBER,
            )
        elif len(rest) == 1:
            schema = schema_of(rest[0], describe, extra)
        else:
            which, members = _members(rest)
            schema = core_schema.tagged_union_schema(
                {tag: schema_of(member, describe, extra) for tag, member in members.items()}, which
            )
        return core_schema.nullable_schema(schema) if type(None) in arguments else schema
    if origin is Literal:
        return core_schema.literal_schema(list(arguments))
    if origin is tuple:
        return core_schema.tuple_schema([schema_of(arguments[0], describe, extra)], variadic_item_index=0)
    if origin is dict:
        return core_schema.dict_schema(
            core_schema.str_schema(strict=True), schema_of(arguments[1], describe, extra)
        )
    if kind in (int, float):
        return _number_schema(kind, Bound())
    if kind is Any:  # checked where it is read
        return core_schema.any_schema()
    if kind is bool:
        return core_schema.bool_schema(strict=True)
    if kind is str:
        return core_schema.str_schema(strict=True)
    raise TypeError(
        f"{getattr(kind, '__name__', kind)} is no type of a key: use those of ncpipe.config.specs"
    )


def _record_schema(kind: type, describe: Describe | None, extra: ExtraRecords) -> CoreSchema:
    hints, names = _hints(kind), [field.name for field in fields(typing.cast(Any, kind))]
    entries = []
    about = describe(kind) if describe else None
    for field in fields(typing.cast(Any, kind)):
        schema, key = schema_of(hints[field.name], describe, extra), key_of(field.name)
        if field.default is not MISSING:
            schema = core_schema.with_default_schema(schema, default=field.default)
        description = _in_json(description=about.keys[key]) if about else None
        alias = key if key != field.name else None
        entries.append(
            core_schema.dataclass_field(field.name, schema, validation_alias=alias, metadata=description)
        )
    arguments = core_schema.dataclass_args_schema(kind.__name__, entries, extra_behavior="forbid")
    description = _in_json(description=about.record, additionalProperties=False) if about else None
    post_init = hasattr(kind, "__post_init__")
    return core_schema.dataclass_schema(kind, arguments, names, post_init=post_init, metadata=description)


def _in_json(**entries: object) -> dict[str, Any]:
    return {"pydantic_js_updates": entries}


def _number_schema(kind: type, bound: Bound) -> CoreSchema:
    low, high = "gt" if bound.open_low else "ge", "lt" if bound.open_high else "le"
    limits: dict[str, Any] = {low: bound.low, high: bound.high}
    limits = {name: kind(limit) for name, limit in limits.items() if math.isfinite(limit)}
    if kind is int:
        return core_schema.int_schema(strict=True, **limits)
    return core_schema.float_schema(strict=True, allow_inf_nan=False, **limits)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


@functools.cache
def _members(options: tuple[Any, ...]) -> tuple[Callable[[Any], str | None], dict[str, Any]]:
    """Return the function that selects a union's member for a value, and the members by tag.

    A union of records may include one Literal, which takes every value that is no mapping.
    """
    records = [typing.cast(type, option) for option in options if is_dataclass(option)]
    words = [option for option in options if typing.get_origin(option) is Literal]
    if not records:
        other = next(option for option in options if option not in words)
        return lambda value: TEXT if isinstance(value, str) else OTHER, {TEXT: words[0], OTHER: other}
    key = _tag(records)
    members = {f"{MARK}{word}": record for record in records for word in typing.get_args(_hints(record)[key])}
    if words:
        members[TEXT] = words[0]

    def by_tag(value: Any) -> str | None:
        if words and not isinstance(value, Mapping):
            return TEXT
        word = value.get(key) if isinstance(value, Mapping) else None
        return f"{MARK}{word}" if isinstance(word, str) else None

    return by_tag, members


def _tag(records: Iterable[Any]) -> str:
    """Return the key that distinguishes records: their first. Other types are skipped."""
    return fields(next(record for record in records if is_dataclass(record)))[0].name


def _mistake(kind: Any, path: str, error: dict[str, Any], extra: ExtraRecords) -> str:
    """Return one line for one of pydantic's errors."""
    location, name, wrong = list(error["loc"]), error["type"], error["input"]
    if location[-1:] == ["[key]"] or name in ("missing", "unexpected_keyword_argument", "invalid_key"):
        key = location[-2] if location[-1] == "[key]" else location[-1]
        where, expected = _walk(kind, path, location[: location.index(key)], extra)
        where, problem = joined(where, key), _wrong_key(name, key, expected)
    else:
        where, expected = _walk(kind, path, location, extra)
        if name.startswith("union_tag") and isinstance(wrong, Mapping):
            options = _options(expected, extra)
            tag = _tag(options)
            where, problem = joined(where, tag), "missing; add it"
            if tag in wrong:
                words = [word.removeprefix(MARK) for word in _members(options)[1] if word != TEXT]
                problem = f"{shown(wrong[tag])} is unknown; {suggest(wrong[tag], words)}"
        else:
            problem = _bare_name(kind, path, location, wrong, extra) or _wrong_value(expected, error)
    if not where and name != "value_error":
        where = "the file"
    return cut(f"{where}: {problem}" if where else problem)


def _bare_name(kind: Any, path: str, location: list[Any], wrong: object, extra: ExtraRecords) -> str:
    """Return what to write for a record's name that stands without its keys; '' if it is none."""
    if location[-1:] != [TEXT]:
        return ""
    options = _options(_walk(kind, path, location[:-1], extra)[1], extra)
    if f"{MARK}{wrong}" not in _members(options)[1] or not any(map(is_dataclass, options)):
        return ""
    return f"{shown(wrong)} has keys of its own; write `{{{_tag(options)}: {wrong}, ...}}`"


def _wrong_key(name: str, key: object, expected: Any) -> str:
    if name == "missing":
        return "missing; add it"
    if is_dataclass(expected):
        return f"unknown key; {suggest(key, [key_of(field.name) for field in fields(expected)])}"
    return f"expected text for a name, got {kind_of(key)}"


def _wrong_value(expected: Any, error: dict[str, Any]) -> str:
    wrong = error["input"]
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if error["type"] == NUMBER:
        expected, origin = float, None
    if is_dataclass(expected) or origin in (dict, *UNIONS):
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
    quoted = kind in (int, float) and isinstance(wrong, str)
    hint = "; write the number without quotes, as 0.001 or 1e-3" if quoted else ""
    return f"expected {_KINDS[kind]}, got {kind_of(wrong)}{hint}"


def _walk(kind: Any, path: str, location: list[Any], extra: ExtraRecords) -> tuple[str, Any]:
    """Return the dotted path of a location in pydantic's terms, and the type that is expected there."""
    for step in location:
        kind = _required(kind)
        if typing.get_origin(kind) in UNIONS:
            kind = _members(_options(kind, extra))[1][step]
        elif is_dataclass(kind):
            hints = _hints(typing.cast(type, kind))
            path, kind = joined(path, step), hints.get(step) or hints[f"{step}_"]
        elif typing.get_origin(kind) is dict:
            path, kind = joined(path, step), typing.get_args(kind)[1]
        else:
            path, kind = f"{path}[{step}]", typing.get_args(kind)[0]
    return path, _required(kind)


def _options(kind: Any, extra: ExtraRecords = ()) -> tuple[Any, ...]:
    """Return the members of a union but None, and the extra records that join it."""
    options = tuple(option for option in typing.get_args(kind) if option is not type(None))
    return options + tuple(record for member, record in extra if member in options)


def _required(kind: Any) -> Any:
    """Return `kind` without its None."""
    if typing.get_origin(kind) in UNIONS and len(_options(kind)) == 1:
        return _options(kind)[0]
    return kind


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
