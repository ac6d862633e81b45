"""Run the stage train: take runs of an experiment from the store, or train exactly these.

`ncpipe.runs.fast_path` takes stored runs without this module.
"""

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from ncpipe.commands.code import check_params_unedited
from ncpipe.commands.options import CheckpointSeconds, Device, Experiment, Value, Workers
from ncpipe.config.bounds import Number
from ncpipe.config.params import Params, load_params
from ncpipe.config.run import Run
from ncpipe.datasets.stored import data_checksum
from ncpipe.runs.engines.options import Settings
from ncpipe.runs.engines.slurm_commands import check_no_jobs
from ncpipe.runs.fingerprint import fingerprint_of
from ncpipe.runs.store import missing_of, take
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.console import plural, say
from ncpipe.system.errors import InputError


def train(
    experiment: Experiment,
    depth: Annotated[int | None, typer.Option(help="Depth of the network.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights and mini-batches.")] = None,
    device: Device = None,
    workers: Workers = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    value: Value = None,
) -> None:
    """Take an experiment's runs from the store, or train exactly these; write them to data/runs. Without
    --depth, --seed or --value, this means all of the sweep.

    The path is data/runs/EXPERIMENT/L<depth>/s<seed>, in a study with an axis L<depth>/x<value>/s<seed>.
    Stored runs are taken without torch. Stopped runs resume from their checkpoint. A run that diverges is
    stored too. Raises InputError in a stage of DVC if params.yaml was edited after the stage `code` ran, and
    if one of the runs is left to jobs of Slurm.
    """
    params = load_params()
    runs = _select_runs(params, experiment, depth, seed, value)
    if "DVC_STAGE" in os.environ:
        check_params_unedited(params, [experiment])
    compute = params.compute_on(device)
    fingerprints = [fingerprint_of(run, data_checksum(PREPARED / run.data), compute) for run in runs]
    missing = missing_of(fingerprints)
    if missing:
        check_no_jobs([fingerprint.key() for fingerprint in missing])
        name = missing[0].run.name
        say(f"train {name}: {plural(len(missing), 'run')} to train, loading PyTorch")
        from ncpipe.runs.fill import fill  # imports torch

        fill(missing, Settings(compute, workers, checkpoint_seconds, False, len(missing), name))
    for fingerprint in fingerprints:
        if not take(fingerprint):
            raise InputError(f"{fingerprint.run.name}: its folder was removed from the store; train it again")
        if fingerprint not in missing:
            say(f"train {fingerprint.run.name}: taken from the store")


def _select_runs(
    params: Params, experiment: str, depth: int | None, seed: int | None, value: Number | None
) -> Sequence[Run]:
    """Return the runs of the sweep that match; a single run need not be in the sweep."""
    if depth is not None and seed is not None and (value is not None or params.sweep.axis is None):
        return [params.run(experiment, depth, seed, value)]
    settings = {"depth": depth, "seed": seed, "value": value}
    settings = {name: setting for name, setting in settings.items() if setting is not None}
    runs = [
        run
        for run in params.runs_of(experiment)
        if all(getattr(run, name) == setting for name, setting in settings.items())
    ]
    if not runs or experiment not in params.sweep.experiments:
        text = " ".join([experiment, *(f"{name}={setting}" for name, setting in settings.items())])
        raise InputError(f"train {text}: no such runs in the sweep of params.yaml")
    return runs
