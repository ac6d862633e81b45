"""Stage train: one run of the grid, and with it those that can train beside it."""

import contextlib
import os
from pathlib import Path

from ncpipe.artifacts import AHEAD, CODE_FILES, PREPARED, SEAL, read_json, sha256_of
from ncpipe.bounds import Number
from ncpipe.commands.code import check_asked, is_described, train_file
from ncpipe.console import say
from ncpipe.errors import InputError
from ncpipe.params import PARAMS_FILE, Params, load_params
from ncpipe.scheduling.engines.jobs import keys_in_jobs
from ncpipe.scheduling.pending import batch_lock, is_missing, is_placed, sweep_stamps
from ncpipe.scheduling.registry import cached_stages, dvc_wants_all, stage_name
from ncpipe.scheduling.store import claim, prune, waits
from ncpipe.scheduling.tickets import Ticket, digests_of, write_tickets
from ncpipe.specs import Device, Run
from ncpipe.stamps import FACTS, RUN_RECORD, Stamp, data_checksum, remember_code, sealed_with


def train(
    experiment: str,
    depth: int,
    seed: int,
    device: Device | None = None,
    alone: bool = False,
    workers: int | None = None,
    checkpoint_seconds: float = 60.0,
    value: Number | None = None,
    ahead: bool = False,
) -> None:
    """One run of params.yaml on its prepared data -> data/runs/EXPERIMENT/L<depth>/s<seed>.

    In a study with an axis, at one of its values -> data/runs/EXPERIMENT/L<depth>/x<value>/s<seed>.

    The runs of the sweep that are stale too and have the same shape (its other seeds, first of all) train
    with it, unless `alone` or DVC has them in its run cache; their folders wait in data/.ahead until DVC asks
    for them, which then takes no training and no torch. A run that was stopped goes on from its last
    checkpoint. device: in place of compute.device. workers: batches at a time, None for one per core (one on
    a GPU). ahead: workers without a batch take the sweep's other stale runs, which wait in data/.ahead too,
    trained or begun; all of them, if DVC is on its way through the whole pipeline. A run that diverges is a
    result too: its folder says so. InputError where DVC runs this and params.yaml has been edited since DVC's
    stage `code` said what it asks for.
    """
    params = load_params()
    run = params.run(experiment, depth, seed, value)
    if "DVC_STAGE" in os.environ:
        check_asked(params, [experiment])
    compute = params.compute_on(device)
    stamp = Stamp(run, data_checksum(PREPARED / run.data), compute)
    AHEAD.mkdir(parents=True, exist_ok=True)
    with batch_lock(stamp):
        if is_placed(stamp):  # by who held the lock, or before DVC was stopped
            say(f"train {run.name}: trained already")
            return
        if claim(stamp):
            say(f"train {run.name}: trained in an earlier batch")
            return
        in_jobs = keys_in_jobs()
        if job := in_jobs.get(stamp.key()):
            raise InputError(
                f"{run.name}: in job {job.id}; wait for it (ncpipe status), run ncpipe sweep --collect for "
                "what jobs have finished, or --cancel to end them"
            )
        mates: list[Stamp] = []
        later: list[Stamp] = []
        runs, finished = 1, 0
        if not alone:
            grid = sweep_stamps(params, compute)
            prune({stamp.key(), *(other.key() for other in grid)})
            remember_code()
            others = [other for other in grid if other.run != run]
            missing = [other for other in others if is_missing(other) and other.key() not in in_jobs]
            runs, finished = 1 + len(others), len(others) - len(missing)
            mates = [other for other in missing if other.batch_key() == stamp.batch_key()]
            if ahead:
                places = {id(other): place for place, other in enumerate(grid)}
                turn = next((place for place, other in enumerate(grid) if other.run == run), 0)
                later = [other for other in missing if other.batch_key() != stamp.batch_key()]
                later.sort(key=lambda other: places[id(other)] < turn)  # those behind it come first
        say(f"train {run.name}: {finished} of {runs} runs are trained, loading PyTorch")
        if mates or later:  # only now: brings dvc
            cached = cached_stages({stage_name(other.run) for other in [*mates, *later]})
            mates, later = (
                [other for other in some if stage_name(other.run) not in cached] for some in (mates, later)
            )

        from ncpipe.scheduling.batches import train_first  # only now: brings torch

        whole = bool(later) and dvc_wants_all()
        train_first([stamp, *mates], workers, checkpoint_seconds, runs, finished, later, whole)
        if not claim(stamp):
            raise InputError(f"{AHEAD}: was emptied while {run.name} trained; train it again")
        if mates or later:
            with contextlib.suppress(InputError, OSError, KeyError):  # they save time and decide nothing
                _leave_tickets(params)


def _leave_tickets(params: Params) -> None:
    """For the sweep's runs that wait, if params.yaml, data and code are what DVC's stages have left.

    params: those of before; what has changed since gets none, and an edit meanwhile leaves none at all.
    """
    if not is_described():
        return
    files = {
        run: [*map(str, (PARAMS_FILE, CODE_FILES, train_file(run.experiment), PREPARED / run.data / FACTS))]
        for run in params.grid()
        if (PREPARED / run.data / FACTS).is_file()
    }
    before = digests_of({file for own in files.values() for file in own})
    params = load_params()
    check_asked(params, params.sweep.experiments)
    tickets = {
        _words(stamp.run): Ticket(
            name=stamp.run.name,
            place=stamp.run.path.as_posix(),
            key=stamp.key(),
            seal=sealed_with(stamp),
            sealed=sha256_of(AHEAD / stamp.key() / SEAL),
            files={file: before[file] for file in files[stamp.run]},
        )
        for stamp in sweep_stamps(params, params.compute)
        if waits(stamp.key()) and stamp.compute.device in ("auto", _made_on(AHEAD / stamp.key()))
    }
    if digests_of(before) == before:
        write_tickets(tickets)


def _made_on(folder: Path) -> str:
    return read_json(folder / RUN_RECORD)["computed_with"]["device"]


def _words(run: Run) -> str:
    """As DVC writes an item of the stage's matrix into its command."""
    value = "" if run.value is None else f"--value {run.value} "
    return f"--experiment {run.experiment} --depth {run.depth} {value}--seed {run.seed}"
