"""params.yaml and claims.yaml for editors: JSON schemas of their records, explained by docstrings."""

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from ncpipe.claims.ledger import TaggedClaim
from ncpipe.config.bounds import key_of
from ncpipe.config.params import Params
from ncpipe.config.records import adapter
from ncpipe.config.study import MODULE

SCHEMA_FILE, CLAIMS_SCHEMA = "params.schema.json", "claims.schema.json"
LARGEST = 1e30  # what lies beyond is the end of a number's type, and no choice
LOWER = {"minimum": "<=", "exclusiveMinimum": "<"}
UPPER = {"maximum": "<=", "exclusiveMaximum": "<"}
SCHEMAS: dict[str, Any] = {SCHEMA_FILE: Params, CLAIMS_SCHEMA: tuple[TaggedClaim, ...]}


@dataclass(frozen=True)
class About:
    """What a docstring says about a record and about each of its keys."""

    record: str
    keys: Mapping[str, str]


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a file whose values are of this annotated type.

    What the study.py defines that was read last is part of it.
    """
    schema = adapter(kind).json_schema(schema_generator=_Explained)
    whole: dict[str, Any] = _inlined(schema["prefixItems"][0], schema["$defs"])
    return {"$schema": GenerateJsonSchema.schema_dialect} | whole


def _inlined(schema: Any, records: Mapping[str, Any]) -> Any:
    """Return a schema with the records in place of their names; a key's description comes before theirs."""
    if isinstance(schema, list):
        return [_inlined(each, records) for each in schema]
    if not isinstance(schema, dict):
        return schema
    own = {key: _inlined(value, records) for key, value in schema.items() if key not in ("$ref", "mapping")}
    if "$ref" in schema:
        return _inlined(records[schema["$ref"].rpartition("/")[2]], records) | own
    return own


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
    if "discriminator" in schema:
        return _chosen(schema.pop("oneOf"), schema.pop("discriminator")["propertyName"]) | schema
    if "oneOf" in schema:
        keys, name = schema.pop("oneOf")
        return schema | {"if": {"type": "object"}, "then": keys, "else": name}
    return schema


def _chosen(records: list[dict[str, Any]], tag: str) -> dict[str, Any]:
    """Return the schema of a union of records that the key `tag` tells apart."""
    words = [_words(record["properties"][tag]) for record in records]
    chosen = [
        {"if": {"properties": {tag: {"enum": own}}, "required": [tag]}, "then": record}
        for own, record in zip(words, records, strict=True)
    ]
    known = {"enum": [word for own in words for word in own]}
    return {"type": "object", "required": [tag], "properties": {tag: known}, "allOf": chosen}


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


class _Explained(GenerateJsonSchema):
    """Pydantic's schema with the docstrings' words, and without titles that repeat the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        record = super().dataclass_schema(schema)
        said = about(schema["cls"])
        for key, description in said.keys.items():
            record["properties"][key]["description"] = description
        return record | {"description": said.record}
