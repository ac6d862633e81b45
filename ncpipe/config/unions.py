"""Annotate unions of records that a key tells apart: `data` by its `source`, `model` by its `architecture`.

pydantic reads them as discriminated unions. It is imported where values are validated only: programs that
have their specs from elsewhere (metrics of any model, runs in the store) do not wait for it.
"""

import functools
import operator
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

# The forms of a value in a union with a Literal: `loss: ce` is a name alone. They are no keys.
NAME, KEYS = "a name", "with keys"
WITHOUT, WITH = "without it", "with it"  # the forms of a union by the presence of a key
_of_study: tuple[tuple[type, type], ...] = ()


def join_unions(specs: Iterable[tuple[type, type]]) -> None:
    """Let the specs of a study.py join unions, in place of those of the last study.

    specs: each behind a record of the package whose union it joins.
    """
    global _of_study
    _of_study = tuple(specs)


def specs_of_study() -> tuple[tuple[type, type], ...]:
    """Return the specs that joined last, each behind a record of its union."""
    return _of_study


@dataclass(frozen=True)
class TaggedBy:
    """Annotation of a union whose records have a field `key`, a Literal, each with values of its own.

    A Literal in the union takes what is no mapping. Specs of the study.py that was read last join the union.
    A base class, which is no record, stands for a union of these specs alone.
    """

    key: str

    def __get_pydantic_core_schema__(self, union: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        """Return pydantic's schema of the union, as pydantic asks for it."""
        from pydantic import Discriminator, Tag

        if not typing.get_args(union):
            from pydantic_core import core_schema

            specs = {tag: spec for spec in records_of(union) for tag in values_of(spec, self.key)}
            choices = {tag: handler.generate_schema(spec) for tag, spec in specs.items()}
            if not choices:
                return core_schema.no_info_before_validator_function(_refuse, core_schema.dict_schema())
            return core_schema.tagged_union_schema(choices, self.key)
        names: Any = names_of(union)
        tagged: Any = Annotated[functools.reduce(operator.or_, records_of(union)), Discriminator(self.key)]
        if names is not None:
            forms = Annotated[tagged, Tag(KEYS)] | Annotated[names, Tag(NAME)]
            tagged = Annotated[forms, Discriminator(_form)]
        return handler.generate_schema(tagged)


@dataclass(frozen=True)
class ByPresence:
    """Annotation of a union of two records, of which a mapping with this key is the second one."""

    key: str

    def __get_pydantic_core_schema__(self, union: Any, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        """Return pydantic's schema of the union, as pydantic asks for it."""
        from pydantic import Discriminator, Tag

        records = zip(typing.get_args(union), (WITHOUT, WITH), strict=True)
        forms: list[Any] = [Annotated[record, Tag(tag)] for record, tag in records]
        tagged: Any = Annotated[functools.reduce(operator.or_, forms), Discriminator(self._form)]
        return handler.generate_schema(tagged)

    def _form(self, value: object) -> str:
        return WITH if isinstance(value, Mapping) and self.key in value else WITHOUT


def _refuse(value: object) -> object:
    raise ValueError("no study.py beside this file has an entry for it; see docs/extending.md")


def _form(value: object) -> str:
    return KEYS if isinstance(value, Mapping) else NAME


def names_of(union: Any) -> Any:
    """Return the Literal of a union; None if it has none."""
    return next((each for each in typing.get_args(union) if typing.get_origin(each) is Literal), None)


def records_of(union: Any) -> tuple[Any, ...]:
    """Return the records of a union, those of study.py included."""
    own = [each for each in typing.get_args(union) if is_dataclass(each)]
    return (*own, *(spec for member, spec in _of_study if member in (*own, union)))


def values_of(record: Any, key: str) -> tuple[Any, ...]:
    """Return the values of a record's key; () if it is no Literal."""
    kind = typing.get_type_hints(record, include_extras=True)[key]
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
