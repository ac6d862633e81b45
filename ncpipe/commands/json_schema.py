"""Write JSON schemas of params.yaml and claims.yaml for editors (`ncpipe schema`).

Docstrings of the records explain the keys.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from ncpipe.claims.quantities import AnyClaim
from ncpipe.config.bounds import key_of
from ncpipe.config.params import params_type
from ncpipe.config.records import adapter
from ncpipe.config.study import MODULE, NO_STUDY, Study, load_study

SCHEMA_FILE, CLAIMS_SCHEMA = "params.schema.json", "claims.schema.json"
SCHEMAS: dict[str, Callable[[Study], Any]] = {
    SCHEMA_FILE: params_type,
    CLAIMS_SCHEMA: lambda study: tuple[AnyClaim, ...],
}


def write_schema() -> None:
    """Write JSON schemas with which editors complete and explain the keys of params.yaml and claims.yaml.

    They have the records of a study.py too.
    """
    study = load_study(Path())
    for name in SCHEMAS:
        Path(name).write_text(schema_text(name, study), encoding="utf-8")


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a file with values of this annotated type.

    It includes the records of the study.py that was read last.
    """
    schema = adapter(kind).json_schema(schema_generator=_Explained)
    dialect = {"$schema": GenerateJsonSchema.schema_dialect}
    return dialect | schema["prefixItems"][0] | {"$defs": schema["$defs"]}


def record_at(schema: dict[str, Any], records: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record that a schema refers to, with what stands beside the reference; else the schema."""
    if "$ref" not in schema:
        return schema
    record: dict[str, Any] = records[schema["$ref"].rpartition("/")[2]]
    return record | {key: value for key, value in schema.items() if key != "$ref"}


def _for_editors(schema: Any, records: Mapping[str, Any]) -> Any:
    """Return the same constraints in a form for which editors name the wrong key.

    For a `oneOf`, an editor can only report that no member matches. So a union of records becomes an if/then
    for each value of its first key. records: what `$ref` names.
    """
    if isinstance(schema, list):
        return [_for_editors(item, records) for item in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: _for_editors(value, records) for key, value in schema.items()}
    if "discriminator" in schema:
        tag = schema.pop("discriminator")["propertyName"]
        return _chosen(schema.pop("oneOf"), tag, records) | schema
    if "oneOf" in schema:
        keys, name = schema.pop("oneOf")
        first, second = (record_at(member, records).get("properties", {}) for member in (keys, name))
        if second:  # of two records, the second has a key that the first lacks
            key = next(key for key in second if key not in first)
            return schema | {"if": {"required": [key]}, "then": name, "else": keys}
        return schema | {"if": {"type": "object"}, "then": keys, "else": name}
    return schema


def _chosen(members: list[dict[str, Any]], tag: str, records: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a union of records that the key `tag` tells apart."""
    tags = [record_at(member, records)["properties"][tag] for member in members]
    words = [[kind["const"]] if "const" in kind else list(kind.get("enum", [])) for kind in tags]
    chosen = [
        {"if": {"properties": {tag: {"enum": of_member}}, "required": [tag]}, "then": member}
        for of_member, member in zip(words, members, strict=True)
    ]
    all_words = {"enum": [word for of_member in words for word in of_member]}
    return {"type": "object", "required": [tag], "properties": {tag: all_words}, "allOf": chosen}


def schema_text(name: str = SCHEMA_FILE, study: Study = NO_STUDY) -> str:
    """Return the content of a schema's file; study: the one that was loaded last."""
    schema = json_schema(SCHEMAS[name](study))
    return json.dumps(_for_editors(schema, schema["$defs"]), indent=1) + "\n"


def about(kind: type) -> tuple[str, dict[str, str]]:
    """Return the descriptions of a record and of each of its keys, from its docstring and those of its bases.

    A field's description begins with a line `name: text` and ends before the next one. The text before the
    first field describes the record.
    """
    names = [key_of(field.name) for field in fields(kind)]
    described = dict.fromkeys(names, "") if kind.__module__ == MODULE else {}  # optional in a study.py
    head = ""
    for record in reversed(kind.__mro__):
        if is_dataclass(record):
            head, *rest = re.split(
                rf"^({'|'.join(names)}): ", inspect.cleandoc(record.__doc__ or ""), flags=re.MULTILINE
            )
            described |= dict(zip(rest[::2], rest[1::2], strict=True))
    return _one_line(head), {name: _one_line(text) for name, text in described.items()}


def _one_line(text: str) -> str:
    return " ".join(text.split())


class _Explained(GenerateJsonSchema):
    """Takes descriptions from docstrings, and leaves out pydantic's titles, which only repeat the keys."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def tagged_union_schema(self, schema: Any) -> dict[str, Any]:
        union = super().tagged_union_schema(schema)
        union.get("discriminator", {}).pop("mapping", None)  # repeats the records' own keys
        return union

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        record = super().dataclass_schema(schema)
        description, keys = about(schema["cls"])
        for key, text in keys.items():
            record["properties"][key]["description"] = text
        return record | {"description": description}
