"""Where a prepared data set lies on the disk: its tensors, and a file of facts with their checksum.

Brings no torch, which takes seconds to load.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from ncpipe.artifacts import publish_folder, sha256_of, write_json
from ncpipe.stamps import FACTS

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
