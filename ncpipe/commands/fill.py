"""Run the stage fill: train all missing runs of the sweep in parallel, before DVC runs one stage per run.

`ncpipe.commands.train` then takes the runs from the store.
"""

import os

from ncpipe.commands.code import check_params_unedited
from ncpipe.config.params import load_params
from ncpipe.config.specs import Device
from ncpipe.runs.engines.jobs import keys_in_jobs
from ncpipe.runs.engines.options import Settings
from ncpipe.runs.engines.slurm_commands import keys_elsewhere
from ncpipe.runs.store import missing_of, remove_unwanted, sweep_fingerprints
from ncpipe.system.console import say
from ncpipe.system.errors import InputError


def fill_store(device: Device | None, workers: int | None, checkpoint_seconds: float) -> None:
    """Train every run of the sweep that is missing in the store, on all cores.

    A run that fails is reported here and again by its own stage. A run in a job of Slurm, also one of another
    folder with this store, is left to the job.
    """
    params = load_params()
    remove_unwanted(params)  # DVC may have restored the grid's tables without running the stage grid
    if "DVC_STAGE" in os.environ:
        check_params_unedited(params, params.sweep.experiments)
    compute = params.compute_on(device)
    fingerprints = sweep_fingerprints(params, compute)
    ready = {fingerprint.run.experiment for fingerprint in fingerprints}
    if lacking := [name for name in params.sweep.experiments if name not in ready]:
        raise InputError(f"fill: the data of {', '.join(lacking)} are not prepared; run dvc repro fetch")
    untrained = missing_of(fingerprints)
    in_jobs = (keys_in_jobs() | keys_elsewhere()).keys()
    missing = [fingerprint for fingerprint in untrained if fingerprint.key() not in in_jobs]
    left = f", {len(untrained) - len(missing)} are in jobs of Slurm" if len(missing) < len(untrained) else ""
    say(f"fill: {len(fingerprints) - len(untrained)} of {len(fingerprints)} runs are trained{left}")
    if not missing:
        return
    from ncpipe.runs.fill import fill  # imports torch

    failed = fill(missing, Settings(compute, workers, checkpoint_seconds, True, len(fingerprints), "fill"))
    if failed:
        say("fill: some runs failed, see above; their stages will report them again")
