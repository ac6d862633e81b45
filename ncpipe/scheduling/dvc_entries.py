"""What DVC has, by what it wrote: results of commands in dvc.lock and its run cache, contents in its cache.

Asking DVC itself takes seconds where dvc.lock has entries for hundreds of runs. What is found here saves time
and decides nothing: DVC makes up its own mind.
"""

import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ncpipe.dvc_repair import LOCK, cache_folder, dvc_folder

_DEPENDENCY = re.compile(r"^ *- path: (.+)\n *hash: md5\n *md5: (\w+(?:\.dir)?)$", re.MULTILINE)


class Entries:
    """What DVC wrote down of the commands of some stages, as it is when this is made.

    stages: their names. Each entry is one time that DVC ran a command: its dependencies' hashes by path.
    """

    def __init__(self, stages: Iterable[str]) -> None:
        names = "|".join(map(re.escape, stages))
        command = re.compile(rf"^ *cmd: (ncpipe (?:{names}) .+)$", re.MULTILINE)
        self.known: dict[str, list[dict[str, str]]] = {}
        for text in _texts():
            if found := command.search(text):
                dependencies = re.split(r"^ *(?:outs|params):$", text, maxsplit=1, flags=re.MULTILINE)[0]
                entry = dict(_DEPENDENCY.findall(dependencies))
                self.known.setdefault(found[1], []).append(entry)

    def have(self, command: str, instead: Mapping[Path, Path]) -> bool:
        """Whether DVC ran a command on what there is now. instead: where something lies now, in place of
        where it is going to be."""
        hash_of = functools.cache(lambda name: _hash(instead.get(Path(name), Path(name))))
        return any(
            all(hash_of(name) == value for name, value in entry.items())
            for entry in self.known.get(command, ())
            if entry
        )


def in_cache(places: Iterable[Path]) -> list[Path]:
    """Those of the places, files or folders, that DVC can bring back as they are now; all of them, if there
    is no cache to look at.

    It writes down what it failed to put there, as where there is no room, and says so and goes on: the next
    one finds it missing, removes the place and asks for it again.
    """
    folder = dvc_folder()
    if folder is None or not (files := cache_folder(folder) / "files" / "md5").is_dir():
        return list(places)
    hashes = {place: _hash(place) for place in places}
    # a folder's own entry is written after those of all its files
    return [place for place, value in hashes.items() if (files / value[:2] / value[2:]).is_file()]


def _texts() -> Iterator[str]:
    """One for each entry."""
    if LOCK.is_file():
        yield from re.split(r"^  (?=\S+:$)", LOCK.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if (folder := dvc_folder()) is not None:
        for path in (cache_folder(folder) / "runs").glob("*/*/*"):
            with contextlib.suppress(OSError, UnicodeDecodeError):  # another DVC is at work
                yield path.read_text(encoding="utf-8")


def _hash(path: Path) -> str:
    """As DVC has it of a file or a folder; '' if there is none."""
    if path.is_file():
        return _md5(path.read_bytes())
    if not path.is_dir():
        return ""
    names = sorted(each.relative_to(path).as_posix() for each in path.rglob("*") if each.is_file())
    listing = [{"md5": _md5((path / name).read_bytes()), "relpath": name} for name in names]
    return f"{_md5(json.dumps(listing, sort_keys=True).encode())}.dir"


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
