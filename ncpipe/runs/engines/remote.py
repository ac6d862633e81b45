"""Work on a machine that may not see the driver's folder.

One that does trains there: its runs appear in the store when they are finished. One that does not trains in
a room of its own below the folder for temporary files, with the data as bytes, and gives finished runs back
as bytes. A room is known by all that it holds, so the next piece of work on the same machine finds its data
there, and the checkpoints of one that was stopped.
"""

import contextlib
import hashlib
import json
import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from ncpipe.config.specs import data_place
from ncpipe.datasets.prepared import read_prepared
from ncpipe.runs.code_digests import PIPELINE, study_files
from ncpipe.runs.engines.parcels import pack, unpack_as
from ncpipe.runs.engines.work import Ended, Work
from ncpipe.runs.engines.worker import Need, need_of, train_work
from ncpipe.runs.folders import ALONE, begin_store
from ncpipe.runs.store import has, stored
from ncpipe.system.artifacts import PREPARED, remove
from ncpipe.system.errors import InputError
from ncpipe.training.loop import Stopped

Load = Callable[[], bytes]  # of a parcel


@dataclass(frozen=True)
class Home:
    """Where work comes from.

    root: the driver's folder. mark: a file that is in the store there and in no other. study: its study.py
    and what counts beside it, by path. torch: its version, by which equal runs have equal bytes.
    """

    root: str
    mark: str
    study: Mapping[str, bytes]
    torch: str


@contextlib.contextmanager
def at_home() -> Iterator[Home]:
    """The working directory, known to workers that see it as long as the block lasts."""
    mark = begin_store().absolute() / f".home-{secrets.token_hex(16)}"
    mark.touch()
    try:
        study = {path.as_posix(): path.read_bytes() for path in _code_of_study()}
        yield Home(str(Path.cwd()), str(mark), study, torch.__version__)
    finally:
        mark.unlink(missing_ok=True)


def _code_of_study() -> list[Path]:
    """study.py with the files that count beside it, and the dvc.yaml that lists them."""
    files = study_files()
    return [*files, PIPELINE] if files and PIPELINE.is_file() else files


def data_of(work: Work) -> set[str]:
    """Names of the prepared data sets of some work, below the folder of all."""
    return {data_place(run["experiment"], run["value"]).as_posix() for run in work.runs}


def need_there(work: Work, home: Home, data: Mapping[str, Load]) -> Need | Ended:
    """What a run takes on this machine, or why that cannot be told."""
    try:
        with _in_place(work, home, data):
            return need_of(work)
    except InputError as error:
        return Ended(work, "failed", str(error))


def train_there(
    work: Work, home: Home, data: Mapping[str, Load], stop: threading.Event | None = None
) -> tuple[Ended, dict[str, bytes]]:
    """How the work ended on this machine, and its finished runs by key, if they are not in the store by now.

    data: gives a parcel of each prepared data set, where it is needed.
    """
    try:
        with _in_place(work, home, data) as shared:
            try:
                ended = train_work(work, stop)
            except Stopped:
                ended = Ended(work, "lost", "stopped")
            if shared:
                return ended, {}
            finished = [key for key in work.keys if has(key)]
            parcels = {key: pack(stored(key)) for key in finished}
            for key in finished:
                remove(stored(key))
            return ended, parcels
    except InputError as error:
        return Ended(work, "failed", str(error)), {}


@contextlib.contextmanager
def _in_place(work: Work, home: Home, data: Mapping[str, Load]) -> Iterator[bool]:
    """Be where the work's data are; whether that is the driver's folder."""
    if torch.__version__ != home.torch:
        raise InputError(
            f"torch {torch.__version__} on a worker, {home.torch} where the sweep was planned; "
            "give both the same"
        )
    shared = Path(home.mark).is_file() and Path(home.root).is_dir()
    with contextlib.chdir(home.root if shared else _room(work, home)):
        if not shared:
            _furnish(work, home, data)
        yield shared


def _room(work: Work, home: Home) -> Path:
    """A folder of this user's alone for work of this home, study and data."""
    study = {path: content.hex() for path, content in home.study.items()}
    name = hashlib.sha256(json.dumps([home.root, home.torch, work.data, study]).encode())
    base = Path(tempfile.gettempdir()) / f"ncpipe-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    if base.is_symlink() or base.stat().st_uid != os.getuid():
        raise InputError(f"{base}: another user's; remove it or set TMPDIR on this machine")
    room = base / name.hexdigest()[:32]
    (room / ALONE).mkdir(parents=True, exist_ok=True)
    return room


def _furnish(work: Work, home: Home, data: Mapping[str, Load]) -> None:
    for path, content in home.study.items():
        if not Path(os.path.normpath(path)).resolve().is_relative_to(Path.cwd()):
            raise InputError(f"{path}: is outside the study's folder, so workers elsewhere cannot have it")
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        partial = Path(f"{path}.{secrets.token_hex(8)}.partial")
        partial.write_bytes(content)
        os.replace(partial, path)
    for name in sorted(data_of(work)):
        if not _is_whole(PREPARED / name, work.data):
            with contextlib.suppress(OSError):  # another worker was first, or it is seen below
                unpack_as(data[name](), PREPARED / name)
            read_prepared(PREPARED / name)


def _is_whole(folder: Path, checksum: str) -> bool:
    with contextlib.suppress(InputError):
        return read_prepared(folder).checksum == checksum
    return False
