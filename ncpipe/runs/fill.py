"""Train the missing runs of a set into the store, each once, even if other processes do the same.

This is the only trainer: it claims batch by batch (`ncpipe.runs.run_claims`), trains, stores and releases,
until nothing is left. Jobs of Slurm do the same on other machines.
"""

import threading
from collections.abc import Collection, Sequence

from ncpipe.config.params import load_params
from ncpipe.config.run import Device
from ncpipe.runs.batches import plan, train_batches, work_of, worker_count
from ncpipe.runs.engines.options import Settings
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.run_claims import FOLDER, claimed_keys
from ncpipe.runs.store import lacking, missing_of, sweep_fingerprints
from ncpipe.runs.store_layout import store_folder
from ncpipe.system.console import Progress, plural, say
from ncpipe.system.errors import InputError
from ncpipe.training.checkpoints import Stopped
from ncpipe.training.device import prepare_device

LOOK = 0.5  # seconds between two looks at what other processes train


def fill(
    fingerprints: Sequence[RunFingerprint],
    settings: Settings,
    wait: bool = True,
    stop: threading.Event | None = None,
) -> set[str]:
    """Train the runs that the store lacks; return the fingerprints of those that failed.

    Runs that another process trains, in any clone that shares the store, are waited for; without `wait`, they
    are left to it. Raises InputError at the first failure, unless the settings say to keep going, and Stopped
    after `stop` is set and checkpoints are written.
    """
    stop = stop or threading.Event()
    failed = set[str]()
    left, waits = missing_of(fingerprints), False
    while left:
        claimed = claimed_keys()
        if free := [fingerprint for fingerprint in left if fingerprint.key() not in claimed]:
            failed |= _train(free, settings, stop)
        elif not wait:
            say(f"{settings.name}: left {plural(len(left), 'run')} to another process that trains them")
            break
        else:
            if not waits:
                runs = f"{plural(len(left), 'run')} that another process trains"
                say(f"{settings.name}: waiting for {runs}, by its claims in {store_folder() / FOLDER}")
            waits = True
            if stop.wait(LOOK):
                raise Stopped
        left = lacking(left, failed)
    return failed


def _train(fingerprints: Sequence[RunFingerprint], settings: Settings, stop: threading.Event) -> set[str]:
    """Train what nobody else claims, the batches with most work first, with one bar."""
    device = prepare_device(settings.compute)
    workers = worker_count(settings.compute, device, settings.workers)
    planned, failed = plan(fingerprints, device, workers, settings.keep_going, settings.jobs)
    if planned:
        runs = plural(sum(map(len, planned)), "run")
        batches = plural(len(planned), "batch")
        say(f"{settings.name}: {runs} to train in {batches} on {device}, {workers} at a time")
    done, left = (sum(part) for part in zip((0, 0), *map(work_of, planned), strict=True))
    progress = Progress(settings.name, settings.runs, done + left, settings.runs - len(fingerprints), done)
    try:
        seconds = settings.checkpoint_seconds
        failed |= train_batches(planned, workers, seconds, progress, settings.keep_going, stop)
    finally:
        progress.close()
    return failed


def runs_of_keys(keys: Collection[str], device: Device) -> list[RunFingerprint]:
    """Return the sweep's runs with these fingerprints, by params.yaml, code and data of the current folder.

    Raises InputError if there are others.
    """
    params = load_params()
    fingerprints = sweep_fingerprints(params, params.compute_on(device))
    wanted = set(keys)
    fingerprints = [fingerprint for fingerprint in fingerprints if fingerprint.key() in wanted]
    if missing := len(keys) - len(fingerprints):
        raise InputError(
            f"{plural(missing, 'run')} of the sweep: code, data or versions differ here from where the sweep "
            "began; install the same on both"
        )
    return fingerprints
