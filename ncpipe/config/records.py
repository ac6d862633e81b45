"""Validate plain values into frozen records by pydantic, and report mistakes in a line each.

The annotations of `ncpipe.config.experiment` and `ncpipe.config.params` define the type of each key: records,
lists, names, numbers with a Bound, and unions (`ncpipe.config.unions`). pydantic reads the values as JSON and
strictly: a list becomes a tuple and a whole number a float, but no text becomes a number.
"""

import functools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ncpipe.config.bounds import key_of
from ncpipe.config.unions import keys_at, specs_of_study
from ncpipe.system.errors import InputError, cut, shown, suggest, word

CONFIG = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, alias_generator=key_of)
EXPECTED = {  # by pydantic's type of an error; any other is of a record
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
}
LIMITS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def read(kind: Any, value: object, path: str = "") -> Any:
    """Return `value` as the annotated type `kind`; raise InputError with a line for each mistake."""
    record, mistakes = check(kind, value, path)
    if mistakes:
        raise InputError("\n".join(mistakes))
    return record


def check(kind: Any, value: object, path: str = "") -> tuple[Any, list[str]]:
    """Return `value` as the annotated type `kind` and no mistakes, or None and its mistakes."""
    try:
        (record,) = adapter(kind).validate_json(json.dumps([value]))
    except ValidationError as error:
        problems: dict[str, str] = {}
        for details in error.errors(include_url=False):
            where, problem = _mistake(kind, value, path, dict(details))
            names = details["type"] == "literal_error" and not isinstance(details["input"], str)
            if not (where in problems and names):  # of `64 | full`, names are what a text is meant for
                problems[where] = problem
        lines = [f"{where}: {problem}" if where else problem for where, problem in problems.items()]
        return None, list(dict.fromkeys(map(cut, lines)))
    return record, []


def adapter(kind: Any) -> TypeAdapter[tuple[Any]]:
    """Return pydantic's adapter of a tuple of one value of a type; a dataclass itself takes no config."""
    return _adapter(kind, specs_of_study())


@functools.cache
def _adapter(kind: Any, joined_specs: object) -> TypeAdapter[tuple[Any]]:
    return TypeAdapter(tuple[kind], config=CONFIG)


def _mistake(kind: Any, value: object, path: str, error: dict[str, Any]) -> tuple[str, str]:
    """Return the dotted path of one of pydantic's errors, and what is wrong there."""
    location, name, wrong = error["loc"][1:], error["type"], error["input"]
    context = error.get("ctx", {})
    where = _path(path, location, value)
    if name in ("missing", "union_tag_not_found"):
        key = location[-1] if name == "missing" else context["discriminator"].strip("'")
        return joined(where, key), "missing; add it"
    if name == "unexpected_keyword_argument":
        return where, f"unknown key; {suggest(location[-1], keys_at(kind, location[:-1]))}"
    if name == "union_tag_invalid":
        key = context["discriminator"].strip("'")
        tags = _quoted(context["expected_tags"])
        return joined(where, key), f"{shown(wrong[key])} is unknown; {suggest(wrong[key], tags)}"
    if name == "literal_error":
        return where, f"{shown(wrong)} is unknown; {suggest(wrong, _quoted(context['expected']))}"
    if name == "value_error":
        return where, str(context["error"])
    if limit := next((f"{sign} {context[key]}" for key, sign in LIMITS.items() if key in context), ""):
        return where, f"{shown(wrong)} is out of range; it must be {limit}"
    if name == "finite_number":
        return where, f"{shown(wrong)} is out of range; it must be finite"
    expected = EXPECTED.get(name, "keys with values")
    return where or "the file", f"expected {expected}, got {kind_of(wrong)}"


def _path(path: str, location: Iterable[Any], value: Any) -> str:
    """Return the dotted path of a location in pydantic's terms, which has the tags of unions too."""
    for step in location:
        if isinstance(value, Mapping) and step in value:
            value, path = value[step], joined(path, step)
        elif isinstance(value, list | tuple) and isinstance(step, int):
            value, path = value[step], f"{path}[{step}]"
    return path


def _quoted(names: str) -> list[str]:
    """Return the names of pydantic's list of them: 'ce' or 'mse'."""
    return re.findall(r"'([^']*)'", names)


def kind_of(value: object) -> str:
    """Describe a value's type: `text ('x')`."""
    if value is None:
        return "nothing (null)"
    kinds: dict[type, str] = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    if type(value) in kinds:
        return f"{kinds[type(value)]} ({shown(value)})"
    return "a list" if isinstance(value, list) else "keys with values"


def joined(path: str, key: object) -> str:
    """Return the dotted path of a key."""
    name = word(key if isinstance(key, str) else repr(key))
    return f"{path}.{name}" if path else name
