"""Stage train: runs of the grid, and with them those that can train beside them."""

import os
from collections.abc import Sequence
from dataclasses import replace

from ncpipe.commands.code import check_asked
from ncpipe.config.bounds import Number
from ncpipe.config.params import Params, load_params
from ncpipe.config.specs import Device, Run
from ncpipe.datasets.stored import data_checksum
from ncpipe.runs.engines.jobs import keys_in_jobs
from ncpipe.runs.engines.options import Settings
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.store import is_materialised, missing_of, sweep_fingerprints, take
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.console import say
from ncpipe.system.errors import InputError


def train(
    experiment: str,
    depth: int | None = None,
    seed: int | None = None,
    device: Device | None = None,
    alone: bool = False,
    workers: int | None = None,
    checkpoint_seconds: float = 60.0,
    value: Number | None = None,
) -> None:
    """Train runs of params.yaml on their prepared data into data/runs/EXPERIMENT/L<depth>/s<seed>.

    In a study with an axis, at its values -> data/runs/EXPERIMENT/L<depth>/x<value>/s<seed>. What is None is
    not asked for: all runs of the sweep's grid are meant that agree with the rest.

    What the store of runs has is taken from there, without torch. What is missing trains, and with it, unless
    `alone`, the sweep's other missing runs of the same shapes (its other seeds, first of all), into the
    store. A run that was stopped goes on from its last checkpoint. device: of what trains, in place of
    compute.device. workers: batches at a time, None for one per core (one on a GPU). A run that diverges is a
    result too: its folder says so. InputError where DVC runs this and params.yaml has been edited since DVC's
    stage `code` said what it asks for.
    """
    params = load_params()
    runs = _asked(params, experiment, depth, seed, value)
    if "DVC_STAGE" in os.environ:
        check_asked(params, [experiment])
    compute = params.compute_on(device)
    fingerprints = [RunFingerprint(run, data_checksum(PREPARED / run.data), compute) for run in runs]
    placed = [fingerprint for fingerprint in fingerprints if is_materialised(fingerprint)]
    for fingerprint in placed:
        say(f"train {fingerprint.run.name}: trained already")
    wanted = [fingerprint for fingerprint in fingerprints if fingerprint not in placed]
    missing = missing_of(wanted)
    if missing:
        _train(missing, params, Settings(compute, workers, checkpoint_seconds, False, len(missing)), alone)
    for fingerprint in wanted:
        if not take(fingerprint):
            raise InputError(f"{fingerprint.run.name}: its folder was removed from the store; train it again")
        if fingerprint not in missing:
            say(f"train {fingerprint.run.name}: taken from the store")


def _asked(
    params: Params, experiment: str, depth: int | None, seed: int | None, value: Number | None
) -> Sequence[Run]:
    """Return the runs that are meant; one that is named in full need not be in the sweep."""
    if depth is not None and seed is not None and (value is not None or params.sweep.axis is None):
        return [params.run(experiment, depth, seed, value)]
    asked = {"depth": depth, "seed": seed, "value": value}
    found = [
        run
        for run in params.runs_of(experiment)
        if all(wish is None or getattr(run, name) == wish for name, wish in asked.items())
    ]
    if not found or experiment not in params.sweep.experiments:
        said = " ".join(f"{name}={wish}" for name, wish in asked.items() if wish is not None)
        raise InputError(f"train {experiment} {said}".strip() + ": no such runs in the sweep of params.yaml")
    return found


def _train(missing: list[RunFingerprint], params: Params, settings: Settings, alone: bool) -> None:
    """Train runs, and with them others of their shapes, into the store."""
    under_way = keys_in_jobs()
    for fingerprint in missing:
        if job := under_way.get(fingerprint.key()):
            raise InputError(
                f"{fingerprint.run.name}: in job {job.id}; wait for it (ncpipe status), run ncpipe sweep "
                "--collect for what jobs have finished, or --cancel to end them"
            )
    mates: list[RunFingerprint] = []
    count, left = len(missing), len(missing)
    if not alone:
        shapes, own = (
            {fingerprint.batch_key() for fingerprint in missing},
            {fingerprint.key() for fingerprint in missing},
        )
        grid = sweep_fingerprints(params, settings.compute)
        others = [other for other in missing_of(grid) if other.key() not in own | under_way.keys()]
        mates = [other for other in others if other.batch_key() in shapes]
        count, left = len(own | {fingerprint.key() for fingerprint in grid}), len(own) + len(others)
    name = missing[0].run.name
    say(f"train {name}: {count - left} of {count} runs are trained, loading PyTorch")

    from ncpipe.runs.fill import fill  # only now: brings torch

    fill([*missing, *mates], replace(settings, runs=count, name=name, planned=False))
