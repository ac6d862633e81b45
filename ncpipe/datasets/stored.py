"""Where a prepared data set lies on the disk: its tensors, and a file of facts with their checksum.

Brings no torch, which takes seconds to load.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from ncpipe.system.artifacts import digest_of, publish_folder, read_json, sha256_of, write_json
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
    """Write `folder`, whole or not at all; the facts have a digest. save: writes the tensors to a path."""
    with publish_folder(folder) as partial:
        save(partial / TENSORS)
        record = {
            "kind": kind,
            "classes": classes,
            "vocabulary": vocabulary,
            "checksum": sha256_of(partial / TENSORS),
            "facts": dict(facts),
        }
        write_json(partial / FACTS, record | {"digest": digest_of(record)})


def data_checksum(folder: Path) -> str:
    """Return the checksum that a prepared data set was written with; InputError if there is none."""
    return read_facts(folder)["checksum"]


def read_facts(folder: Path) -> dict[str, Any]:
    """Return kind, classes, vocabulary, checksum and facts of a prepared data set.

    Raises InputError if it is missing, or is not what `ncpipe.datasets.prepared` writes.
    """
    facts = read_json(folder / FACTS)
    digest = facts.pop("digest", None) if isinstance(facts, dict) else None
    if digest != digest_of(facts):
        raise InputError(f"{folder / FACTS}: damaged, or of another version; run ncpipe repair {folder}")
    return cast(dict[str, Any], facts)
