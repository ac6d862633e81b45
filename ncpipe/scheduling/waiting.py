"""Results of stages that were made before DVC asked for them: data/.ahead/.stages/STAGE/EXPERIMENT.

Beside each lies a ticket that says what it follows from, to the byte, and what it is, to the byte. A stage
claims it by a rename, without params.yaml, specs, command line and torch, as long as all of that is so (the
package's and study.py by what the file system says of them, as in `ncpipe.code_memory`). Deleting all at any
moment costs time and nothing else.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ncpipe.artifacts import (
    AHEAD,
    CODE,
    CODE_FILES,
    FEATURES,
    GRID,
    METRICS,
    PREPARED,
    RUNS,
    read_digested,
    remove,
    sha256_of,
    write_digested,
)
from ncpipe.code_memory import files_state, settled_state
from ncpipe.errors import InputError
from ncpipe.scheduling.dvc_entries import in_cache

Stage = Literal["extract", "measure"]
PLACES: Mapping[Stage, Path] = {"extract": FEATURES, "measure": METRICS}
STORE = AHEAD / ".stages"
PARAMS_FILE = Path("params.yaml")  # `ncpipe.params` brings pydantic


def root_of(stage: Stage) -> Path:
    """Where a stage's results wait, by experiment."""
    return STORE / stage


def sources_of(stage: Stage, experiment: str) -> list[Path]:
    """Files, and folders with all that is below them, that a result follows from."""
    sources = [
        PARAMS_FILE,
        CODE_FILES,
        CODE / "experiments" / experiment / f"{stage}.txt",
        GRID / f"{experiment}.csv",
        PREPARED / experiment,
        RUNS / experiment,
    ]
    return sources if stage == "extract" else [*sources, FEATURES / experiment]


def digests_of(sources: Iterable[Path], instead: Mapping[Path, Path]) -> dict[str, str]:
    """SHA-256 by path. instead: where something lies now, in place of where it is going to be."""
    found = {}
    for source in sources:
        now = instead.get(source, source)
        for path in [now] if now.is_file() else sorted(now.rglob("*")):
            if path.is_file():
                found[(source / path.relative_to(now)).as_posix()] = sha256_of(path)
    return found


def leave(
    stage: Stage, experiment: str, sources: Mapping[str, str], runs: Mapping[Path, str], seconds: float
) -> bool:
    """Whether a ticket is left for a result that lies in the store. None if code has just been edited.

    sources: digests of what it was made of, taken before that. runs: by their places, the keys of those in
    the store that nobody needs there any more once it is in its own, and DVC has them. seconds: what it took.
    """
    state = settled_state()
    if state is None:
        return False
    content = {
        "state": state,
        "sources": dict(sources),
        "files": digests_of([root_of(stage) / experiment], {}),
        "runs": {place.as_posix(): key for place, key in runs.items()},
        "seconds": seconds,
    }
    write_digested(_ticket(stage, experiment), content)
    return True


def claim(stage: Stage, words: Sequence[str]) -> tuple[str, float] | None:
    """The experiment that these arguments of a stage ask for, if its result is in its place now, and the
    seconds that it took. None, and nothing is changed, where none waits as it should.
    """
    experiment = words[-1] if words else ""
    if list(words) != words_for(experiment):
        return None
    try:
        ticket = checked(stage, experiment)
        place = PLACES[stage] / experiment
        remove(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(root_of(stage) / experiment, place)  # no wait: what is in it is on the disk already
        _ticket(stage, experiment).unlink()
        for run in in_cache(map(Path, ticket["runs"])):
            remove(AHEAD / ticket["runs"][run.as_posix()])
        return experiment, float(ticket["seconds"])
    except (InputError, OSError):
        return None


def words_for(experiment: str) -> list[str]:
    """As DVC writes an item of these stages' matrix into a command."""
    return ["--experiment", experiment]


def waits(stage: Stage, experiment: str) -> bool:
    """Whether there is something in the store, whatever it is."""
    folder = root_of(stage) / experiment
    return os.path.lexists(folder) or os.path.lexists(_ticket(stage, experiment))


def checked(stage: Stage, experiment: str, instead: Mapping[Path, Path] | None = None) -> dict[str, Any]:
    """The ticket of a result that is, to the byte, what was made of what there is now; else InputError says
    what is not so. instead: as for `digests_of`."""
    folder, ticket = root_of(stage) / experiment, read_digested(_ticket(stage, experiment))
    if ticket["state"] != files_state():
        raise InputError(f"{folder}: made by other code")
    if any(each.is_symlink() for each in (folder, *folder.rglob("*"))):
        raise InputError(f"{folder}: a link, where results are folders of files")
    _check_same(
        ticket["sources"], digests_of(sources_of(stage, experiment), instead or {}), "has changed since"
    )
    _check_same(ticket["files"], digests_of([folder], {}), "damaged")
    return ticket


def drop(stage: Stage, experiment: str) -> None:
    """Remove what waits, if there is something."""
    remove(_ticket(stage, experiment))
    remove(root_of(stage) / experiment)


def drop_others(kept: Iterable[tuple[Stage, str]]) -> None:
    """Remove all that waits but these: nobody will ask for it."""
    keeps = set(kept)
    for stage in PLACES:
        for path in root_of(stage).glob("*"):
            if (stage, path.name.removesuffix(".json")) not in keeps:
                remove(path)


def drop_all() -> None:
    """Nobody will ask for anything that waits."""
    remove(STORE)


def _check_same(before: Mapping[str, str], now: Mapping[str, str], what: str) -> None:
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise InputError(f"{name}: {what if name in before and name in now else 'missing, or is new'}")


def _ticket(stage: Stage, experiment: str) -> Path:
    return root_of(stage) / f"{experiment}.json"
