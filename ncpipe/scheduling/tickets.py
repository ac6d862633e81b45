"""Claims of waiting runs by what was written down of them, without params.yaml, specs and command line.

DVC starts a command for every run, also for one that was trained ahead, and what that command needs most of
its time for is to find out again what the one before it knew. So who has trained a batch leaves tickets: of
each run that waits, what it is asked for by, and the digests of all that this follows from. As long as these
files are the same (the package's and study.py by what the file system says of them, as in
`ncpipe.code_memory`) so is what the long way would find, and the run is put into its place if it is, to the
bit, what it was sealed as. Everything else is left to the long way, which says what is the matter.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ncpipe.artifacts import (
    AHEAD,
    RUNS,
    SEAL,
    check_seal,
    publish_folder,
    read_digested,
    remove,
    sha256_of,
    write_digested,
)
from ncpipe.code_memory import files_state, settled_state
from ncpipe.errors import InputError

TICKETS = AHEAD / "tickets.json"
CHECKPOINT = ".checkpoint"


@dataclass(frozen=True)
class Ticket:
    """A run that waits in the store.

    name: as messages have it. place: of its folder, below that of all runs. key: of its folder in the store.
    seal: key that this is sealed with. sealed: digest of the seal, which has those of its files. files:
    digests of what decides that it is this one, by path.
    """

    name: str
    place: str
    key: str
    seal: str
    sealed: str
    files: Mapping[str, str]


def write_tickets(tickets: Mapping[str, Ticket]) -> None:
    """By the words that ask for each run; in place of all former ones. None if code has just been edited."""
    state = settled_state()
    content = {"state": state, "tickets": {words: asdict(ticket) for words, ticket in tickets.items()}}
    write_digested(TICKETS, content)


def claim_by_ticket(arguments: Iterable[str]) -> str | None:
    """The name of the run that these arguments of `ncpipe train` ask for, if it is in its place now.

    None, and nothing is changed, where there is no good ticket for it or it does not wait as it should.
    """
    try:
        content = read_digested(TICKETS)
        ticket = Ticket(**content["tickets"][" ".join(arguments)])
        if digests_of(ticket.files) != ticket.files:
            return None
        if content["state"] is None or content["state"] != files_state():
            return None
        folder, place = AHEAD / ticket.key, RUNS / ticket.place
        if os.path.lexists(place) or any(path.is_symlink() for path in (folder, *folder.rglob("*"))):
            return None
        check_seal(folder, ticket.seal)
        if sha256_of(folder / SEAL) != ticket.sealed:
            return None
        put_in_place(ticket.key, place)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, shutil.Error, InputError):
        return None
    return ticket.name


def put_in_place(key: str, place: Path) -> None:
    """Make a waiting run the content of its place. Both are then the same files on the disk, where the file
    system has links; and what it was resumed from goes."""
    with publish_folder(place) as folder:
        shutil.copytree(AHEAD / key, folder, copy_function=_link, dirs_exist_ok=True)
    remove(AHEAD / f"{key}{CHECKPOINT}")


def digests_of(paths: Iterable[str]) -> dict[str, str]:
    """By path; OSError if one is not there."""
    return {path: sha256_of(Path(path)) for path in paths}


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
