"""params.yaml and claims.yaml for editors: JSON schemas of their records, explained by docstrings."""

import inspect
import json
import re
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema

from ncpipe.claims.ledger import Claim
from ncpipe.config.bounds import key_of
from ncpipe.config.params import Params
from ncpipe.config.records import About, schema_of
from ncpipe.config.study import MODULE, loaded

SCHEMA_FILE, CLAIMS_SCHEMA = "params.schema.json", "claims.schema.json"
LARGEST = 1e30  # what lies beyond is the end of a number's type, and no choice
LOWER = {"minimum": "<=", "exclusiveMinimum": "<"}
UPPER = {"maximum": "<=", "exclusiveMaximum": "<"}
SCHEMAS: dict[str, Any] = {SCHEMA_FILE: Params, CLAIMS_SCHEMA: tuple[Claim, ...]}


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a file whose values are of this annotated type.

    What the study.py defines that was read last is part of it.
    """
    schema = _Untitled().generate(schema_of(kind, about, loaded().records))
    return {"$schema": GenerateJsonSchema.schema_dialect} | schema


def _for_editors(schema: Any) -> Any:
    """Return the same constraints in a form whose errors name the key that is wrong.

    A union of records becomes an if/then for each value of the key that tells them apart: of a `oneOf` an
    editor can only say that no member matches. Bounds that end a number's type are left out, and
    the others stand in the description too.
    """
    if isinstance(schema, list):
        return [_for_editors(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: _for_editors(value) for key, value in schema.items()}
    for name in ("maximum", "minimum"):
        if abs(schema.get(name, 0)) > LARGEST:
            del schema[name]
    if isinstance(schema.get("description"), str) and (bounds := _ranges(schema)):
        schema["description"] = f"{schema['description']} Range: {bounds}."
    members = schema.get("oneOf", [])
    records = [member for member in members if isinstance(member, dict) and "properties" in member]
    if len(records) < 2 or len(members) - len(records) > 1:
        return schema
    tag = next(iter(records[0]["properties"]))
    known = {"enum": [word for record in records for word in _words(record["properties"][tag])]}
    if not all(next(iter(record["properties"])) == tag for record in records) or not known["enum"]:
        return schema
    chosen = [
        {
            "if": {"properties": {tag: {"enum": _words(record["properties"][tag])}}, "required": [tag]},
            "then": record,
        }
        for record in records
    ]
    union = {"type": "object", "required": [tag], "properties": {tag: known}, "allOf": chosen}
    rest = {key: value for key, value in schema.items() if key != "oneOf"}
    others = [member for member in members if member not in records]
    return rest | ({"if": {"type": "object"}, "then": union, "else": others[0]} if others else union)


def _words(tag: dict[str, Any]) -> list[Any]:
    return [tag["const"]] if "const" in tag else list(tag.get("enum", []))


def _ranges(schema: dict[str, Any]) -> str:
    """Return the range of a value: its own, that of a list's numbers, or that of the alternative with one."""
    own = [schema, schema.get("items", {}), *schema.get("anyOf", [])]
    return next(filter(None, map(_range, own)), "")


def _range(schema: dict[str, Any]) -> str:
    """Return a range as `0 <= x < 1`; empty without bounds."""
    low = next((f"{_plain(schema[key])} {sign} " for key, sign in LOWER.items() if key in schema), "")
    high = next((f" {sign} {_plain(schema[key])}" for key, sign in UPPER.items() if key in schema), "")
    return f"{low}x{high}" if low or high else ""


def _plain(limit: float) -> str:
    return f"{int(limit):,}" if limit == int(limit) else f"{limit:g}"


def schema_text(name: str = SCHEMA_FILE) -> str:
    """Return the text of a schema's file."""
    return json.dumps(_for_editors(json_schema(SCHEMAS[name])), indent=1) + "\n"


def about(kind: type) -> About:
    """Return what a record's docstring says about it and about each of its fields.

    The lines `name: text` are the fields', each up to the next; what stands before them is the record's. What
    a record does not say of a field, the one that it is made from does.
    """
    names = [key_of(field.name) for field in fields(kind)]
    told = dict.fromkeys(names, "") if kind.__module__ == MODULE else {}  # a study may explain its keys
    head = ""
    for record in reversed(kind.__mro__):
        if is_dataclass(record):
            head, *rest = re.split(
                rf"^({'|'.join(names)}): ", inspect.cleandoc(record.__doc__ or ""), flags=re.MULTILINE
            )
            told |= dict(zip(rest[::2], rest[1::2], strict=True))
    return About(_one_line(head), {name: _one_line(text) for name, text in told.items()})


def _one_line(text: str) -> str:
    return " ".join(text.split())


class _Untitled(GenerateJsonSchema):
    """Without titles: those of pydantic repeat the keys in other letters."""

    def field_title_should_be_set(self, schema: CoreSchema) -> bool:
        return False
