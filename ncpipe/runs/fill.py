"""Fill the store: train what is missing of a set of runs, once, whoever else is at it."""

import contextlib
from collections.abc import Iterable, Sequence

from filelock import FileLock, Timeout

from ncpipe.runs.engines.choice import open_engine, tasks_of
from ncpipe.runs.engines.jobs import keys_in_jobs
from ncpipe.runs.engines.options import LOCAL, Options, Settings
from ncpipe.runs.engines.protocol import run_tasks
from ncpipe.runs.engines.task import TaskResult
from ncpipe.runs.fingerprint import Stamp
from ncpipe.runs.store import batch_lock, missing_of


def fill(stamps: Sequence[Stamp], settings: Settings, options: Options = LOCAL) -> list[TaskResult]:
    """Train those of the runs that the store does not have, by an engine; return what could not be trained.

    Runs of a shape have a lock, which is held as long as they train: what another process trains is waited
    for, in this clone and in all that share the store. What is in jobs already is waited for by their engine,
    and left to it by the others. InputError for the first that fails, unless it is to keep going.
    """
    failed: list[TaskResult] = []
    left = missing_of(stamps)
    while left:
        locks = {stamp.key(): batch_lock(stamp) for stamp in left}
        with contextlib.ExitStack() as held:
            ours = {name for name, lock in _by_name(locks.values()) if _taken(lock, held)}
            if not ours:  # wait for one while none is held, so that two fills never wait for each other
                name, lock = _by_name(locks.values())[0]
                held.enter_context(lock)
                ours = {name}
            own = [stamp for stamp in left if locks[stamp.key()].lock_file in ours]
            left = [stamp for stamp in left if locks[stamp.key()].lock_file not in ours]
            under_way = keys_in_jobs()
            todo = [stamp for stamp in missing_of(own) if stamp.key() not in under_way]
            if todo or (under_way and options.engine == "slurm"):
                engine = open_engine(options, settings)
                failed += run_tasks(engine, tasks_of(todo, settings), settings.keep_going)
        left = missing_of(left)
    return failed


def _by_name(locks: Iterable[FileLock]) -> list[tuple[str, FileLock]]:
    return sorted({lock.lock_file: lock for lock in locks}.items())


def _taken(lock: FileLock, held: contextlib.ExitStack) -> bool:
    """Whether nobody else had it; it is held from now on."""
    try:
        held.enter_context(lock.acquire(timeout=0))
    except Timeout:
        return False
    return True
