"""params.yaml for editors: the JSON schema of its records, with what their docstrings say about each key."""

import inspect
import json
import re
from dataclasses import fields
from typing import Any

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema

from ncpipe.params import Params
from ncpipe.records import About, schema_of

SCHEMA_FILE = "params.schema.json"


def params_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of params.yaml."""
    schema = _Untitled().generate(schema_of(Params, about))
    return {"$schema": GenerateJsonSchema.schema_dialect} | schema


def schema_text() -> str:
    """The schema as its file has it."""
    return json.dumps(params_schema(), indent=1) + "\n"


def about(kind: type) -> About:
    """What a record's docstring says about it, and about each of its fields.

    The lines `name: text` are the fields', each up to the next; what stands before them is the record's.
    """
    names = [field.name for field in fields(kind)]
    head, *rest = re.split(rf"^({'|'.join(names)}): ", inspect.getdoc(kind) or "", flags=re.MULTILINE)
    told = dict(zip(rest[::2], rest[1::2], strict=True))
    return About(_one_line(head), {name: _one_line(text) for name, text in told.items()})


def _one_line(text: str) -> str:
    return " ".join(text.split())


class _Untitled(GenerateJsonSchema):
    """Without titles: those of pydantic repeat the keys in other letters."""

    def field_title_should_be_set(self, schema: CoreSchema) -> bool:
        return False
