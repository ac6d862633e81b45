"""params.yaml and claims.yaml for editors: JSON schemas of their records, explained by docstrings."""

import inspect
import json
import re
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema

from ncpipe.bounds import key_of
from ncpipe.claims.ledger import Claim
from ncpipe.params import Params
from ncpipe.records import About, schema_of
from ncpipe.study import MODULE, loaded

SCHEMA_FILE, CLAIMS_SCHEMA = "params.schema.json", "claims.schema.json"
SCHEMAS: dict[str, Any] = {SCHEMA_FILE: Params, CLAIMS_SCHEMA: tuple[Claim, ...]}


def json_schema(kind: Any) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a file whose values are of this annotated type.

    What the study.py defines that was read last is part of it.
    """
    schema = _Untitled().generate(schema_of(kind, about, loaded().records))
    return {"$schema": GenerateJsonSchema.schema_dialect} | schema


def schema_text(name: str = SCHEMA_FILE) -> str:
    """The schema as its file has it."""
    return json.dumps(json_schema(SCHEMAS[name]), indent=1) + "\n"


def about(kind: type) -> About:
    """What a record's docstring says about it, and about each of its fields.

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
