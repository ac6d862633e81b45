"""Annotate unions of records that a key tells apart: `data` by its `source`, `model` by its `architecture`.

pydantic reads them as discriminated unions. It is imported where values are validated only: programs that
have their specs from elsewhere (metrics of any model, runs in the store) do not wait for it.
"""

import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal

from ncpipe.config.bounds import key_of
from ncpipe.system.errors import shown, suggest

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

# The forms of a value in a union with a Literal: `loss: ce` is a name alone. They are no keys.
NAME, KEYS = "a name", "with keys"
_of_study: tuple[tuple[type, type], ...] = ()
_metrics_of_study: Mapping[Any, Any] = {}


def join(specs: Iterable[tuple[type, type]], metrics: Mapping[Any, Any]) -> None:
    """Let the specs of a study.py join unions, and its metrics the catalogue, in place of the last study's.

    specs: each behind a record of the package whose union it joins.
    """
    global _of_study, _metrics_of_study
    _of_study, _metrics_of_study = tuple(specs), metrics


def specs_of_study() -> tuple[tuple[type, type], ...]:
    """Return the specs that joined last, each behind a record of its union."""
    return _of_study


def metrics_of_study() -> Mapping[Any, Any]:
    """Return the metrics that joined last: tables and figures know a metric by its name alone."""
    return _metrics_of_study


@dataclass(frozen=True)
class TaggedBy:
    """Annotation of a union whose records have a field `key`, a Literal, each with values of its own.

    A Literal in the union takes what has no keys. Specs of the study.py that was read last join the union.
    A base class, which is no record, stands for a union of these specs alone.
    """

    key: str

    def __get_pydantic_core_schema__(self, union: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        """Return pydantic's schema of the union, as pydantic asks for it."""
        from pydantic_core import core_schema

        specs = {tag: spec for spec in records_of(union) for tag in values_of(spec, self.key)}
        if not specs:
            return core_schema.no_info_before_validator_function(_refuse, core_schema.dict_schema())
        choices = {tag: handler.generate_schema(spec) for tag, spec in specs.items()}
        tagged = core_schema.tagged_union_schema(choices, self.key)
        literal = next((kind for kind in typing.get_args(union) if typing.get_origin(kind) is Literal), None)
        if literal is None:
            return tagged
        names, all_names = typing.get_args(literal), dict.fromkeys([*typing.get_args(literal), *specs])

        def check_name(value: object) -> object:
            if value in specs and value not in names:
                raise ValueError(f"{value!r} has keys of its own; write `{{{self.key}: {value}, ...}}`")
            if value not in names:
                raise ValueError(f"{shown(value)} is unknown; {suggest(value, all_names)}")
            return value

        name = core_schema.no_info_before_validator_function(check_name, handler.generate_schema(literal))
        return core_schema.tagged_union_schema(
            {KEYS: tagged, NAME: name}, lambda value: KEYS if isinstance(value, Mapping | list) else NAME
        )


@dataclass(frozen=True)
class ByPresence:
    """Annotation of a union of two records, of which a mapping with this key is the second one."""

    key: str

    def __get_pydantic_core_schema__(self, union: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        """Return pydantic's schema of the union, as pydantic asks for it."""
        from pydantic_core import core_schema

        without, with_key = (kind.__name__ for kind in typing.get_args(union))

        def form(value: object) -> str:
            return with_key if isinstance(value, Mapping) and self.key in value else without

        records = {kind.__name__: handler.generate_schema(kind) for kind in typing.get_args(union)}
        return core_schema.tagged_union_schema(records, form)


def _refuse(value: object) -> object:
    raise ValueError("no study.py beside this file has an entry for it; see docs/extending.md")


def records_of(kind: Any) -> tuple[Any, ...]:
    """Return the records that a type is or is a union, list or dict of; those of study.py included."""
    if isinstance(kind, type) and is_dataclass(kind):
        return (kind,)
    records = [record for part in typing.get_args(kind) for record in records_of(part)]
    joined = (spec for member, spec in _of_study if member in (*records, kind) and spec not in records)
    return (*records, *joined)


def values_of(record: Any, key: str) -> tuple[Any, ...]:
    """Return the values of a record's key; () if it is no Literal."""
    kind = typing.get_type_hints(record, include_extras=True)[key]
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def keys_at(kind: Any, location: Iterable[Any]) -> list[str]:
    """Return the keys of the record of a type that a location in pydantic's terms leads to."""
    records = records_of(kind)
    for step in location:
        tagged = [
            record
            for record in records
            if step == record.__name__ or step in values_of(record, fields(record)[0].name)
        ]
        hints = (typing.get_type_hints(record, include_extras=True) for record in records)
        below = [kind for kinds in hints for key, kind in kinds.items() if key_of(key) == step]
        if tagged and len(records) > 1:
            records = tuple(tagged)
        elif below:
            records = tuple(dict.fromkeys(record for kind in below for record in records_of(kind)))
    return list(dict.fromkeys(key_of(field.name) for record in records for field in fields(record)))
