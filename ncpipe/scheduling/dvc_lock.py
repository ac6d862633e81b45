"""dvc.lock as DVC writes it, in the time that takes what has changed.

For every stage that has run DVC parses the file in Python and writes it again, all of it: three seconds with
a thousand runs. Here it is parsed once, what DVC has not put into it stays the text that it was, and the
entry of a stage is written by DVC's own writer.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from dvc import dvcfile
from dvc.utils.serialize import _common, dumps_yaml, parse_yaml_for_update

MODIFIER = "modify_yaml"  # of DVC 3: a context that parses a file, gives its content away and writes it
SCHEMA = "2.0"
HEAD = f"schema: '{SCHEMA}'\nstages:\n"
ENTRY = re.compile(r"^(?=  [^ ])", re.MULTILINE)  # where a stage begins
ANCHOR = "&id"  # of an object that stands in two places
OTHER = re.compile(rf"(^|\s)#|{ANCHOR}", re.MULTILINE)  # what does not belong to one entry: comments, anchors


@dataclass
class Written:
    """A dvc.lock: its text, its content, and of each stage its entry and the text of that, if it has no more
    than these."""

    text: str
    content: Any
    entries: dict[str, tuple[Any, str]] | None


@contextlib.contextmanager
def lock_written_by_entries() -> Iterator[None]:
    """As long as nobody else writes dvc.lock it is parsed no more, and only new entries are made text."""
    modify = getattr(dvcfile, MODIFIER, None)
    if modify is None:  # another version of DVC: then as it does
        yield
        return
    known: dict[str, Written] = {}

    @contextlib.contextmanager
    def modify_lock(path: "str | os.PathLike[str]", fs: Any = None) -> Iterator[Any]:
        file = Path(path)
        if file.suffix != ".lock" or getattr(fs, "protocol", "local") != "local" or not file.is_file():
            with modify(path, fs=fs) as content:
                yield content
            return
        text = file.read_text(encoding="utf-8")
        written = known.pop(str(path), None)
        if written is None or written.text != text:
            written = _read(text, path)
        yield written.content

        def dump(content: Any, file: TextIO) -> None:
            after = _renewed(written)
            file.write(dumps_yaml(content) if after is None else after.text)
            if after is not None:
                known[str(path)] = after

        _common._dump_data(path, written.content, dumper=dump, fs=fs)

    setattr(dvcfile, MODIFIER, modify_lock)
    try:
        yield
    finally:
        setattr(dvcfile, MODIFIER, modify)


def _read(text: str, path: "str | os.PathLike[str]") -> Written:
    content = parse_yaml_for_update(text, path)
    stages = content.get("stages") or {}
    parts = ENTRY.split(text.removeprefix(HEAD))
    if not text.startswith(HEAD) or OTHER.search(text) or parts[0] or len(parts) != 1 + len(stages):
        return Written(text, content, None)
    entries = dict(zip(stages, zip(stages.values(), parts[1:], strict=True), strict=True))
    return Written(text, content, entries)


def _renewed(written: Written) -> Written | None:
    """The text of what DVC has made of the content; None if it is not of entries alone."""
    content = written.content
    if written.entries is None or list(content) != ["schema", "stages"] or content["schema"] != SCHEMA:
        return None
    entries = {}
    for name, entry in content["stages"].items():
        before, text = written.entries.get(name, (None, ""))
        if before is not entry:
            text = dumps_yaml({"stages": {name: entry}}).removeprefix("stages:\n")
            if ANCHOR in text:
                return None
        entries[name] = entry, text
    return (
        Written(HEAD + "".join(text for _, text in entries.values()), content, entries) if entries else None
    )
