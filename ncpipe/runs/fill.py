"""Train the missing runs of a set into the store, each once, even if other processes do the same."""

import contextlib
from collections.abc import Iterable, Sequence

from filelock import FileLock, Timeout

from ncpipe.runs.engines.choice import open_engine, tasks_of
from ncpipe.runs.engines.engine import run_tasks
from ncpipe.runs.engines.jobs import keys_in_jobs
from ncpipe.runs.engines.options import LOCAL, Options, Settings
from ncpipe.runs.engines.slurm_commands import keys_elsewhere
from ncpipe.runs.engines.task import TaskResult
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.store import batch_lock, missing_of
from ncpipe.system.console import plural, say


def fill(
    fingerprints: Sequence[RunFingerprint], settings: Settings, options: Options = LOCAL, wait: bool = True
) -> list[TaskResult]:
    """Train the runs that the store lacks through an engine, and return the failures.

    A lock for each shape is held while its runs train. Runs that another process trains, in any clone that
    shares the store, are waited for. Runs in submitted jobs are left to the engine of those jobs. Raises
    InputError at the first failure, unless the settings say to keep going.

    Without `wait`, runs that another process trains are left to it, and submitted jobs to themselves.
    """
    failed: list[TaskResult] = []
    left = missing_of(fingerprints)
    while left:
        locks = {fingerprint.key(): batch_lock(fingerprint) for fingerprint in left}
        with contextlib.ExitStack() as held:
            acquired = {name for name, lock in _by_name(locks.values()) if _acquired(lock, held)}
            if not (acquired or wait):
                say(f"{settings.name}: left {plural(len(left), 'run')} to another process that trains them")
                return failed
            if not acquired:  # wait without holding a lock, so that two processes never wait for each other
                name, lock = _by_name(locks.values())[0]
                held.enter_context(lock)
                acquired = {name}
            ours = [fingerprint for fingerprint in left if locks[fingerprint.key()].lock_file in acquired]
            left = [fingerprint for fingerprint in left if locks[fingerprint.key()].lock_file not in acquired]
            in_jobs, elsewhere = keys_in_jobs(), keys_elsewhere()
            claimed = in_jobs.keys() | elsewhere.keys()
            todo = [fingerprint for fingerprint in missing_of(ours) if fingerprint.key() not in claimed]
            if todo or (in_jobs and options.engine == "slurm"):
                engine = open_engine(options, settings)
                failed += run_tasks(engine, tasks_of(todo, settings), settings.keep_going, wait)
        left = missing_of(left)
    return failed


def _by_name(locks: Iterable[FileLock]) -> list[tuple[str, FileLock]]:
    return sorted({lock.lock_file: lock for lock in locks}.items())


def _acquired(lock: FileLock, held: contextlib.ExitStack) -> bool:
    """Acquire a lock if it is free; return whether it was."""
    try:
        held.enter_context(lock.acquire(timeout=0))
    except Timeout:
        return False
    return True
