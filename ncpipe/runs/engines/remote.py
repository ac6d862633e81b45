"""Tasks on a machine that may not see the driver's folder.

A machine that sees it trains there, into its store. One that does not trains in a work directory of its own,
below the folder for temporary files: data arrive as archives, and finished runs go back as archives. The work
directory is named by its contents, so the next task on the same machine finds its data there, and the
checkpoints of one that was stopped.
"""

import contextlib
import dataclasses
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
from ncpipe.runs.engines.archive import pack, unpack_as
from ncpipe.runs.engines.task import Task, TaskResult
from ncpipe.runs.engines.worker import train_task
from ncpipe.runs.store import has, stored
from ncpipe.runs.store_layout import ALONE, begin_store
from ncpipe.system.artifacts import PREPARED, remove
from ncpipe.system.console import recorded_lines
from ncpipe.system.errors import InputError
from ncpipe.training.loop import Stopped

Load = Callable[[], bytes]  # of an archive


@dataclass(frozen=True)
class Origin:
    """Where tasks come from.

    root: the driver's folder. mark: a file that is in the store there and in no other. study: its study.py
    and the files that it imports, by path. torch: its version, since equal runs have equal bytes only then.
    """

    root: str
    mark: str
    study: Mapping[str, bytes]
    torch: str


@contextlib.contextmanager
def origin() -> Iterator[Origin]:
    """Yield the working directory as an origin; workers recognise it as long as the block lasts."""
    mark = begin_store().absolute() / f".origin-{secrets.token_hex(16)}"
    mark.touch()
    try:
        study = {path.as_posix(): path.read_bytes() for path in _code_of_study()}
        yield Origin(str(Path.cwd()), str(mark), study, torch.__version__)
    finally:
        mark.unlink(missing_ok=True)


def _code_of_study() -> list[Path]:
    """Return study.py with the files that it imports, and the dvc.yaml that lists them."""
    files = study_files()
    return [*files, PIPELINE] if files and PIPELINE.is_file() else files


def data_of(task: Task) -> set[str]:
    """Return the names of a task's prepared data sets, below the folder of all."""
    return {data_place(run["experiment"], run["value"]).as_posix() for run in task.runs}


def train_there(
    task: Task, source: Origin, data: Mapping[str, Load], stop: threading.Event | None = None
) -> tuple[TaskResult, dict[str, bytes]]:
    """Train a task on this machine; return its result, and archives of finished runs by their fingerprints.

    A run that is in the driver's store already has no archive. data: loads the archive of each prepared data
    set where it is needed.
    """
    log: list[str] = []
    try:
        with recorded_lines(log.append), _in_workdir(task, source, data) as shared:
            try:
                result = train_task(task, stop)
            except Stopped:
                result = TaskResult(task, "lost", "stopped")
            result = dataclasses.replace(result, log="".join(log))
            if shared:
                return result, {}
            finished = [key for key in task.keys if has(key)]
            archives = {key: pack(stored(key)) for key in finished}
            for key in finished:
                remove(stored(key))
            return result, archives
    except InputError as error:
        return TaskResult(task, "failed", str(error), "".join(log)), {}


@contextlib.contextmanager
def _in_workdir(task: Task, source: Origin, data: Mapping[str, Load]) -> Iterator[bool]:
    """Change to where the task's data are; yield whether that is the driver's folder."""
    if torch.__version__ != source.torch:
        raise InputError(
            f"torch {torch.__version__} on a worker, {source.torch} where the sweep was planned; "
            "give both the same"
        )
    shared = Path(source.mark).is_file() and Path(source.root).is_dir()
    with contextlib.chdir(source.root if shared else _workdir(task, source)):
        if not shared:
            _prepare_workdir(task, source, data)
        yield shared


def _workdir(task: Task, source: Origin) -> Path:
    """Return a folder of this user's alone for tasks of this origin, study and data."""
    study = {path: content.hex() for path, content in source.study.items()}
    name = hashlib.sha256(json.dumps([source.root, source.torch, task.data, study]).encode())
    base = Path(tempfile.gettempdir()) / f"ncpipe-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    if base.is_symlink() or base.stat().st_uid != os.getuid():
        raise InputError(f"{base}: another user's; remove it or set TMPDIR on this machine")
    workdir = base / name.hexdigest()[:32]
    (workdir / ALONE).mkdir(parents=True, exist_ok=True)
    return workdir


def _prepare_workdir(task: Task, source: Origin, data: Mapping[str, Load]) -> None:
    for path, content in source.study.items():
        if not Path(os.path.normpath(path)).resolve().is_relative_to(Path.cwd()):
            raise InputError(f"{path}: is outside the study's folder, so workers elsewhere cannot have it")
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        partial = Path(f"{path}.{secrets.token_hex(8)}.partial")
        partial.write_bytes(content)
        os.replace(partial, path)
    for name in sorted(data_of(task)):
        if not _is_whole(PREPARED / name, task.data):
            with contextlib.suppress(OSError):  # another worker was first, or it is seen below
                unpack_as(data[name](), PREPARED / name)
            read_prepared(PREPARED / name)


def _is_whole(folder: Path, checksum: str) -> bool:
    with contextlib.suppress(InputError):
        return read_prepared(folder).checksum == checksum
    return False
