"""Stage fill: all that the sweep lacks, side by side, before DVC asks for one run after the other."""

import os

from ncpipe.commands.code import check_asked
from ncpipe.config.params import load_params
from ncpipe.config.specs import Device
from ncpipe.runs.engines.jobs import keys_in_jobs
from ncpipe.runs.engines.options import Settings
from ncpipe.runs.store import missing_of, sweep_fingerprints
from ncpipe.system.console import say


def fill_store(device: Device | None, workers: int | None, checkpoint_seconds: float) -> None:
    """Train every run of the sweep that the store lacks into it, on all cores.

    A run that cannot be trained is reported and left to its own stage, which fails at it. A run in a job is
    left to the job.
    """
    params = load_params()
    if "DVC_STAGE" in os.environ:
        check_asked(params, params.sweep.experiments)
    compute = params.compute_on(device)
    fingerprints = sweep_fingerprints(params, compute)
    under_way = keys_in_jobs()
    missing = [fingerprint for fingerprint in missing_of(fingerprints) if fingerprint.key() not in under_way]
    say(f"fill: {len(fingerprints) - len(missing)} of {len(fingerprints)} runs are trained")
    if not missing:
        return
    from ncpipe.runs.fill import fill  # only now: brings torch

    failed = fill(missing, Settings(compute, workers, checkpoint_seconds, True, len(fingerprints), "fill"))
    if failed:
        say("fill: what failed is left to its own stage")
