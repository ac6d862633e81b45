"""Where a prepared data set lies on the disk: its tensors, and a file of facts with their checksum.

Brings no torch, which takes seconds to load.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ncpipe.system.artifacts import publish_folder, read_json, sha256_of, write_json
from ncpipe.system.errors import InputError

FACTS = "facts.json"  # beside the tensors
TENSORS = "tensors.safetensors"


def store(
    folder: Path,
    save: Callable[[Path], object],
    kind: str,
    classes: int,
    vocabulary: int | None,
    facts: Mapping[str, object],
) -> None:
    """Write `folder`, whole or not at all. save: writes the tensors to the path that it is given."""
    with publish_folder(folder) as partial:
        save(partial / TENSORS)
        record = {
            "kind": kind,
            "classes": classes,
            "vocabulary": vocabulary,
            "checksum": sha256_of(partial / TENSORS),
            "facts": dict(facts),
        }
        write_json(partial / FACTS, record)


def data_checksum(folder: Path) -> str:
    """Return the checksum that a prepared data set was written with; InputError if there is none."""
    return read_facts(folder)["checksum"]


def read_facts(folder: Path) -> dict[str, Any]:
    """Return kind, classes, vocabulary, checksum and facts of a prepared data set.

    Raises InputError if it is missing, or is not what `ncpipe.datasets.prepared` writes.
    """
    facts = read_json(folder / FACTS)
    if not isinstance(facts, dict) or not all(
        key in facts and holds(facts[key]) for key, holds in _SHAPE.items()
    ):
        raise InputError(f"{folder / FACTS}: damaged; run ncpipe repair {folder}")
    return facts


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0


_SHAPE: dict[str, Callable[[Any], bool]] = {
    "kind": lambda value: value in ("vector", "image", "tokens", "next_tokens", "free", "loaders"),
    "classes": _is_count,
    "vocabulary": lambda value: value is None or _is_count(value),
    "checksum": lambda value: isinstance(value, str) and len(value) == 64,
    "facts": lambda value: isinstance(value, dict),
}
