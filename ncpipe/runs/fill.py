"""Train the missing runs of a set into the store, each once, even if other processes do the same.

This is the only trainer. On this machine it claims batch by batch (`ncpipe.runs.run_claims`), trains, stores
and releases, until nothing is left; an engine does the same on other machines.
"""

import time
from collections.abc import Sequence

from ncpipe.runs.batches import train_batches, worker_count
from ncpipe.runs.engines.choice import open_engine, tasks_of
from ncpipe.runs.engines.engine import run_tasks
from ncpipe.runs.engines.job_log import recorded_job
from ncpipe.runs.engines.jobs import keys_in_jobs
from ncpipe.runs.engines.options import LOCAL, Options, Settings
from ncpipe.runs.engines.slurm_commands import keys_elsewhere
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.plan import headline, plan
from ncpipe.runs.run_claims import claimed_keys
from ncpipe.runs.store import has, missing_of
from ncpipe.system.console import Progress, plural, say
from ncpipe.training.device import prepare_device

LOOK = 0.5  # seconds between two looks at what other processes train


def fill(
    fingerprints: Sequence[RunFingerprint], settings: Settings, options: Options = LOCAL, wait: bool = True
) -> set[str]:
    """Train the runs that the store lacks; return the fingerprints of those that failed.

    Runs that another process trains, in any clone that shares the store, are waited for. Runs in submitted
    jobs are left to the jobs. Raises InputError at the first failure, unless the settings say to keep going.

    Without `wait`, runs that another process trains are left to it, and submitted jobs to themselves.
    """
    failed: set[str] = set()
    left, waits = missing_of(fingerprints), False
    while left:
        claimed = claimed_keys()
        free = [fingerprint for fingerprint in left if fingerprint.key() not in claimed]
        if free and options.engine == "local":
            failed |= _train(free, settings)
        elif free:
            failed |= _submit(free, settings, options, wait)
            left = [fingerprint for fingerprint in left if fingerprint not in free]
        elif not wait:
            say(f"{settings.name}: left {plural(len(left), 'run')} to another process that trains them")
            break
        else:
            if not waits:
                say(f"{settings.name}: waiting for {plural(len(left), 'run')} that another process trains")
            waits = True
            time.sleep(LOOK)
        left = [each for each in left if each.key() not in failed and not has(each.key())]
    return failed


def _train(fingerprints: Sequence[RunFingerprint], settings: Settings) -> set[str]:
    """Train on this machine what nobody else claims, the batches with most work first, with one bar."""
    device = prepare_device(settings.compute)
    workers = worker_count(settings.compute, device, settings.workers)
    planned, _ = plan(fingerprints, device, workers, settings.keep_going)
    if planned:
        say(f"{settings.name}: {headline(planned, workers, str(device))}")
    work = {each.key(): batch.work_per_epoch for batch in planned for each in batch.fingerprints}
    done, left = (sum(getattr(batch, name) for batch in planned) for name in ("work_done", "work_left"))
    progress = Progress(settings.name, settings.runs, done + left, settings.runs - len(fingerprints), done)
    keys = [fingerprint.key() for fingerprint in fingerprints]
    try:
        with recorded_job("local", keys):
            errors = train_batches(
                [batch.fingerprints for batch in planned],
                workers,
                settings.checkpoint_seconds,
                progress,
                lambda fingerprint: work[fingerprint.key()],
                settings.keep_going,
            )
    finally:
        progress.close()
    return {key for key in keys if key in errors or key not in work}


def _submit(
    fingerprints: Sequence[RunFingerprint], settings: Settings, options: Options, wait: bool
) -> set[str]:
    """Train through an engine what is in no job."""
    in_jobs, elsewhere = keys_in_jobs(), keys_elsewhere()
    todo = [each for each in fingerprints if each.key() not in in_jobs.keys() | elsewhere.keys()]
    if not (todo or (in_jobs and options.engine == "slurm")):
        return set()
    engine = open_engine(options, settings)
    failed = run_tasks(engine, tasks_of(todo, settings), settings.keep_going, wait)
    return {key for result in failed for key in result.task.keys if not has(key)}
