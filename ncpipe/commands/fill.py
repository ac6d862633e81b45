"""Run the stage fill: train all missing runs of the sweep in parallel, before DVC runs one stage per run.

`ncpipe.commands.train` then takes the runs from the store.
"""

import os
from typing import Annotated

import typer

from ncpipe.commands.code import check_params_unedited
from ncpipe.commands.options import CheckpointSeconds, Device, Workers
from ncpipe.config.params import load_params
from ncpipe.runs.engines.options import Settings
from ncpipe.runs.engines.slurm_commands import check_no_jobs
from ncpipe.runs.store import missing_of, remove_unwanted, restore, sweep_fingerprints
from ncpipe.system.console import say
from ncpipe.system.errors import InputError


def fill_store(
    device: Device = None,
    workers: Workers = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that run this command at the same time and share its runs."),
    ] = None,
) -> None:
    """Train all missing runs of the sweep into the store, in parallel on all cores.

    A run that fails is reported here and again by its own stage. Raises InputError while jobs of Slurm that
    were submitted here train any of the runs.
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
    missing = restore(missing_of(fingerprints))
    say(f"fill: {len(fingerprints) - len(missing)} of {len(fingerprints)} runs are trained")
    if not missing:
        return
    check_no_jobs([fingerprint.key() for fingerprint in missing])
    from ncpipe.runs.fill import fill  # imports torch

    settings = Settings(compute, workers, checkpoint_seconds, True, len(fingerprints), "fill", jobs)
    if fill(missing, settings):
        say("fill: some runs failed, see above; their stages will report them again")
