"""`ncpipe sweep`: all stale runs in batches, one registration with DVC, then the rest of the pipeline."""

import contextlib
import time
from collections.abc import Sequence
from typing import Literal

import psutil

from ncpipe.artifacts import AHEAD, PREPARED
from ncpipe.commands.code import check_described, edited_stages
from ncpipe.commands.grid import check_metrics
from ncpipe.commands.repair import mend_quickly, mend_torn_lock
from ncpipe.console import duration, say
from ncpipe.errors import InputError
from ncpipe.params import PARAMS_FILE, load_params
from ncpipe.scheduling.batches import groups, worker_count
from ncpipe.scheduling.engines.choice import open_engine, outlook_of, works_of
from ncpipe.scheduling.engines.jobs import keys_in_jobs, read_jobs
from ncpipe.scheduling.engines.options import LOCAL, Options, Settings
from ncpipe.scheduling.engines.protocol import drive
from ncpipe.scheduling.engines.queue import cancel
from ncpipe.scheduling.engines.work import Ended
from ncpipe.scheduling.pending import batch_lock, is_missing, sweep_stamps
from ncpipe.scheduling.plan import Planned, headline, plan_all, rest_seconds, train_seconds
from ncpipe.scheduling.registry import (
    bring_lock_back,
    dvc,
    end_parts,
    lock_kept,
    register,
    restore_cached,
    stage_name,
    stale_stages,
)
from ncpipe.scheduling.store import (
    checkpoint_of,
    claim,
    drop_damaged_places,
    drop_damaged_waiting,
    prune,
    release,
    waits,
)
from ncpipe.specs import Compute, Device
from ncpipe.stamps import FACTS, Stamp, forget_code
from ncpipe.training.checkpoints import epochs_done
from ncpipe.training.device import prepare_device

Jobs = Literal["wait", "detach", "collect"]


def sweep(
    device: Device | None,
    workers: int | None,
    checkpoint_seconds: float,
    keep_going: bool,
    options: Options = LOCAL,
    jobs: Jobs = "wait",
) -> None:
    """Bring the whole pipeline up to date, training all that is stale side by side.

    What DVC finds stale, and neither its run cache nor the store of finished runs has, trains in batches
    into the store. Then every run of the sweep is checked against params.yaml, data and code as they are
    by then, one `dvc commit` registers them all, and `dvc repro` does the rest. If a batch fails the others
    are kept in the store; with keep_going they train to their end, and DVC goes as far as it gets. options:
    where the batches train. jobs: with an engine whose jobs outlive this command, whether it waits for them,
    detaches itself from them, or collects what they have finished by now and submits what was lost.
    """
    params = load_params()
    check_metrics(params)
    compute = params.compute_on(device)
    AHEAD.mkdir(parents=True, exist_ok=True)
    _mend()
    say("sweep: asking DVC what is stale")
    stamps = sweep_stamps(load_params(), compute)
    keys = {stamp.key() for stamp in stamps}
    if others := [job for job in read_jobs() if not job.keys & keys]:
        cancel(others)
        say(f"sweep: {len(others)} jobs cancelled, whose runs params.yaml, data or code no longer ask for")
    prune(keys)
    drop_damaged_waiting(stamps)
    drop_damaged_places(stamps)
    names = stale_stages()
    stale = [stamp for stamp in stamps if stage_name(stamp.run) in names]
    wanted = [stamp for stamp in stale if is_missing(stamp)]
    cached = restore_cached([stage_name(stamp.run) for stamp in wanted])
    drop_damaged_places([stamp for stamp in wanted if stage_name(stamp.run) in cached])
    missing = [stamp for stamp in wanted if is_missing(stamp)]
    if restored := len(wanted) - len(missing):
        say(f"sweep: {restored} runs restored from DVC's run cache")
    settings = Settings(compute, workers, checkpoint_seconds, keep_going, len(stamps))
    if jobs != "wait":
        failed = _look_at_jobs(missing, settings, options, jobs)
        left = [stamp for stamp in missing if is_missing(stamp)]
        if jobs == "collect" and left:
            _register(compute, names, whole=False)
            say(f"sweep: {len(left)} runs to come")
        if failed:
            raise InputError(f"{failed} runs failed, see above and data/logs; the others are kept")
        if jobs == "detach" or left:
            return
    elif missing and not _train(missing, settings, options):
        say("sweep: some runs failed, see above; dvc takes the others from the store")
        dvc("repro", "--keep-going")
        raise InputError("some runs failed, see above; the others are kept")
    if stale:
        _register(compute, names)
    end_parts()
    dvc("repro")


def cancel_jobs() -> None:
    """End all jobs of this folder; what they have finished waits in the store."""
    jobs = read_jobs()
    cancel(jobs)
    say(f"sweep: {len(jobs)} jobs cancelled; what they have finished or saved is kept")


def _mend() -> None:
    """Bring grid and data up to date, and before that what a kill has left of DVC's files."""
    if bring_lock_back():
        say("sweep: the last one was stopped while it registered runs; dvc.lock is as it was before that")
    mend_quickly()
    try:
        dvc("repro", "--quiet", "grid", "fetch")
    except InputError:
        if not mend_torn_lock():
            raise
        dvc("repro", "--quiet", "grid", "fetch")


def print_plan(device: Device | None, workers: int | None, options: Options = LOCAL) -> None:
    """What `sweep` would do now: batches, their memory and time, the time of the rest. Changes nothing.

    With another engine than the local one: what it would be given, in which tasks, and where.
    """
    start = time.time() - psutil.Process().create_time()  # all it did so far is what a stage begins with
    params = load_params()
    compute = params.compute_on(device)
    for data in dict.fromkeys(run.data for run in params.grid()):
        if not (PREPARED / data / FACTS).is_file():
            say(f"{data}: data not prepared, so not in the plan; run dvc repro fetch")
    begin = time.monotonic()
    stale = stale_stages("dvc.yaml")
    status = time.monotonic() - begin
    stale -= {"code"}  # what follows from it is asked below: DVC knows only when it has run
    edited = {stage for stage in edited_stages(params) if stage[1] in (None, *params.sweep.experiments)}
    todo = [
        stamp
        for stamp in sweep_stamps(params, compute)
        if stage_name(stamp.run) in stale or ("train", stamp.run.experiment) in edited
    ]
    missing, under_way = [stamp for stamp in todo if is_missing(stamp)], keys_in_jobs()
    if jobs := {under_way[stamp.key()].id for stamp in missing if stamp.key() in under_way}:
        print(f"{len(jobs)} {'job' if len(jobs) == 1 else 'jobs'} of an earlier sweep go on")
    missing = [stamp for stamp in missing if stamp.key() not in under_way]
    planned: list[Planned] = []
    if missing and options.engine != "local":
        _print_outlook(missing, Settings(compute, workers, 0.0, True, len(missing)), options)
    else:
        place = prepare_device(compute)
        count = worker_count(compute, place, workers)
        planned, _ = plan_all(missing, place, count, keep_going=True)
        if planned:
            _print_batches(planned)
        print(headline(planned, count, str(place)))
    if not stale | edited:
        print("the rest is up to date")
        return
    changed = {stamp.run.experiment for stamp in todo}
    changed |= {name.partition("@")[2] for name in stale if name.startswith(("extract@", "measure@"))}
    changed |= {experiment for stage, experiment in edited if experiment and stage in ("extract", "measure")}
    remade = {name: params.runs_of(name) for name in changed}
    remade = {
        name: runs
        for name, runs in remade.items()
        if all((PREPARED / run.data / FACTS).is_file() for run in runs)
    }
    if missing and options.engine != "local":
        try:
            place = prepare_device(compute)
        except InputError as error:
            print(f"the rest, which runs here: {error}")
            return
    rest = rest_seconds(remade, len(params.sweep.experiments), place, start, status)
    print(f"the rest (DVC, features, metrics, tables, figures): about {duration(rest)}")
    if options.engine == "local" or not missing:
        print(f"in all about {duration(train_seconds(planned, count) + rest)}")


def _print_outlook(missing: Sequence[Stamp], settings: Settings, options: Options) -> None:
    outlook = outlook_of(works_of(missing, settings), options, settings.compute)
    print(f"{'shape':<40} {'runs':>5} {'epochs':>7} {outlook.name:>8}")
    for batch in groups(missing):
        run, keys = batch[0].run, {stamp.key() for stamp in batch}
        tasks = sum(any(not keys.isdisjoint(work.keys) for work in piece) for piece in outlook.pieces)
        left = run.spec.epochs - epochs_done(checkpoint_of(batch[0]))
        print(f"{_name(batch):<40} {len(batch):>5} {left:>7} {tasks:>8}")
    print(
        "\nshape: runs that can train side by side; runs: how many; epochs: that each has left; "
        f"{outlook.name}: over which\nthey are dealt out\n"
    )
    print("\n".join(outlook.said))


def _name(batch: Sequence[Stamp]) -> str:
    run = batch[0].run
    others = len({stamp.run.experiment for stamp in batch}) - 1
    return f"{run.experiment}{f' and {others} more' if others else ''} L={run.depth}"


def _print_batches(planned: Sequence[Planned]) -> None:
    print(f"{'batch':<40} {'runs':>5} {'epochs':>7} {'memory':>9} {'alone':>8}")
    for batch in planned:
        counted = f"{len(batch.stamps):>5} {batch.epochs:>7}"
        print(f"{_name(batch.stamps):<40} {counted} {batch.memory / 1e6:>6.0f} MB {duration(batch.total):>8}")
    print(
        "\nbatch: runs of one shape, which train side by side; runs: how many; epochs: that each has left; "
        "memory: of\nall its runs; alone: the time that it takes while no other batch trains\n"
    )


def _train(missing: Sequence[Stamp], settings: Settings, options: Options) -> bool:
    """Train into the store whatever is not there yet; whether all of it went well.

    What is in jobs already is waited for, whatever the engine is.
    """
    locks = {lock.lock_file: lock for lock in map(batch_lock, missing)}
    with contextlib.ExitStack() as held:
        for _, lock in sorted(locks.items()):  # in one order, so that two sweeps never wait for each other
            held.enter_context(lock)
        failed: list[Ended] = []
        jobs = read_jobs()
        if jobs and options.engine != "slurm":
            say(f"sweep: waits for {len(jobs)} jobs of an earlier sweep; --collect would not wait")
            engine = open_engine(Options("slurm", jobs[0].options), settings)
            failed += drive(engine, [], settings.keep_going)
        under_way = keys_in_jobs()
        todo = [stamp for stamp in missing if is_missing(stamp) and stamp.key() not in under_way]
        if todo or under_way:
            failed += drive(open_engine(options, settings), works_of(todo, settings), settings.keep_going)
    return not failed


def _look_at_jobs(missing: Sequence[Stamp], settings: Settings, options: Options, how: Jobs) -> int:
    """Take what jobs have finished and submit what they lost; with `detach` also what is in no job.

    How many runs failed, of which it is said why.
    """
    jobs = read_jobs()
    if how == "collect" and jobs:
        options = Options("slurm", jobs[0].options)
    if options.engine != "slurm":
        if how == "detach":
            raise InputError(f"--detach: jobs of the engine {options.engine} end with the sweep; use slurm")
        say("sweep: no jobs to collect from")
        return 0
    under_way = keys_in_jobs(jobs)
    todo = [stamp for stamp in missing if how == "detach" and stamp.key() not in under_way]
    engine = open_engine(options, settings)
    failed = drive(engine, works_of(todo, settings), keep_going=True, wait=False)
    return len({key for end in failed for key in end.work.keys if not waits(key)})


def _register(compute: Compute, stale: set[str], whole: bool = True) -> None:
    """Put waiting runs into their places and tell DVC, unless something has changed since they trained.

    `dvc commit` takes whatever lies in a place for the result of params.yaml, data and code as they are at
    that moment. So what each run was trained with is compared with them right before, and once more
    afterwards: what changed in between takes dvc.lock back. stale: the stages of which DVC does not know.
    whole: every run of the sweep has to be there; else those are registered that are, while others train.
    """
    source = PARAMS_FILE.read_bytes()
    asked = sweep_stamps(load_params(), compute)
    drop_damaged_waiting(asked)
    drop_damaged_places(asked)
    stamps = _present_runs(compute, whole)
    waiting = {name for name, stamp in stamps.items() if name in stale and claim(stamp)}
    with lock_kept():
        register(None if whole else waiting)
        if not waiting <= _present_runs(compute, whole).keys() or PARAMS_FILE.read_bytes() != source:
            raise InputError(
                f"{PARAMS_FILE}, data or code: changed while DVC registered runs; run ncpipe sweep again"
            )
    release(stamp for name, stamp in stamps.items() if whole or name in waiting)
    say(f"sweep: {len(waiting)} runs registered with DVC")


def _present_runs(compute: Compute, whole: bool) -> dict[str, Stamp]:
    """The sweep's runs that have a result, by DVC's names of their stages, as params.yaml, data and code of
    this moment ask for them. InputError if one has none, where the sweep is to be `whole`."""
    forget_code()
    params = load_params()
    found = {}
    for stamp in sweep_stamps(params, compute):
        if not is_missing(stamp):
            found[stage_name(stamp.run)] = stamp
        elif whole:
            raise InputError(
                f"{stamp.run.name}: params.yaml, its data or the code changed while runs trained, or it is "
                "damaged, so none is registered; run ncpipe sweep again (what is finished is kept)"
            )
    check_described(params)
    return found
