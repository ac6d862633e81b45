"""Digests of code that an earlier process has taken, for those that only claim what it has trained.

A digest is taken again as soon as the file system says of any file that it may come from something else than
it said then: its place, size, inode, or when its content or its inode was changed last. Files that changed in
the last seconds before they were read are not relied on: another edit in the same tick of a clock would not
show. What is damaged or cannot be read is as good as nothing.
"""

import contextlib
import functools
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ncpipe.artifacts import digest_of
from ncpipe.code import digested_files, forget

MEMORY = Path("data/.code.json")
SETTLED = 2.0  # seconds: the coarsest clock of a file system that is in use
Key = tuple[tuple[str, str], ...]  # choices, as `ncpipe.code` has them


def recall(choices: Key) -> str | None:
    """The digest that was remembered for these choices, if the code is the same; None if there is none."""
    try:
        state, _ = _state()  # first: before any file is read for a digest, if none is remembered
        content = json.loads(MEMORY.read_bytes())
        known = content["digests"]
        if content["state"] == state and content["seal"] == digest_of([state, known]):
            return known.get(_name(choices))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def remember(digests: Mapping[Key, str]) -> None:
    """Write down digests that were taken in this process, unless the code has changed since it was read."""
    known = {_name(choices): digest for choices, digest in sorted(digests.items())}
    partial = MEMORY.with_name(f"{MEMORY.name}.{os.getpid()}")
    with contextlib.suppress(OSError):  # it saves time and decides nothing
        if (state := settled_state()) is not None:
            content = {"state": state, "digests": known, "seal": digest_of([state, known])}
            try:
                partial.write_text(json.dumps(content), encoding="utf-8")
                os.replace(partial, MEMORY)
            finally:
                partial.unlink(missing_ok=True)


def files_state() -> str:
    """Digest of what the file system says now of the files that digests of code are taken of."""
    return _look()[0]


def settled_state() -> str | None:
    """The same, if it holds of the files that this process has taken digests of; None if they have changed
    since, or so shortly before that another edit would not show."""
    state, settled = _state()
    return state if settled and state == files_state() else None


def forget_state() -> None:
    """Let the files be looked at anew: they may have changed since."""
    _state.cache_clear()


@functools.cache
def _state() -> tuple[str, bool]:
    """What the file system says, and whether all had settled, before the first file is read for a digest."""
    forget()
    state, newest = _look()
    return state, newest < time.time() - SETTLED


def _look() -> tuple[str, float]:
    """Digest of what the file system says of every file; when the last of them changed, in seconds."""
    found = [(str(path.absolute()), path.stat()) for path in digested_files()]
    lines = [list(sys.version_info[:2])] + [
        [name, own.st_size, own.st_dev, own.st_ino, own.st_mtime_ns, own.st_ctime_ns] for name, own in found
    ]
    newest = max(max(own.st_mtime, own.st_ctime) for _, own in found)
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest(), newest


def _name(choices: Key) -> str:
    return json.dumps(choices)
