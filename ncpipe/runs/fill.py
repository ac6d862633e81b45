"""Fill the store: train what is missing of a set of runs, once, whatever other processes do."""

import contextlib
from collections.abc import Iterable, Sequence

from filelock import FileLock, Timeout

from ncpipe.runs.engines.choice import open_engine, tasks_of
from ncpipe.runs.engines.engine import run_tasks
from ncpipe.runs.engines.jobs import keys_in_jobs
from ncpipe.runs.engines.options import LOCAL, Options, Settings
from ncpipe.runs.engines.task import TaskResult
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.store import batch_lock, missing_of


def fill(
    fingerprints: Sequence[RunFingerprint], settings: Settings, options: Options = LOCAL
) -> list[TaskResult]:
    """Train those of the runs that the store does not have, by an engine; return what could not be trained.

    Runs of one shape have a lock, held while they train. Runs that another process trains, in any clone that
    shares the store, are waited for. Runs in submitted jobs are left to the engine of those jobs. Raises
    InputError at the first failure, unless the settings say to keep going.
    """
    failed: list[TaskResult] = []
    left = missing_of(fingerprints)
    while left:
        locks = {fingerprint.key(): batch_lock(fingerprint) for fingerprint in left}
        with contextlib.ExitStack() as held:
            ours = {name for name, lock in _by_name(locks.values()) if _taken(lock, held)}
            if not ours:  # wait while holding no lock: two processes never wait for each other
                name, lock = _by_name(locks.values())[0]
                held.enter_context(lock)
                ours = {name}
            own = [fingerprint for fingerprint in left if locks[fingerprint.key()].lock_file in ours]
            left = [fingerprint for fingerprint in left if locks[fingerprint.key()].lock_file not in ours]
            under_way = keys_in_jobs()
            todo = [fingerprint for fingerprint in missing_of(own) if fingerprint.key() not in under_way]
            if todo or (under_way and options.engine == "slurm"):
                engine = open_engine(options, settings)
                failed += run_tasks(engine, tasks_of(todo, settings), settings.keep_going)
        left = missing_of(left)
    return failed


def _by_name(locks: Iterable[FileLock]) -> list[tuple[str, FileLock]]:
    return sorted({lock.lock_file: lock for lock in locks}.items())


def _taken(lock: FileLock, held: contextlib.ExitStack) -> bool:
    """Acquire a lock if it is free; return whether it was."""
    try:
        held.enter_context(lock.acquire(timeout=0))
    except Timeout:
        return False
    return True
