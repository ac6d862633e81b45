"""`ncpipe sweep`: train what the sweep lacks by an engine, then run plain `dvc repro`."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import psutil

from ncpipe.commands.grid import check_metrics
from ncpipe.commands.repair import mend_quickly, mend_torn_lock
from ncpipe.commands.stale import Stale
from ncpipe.config.params import Params, load_params
from ncpipe.config.records import suggest
from ncpipe.config.specs import Device
from ncpipe.datasets.stored import FACTS
from ncpipe.runs.batches import groups, worker_count
from ncpipe.runs.dvc import dvc
from ncpipe.runs.engines.choice import dry_run, open_engine, tasks_of
from ncpipe.runs.engines.engine import run_tasks
from ncpipe.runs.engines.job_log import cost_lines, read_costs
from ncpipe.runs.engines.jobs import keys_in_jobs, read_jobs
from ncpipe.runs.engines.options import LOCAL, Options, Settings
from ncpipe.runs.engines.slurm_commands import cancel, still_running
from ncpipe.runs.engines.task import TaskResult
from ncpipe.runs.fill import fill
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.plan import Planned, headline, plan_all, rest_seconds, train_seconds
from ncpipe.runs.store import checkpoint_of, has, import_runs, missing_of, sweep_fingerprints
from ncpipe.system.artifacts import PREPARED
from ncpipe.system.console import duration, plural, say
from ncpipe.system.errors import InputError, shown
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
    """Bring the whole pipeline up to date, training all that is missing side by side.

    Runs that neither the store nor data/runs has are trained in batches into the store; `dvc repro` takes
    them from there and does the rest. If a batch fails the others are kept; with keep_going they train to
    their end, and DVC goes as far as it gets. options: where the batches train. jobs: with an engine whose
    jobs outlive this command, whether it waits for them, detaches itself from them, or collects what they
    have finished by now and submits what was lost.
    """
    params = load_params()
    check_metrics(params)
    check_rules(options, params)
    _prepare()
    fingerprints = sweep_fingerprints(load_params(), params.compute_on(device))
    costs_before = len(read_costs())
    _cancel_others({fingerprint.key() for fingerprint in fingerprints})
    import_runs()
    missing = missing_of(fingerprints)
    say(f"sweep: {len(fingerprints) - len(missing)} of {len(fingerprints)} runs are trained")
    settings = Settings(params.compute_on(device), workers, checkpoint_seconds, keep_going, len(fingerprints))
    if jobs != "wait":
        failed = _look_at_jobs(missing, settings, options, jobs)
        _print_costs(costs_before)
        left = missing_of(missing)
        if jobs == "collect" and left:
            say(f"sweep: {len(left)} runs to come")
        if failed:
            raise InputError(f"{failed} runs failed, see above and data/logs; the others are kept")
        if jobs == "detach" or left:
            return
    elif missing:
        try:
            failures = _train(missing, settings, options)
        finally:
            _print_costs(costs_before)
        if failures:
            say("sweep: some runs failed, see above; dvc takes the others from the store")
            dvc("repro", "--keep-going")
            raise InputError("some runs failed, see above; the others are kept")
    dvc("repro")


def check_rules(options: Options, params: Params) -> None:
    """Raise InputError for a rule of engine.yaml that names no experiment."""
    for index, rule in enumerate(options.slurm.rules):
        for name in rule.experiments:
            if name not in params.experiments:
                known = suggest(name, params.experiments)
                raise InputError(f"engine.yaml: slurm.rules[{index}].experiments: {shown(name)}: {known}")


def cancel_jobs() -> None:
    """End all jobs of this folder; what they have finished is kept. InputError if some may still run."""
    jobs = read_jobs()
    left, why = cancel(jobs)
    say(f"sweep: {len(jobs) - len(left)} jobs cancelled; what they have finished or saved is kept")
    if left:
        raise InputError(still_running(left, why))


def _cancel_others(keys: set[str]) -> None:
    """Cancel jobs none of whose runs is asked for now."""
    others = [job for job in read_jobs() if not job.keys & keys]
    if not others:
        return
    left, why = cancel(others)
    say(
        f"sweep: {len(others) - len(left)} jobs cancelled, whose runs params.yaml, data or code no longer "
        "ask for"
    )
    if left:
        say(f"sweep: {still_running(left, why)}")


def _print_costs(before: int) -> None:
    """Print what the jobs cost that were collected since the log had so many rows."""
    if costs := [cost for cost in read_costs()[before:] if cost.engine != "local"]:
        say("\n".join(cost_lines(costs)))


def _prepare() -> None:
    """Bring code, grid and data up to date, and before that what a kill has left of DVC's files."""
    mend_quickly()
    try:
        dvc("repro", "code", "grid", "fetch", capture=True)
    except InputError:
        if not mend_torn_lock():
            raise
        dvc("repro", "code", "grid", "fetch", capture=True)


def print_plan(stale: Stale, workers: int | None, options: Options = LOCAL) -> None:
    """Print what `sweep` would do now: batches, their memory and time, the time of the rest. Changes nothing.

    With an engine other than the local one: in which tasks it would train what, and where. Runs whose data
    are not prepared count as missing; what only the data tell is left open.
    """
    start = time.time() - psutil.Process().create_time() - stale.seconds  # what a stage begins with
    params, compute, unprepared = stale.params, stale.compute, stale.unprepared
    check_rules(options, params)
    missing, under_way = stale.missing, keys_in_jobs()
    if jobs := {under_way[fingerprint.key()].id for fingerprint in missing if fingerprint.key() in under_way}:
        print(f"{plural(len(jobs), 'job')} of an earlier sweep still in the queue or running")
    missing = [fingerprint for fingerprint in missing if fingerprint.key() not in under_way]
    planned: list[Planned] = []
    todo = [*missing, *unprepared]
    if todo and options.engine != "local":
        _print_dry_run(todo, Settings(compute, workers, 0.0, True, len(todo)), options)
    else:
        place = prepare_device(compute)
        count = worker_count(compute, place, workers)
        planned, _ = plan_all(missing, place, count, keep_going=True)
        if todo:
            _print_batches(planned, groups(unprepared))
        if planned or not unprepared:
            print(headline(planned, count, str(place)))
    if unprepared:
        names = ", ".join(dict.fromkeys(fingerprint.run.experiment for fingerprint in unprepared))
        print(
            f"{len(unprepared)} runs to train at most of {names}: their data are not prepared, so it is not "
            "known\nwhether the store has some and what they take; dvc repro fetch prepares them"
        )
    if not (stale.stages or stale.edited):
        print("the rest is up to date")
        return
    changed = {fingerprint.run.experiment for fingerprint in (*stale.missing, *unprepared)}
    changed |= {name.partition("@")[2] for name in stale.stages if name.startswith(("extract@", "measure@"))}
    changed |= {own for stage, own in stale.edited if own and stage in ("extract", "measure")}
    remade = {name: params.runs_of(name) for name in changed}
    remade = {
        name: runs
        for name, runs in remade.items()
        if all((PREPARED / run.data / FACTS).is_file() for run in runs)
    }
    if todo and options.engine != "local":
        try:
            place = prepare_device(compute)
        except InputError as error:
            print(f"the rest, which runs here: {error}")
            return
    rest = rest_seconds(remade, len(params.sweep.experiments), place, start, stale.seconds)
    print(f"the rest (DVC, features, metrics, tables, figures): about {duration(rest)}")
    if (options.engine == "local" or not todo) and not unprepared:
        print(f"in all about {duration(train_seconds(planned, count) + rest)}")


def _print_dry_run(missing: Sequence[RunFingerprint], settings: Settings, options: Options) -> None:
    """Print in how many jobs the engine would train the runs of each shape."""
    planned = dry_run(tasks_of(missing, settings), options, settings.compute)
    print(f"{'shape':<40} {'runs':>5} {'epochs':>7} {'jobs':>8}")
    for group in groups(missing):
        run, keys = group[0].run, {fingerprint.key() for fingerprint in group}
        jobs = sum(any(not keys.isdisjoint(task.keys) for task in job) for job in planned.jobs)
        left = run.spec.epochs - epochs_done(checkpoint_of(group[0]))
        print(f"{_name(group):<40} {len(group):>5} {left:>7} {jobs:>8}")
    print(
        "\nshape: networks of equal shape, which train in the same batches; runs: their number; epochs: left "
        "to train;\njobs: those that share the runs\n"
    )
    print("\n".join(planned.lines))


def _name(batch: Sequence[RunFingerprint]) -> str:
    run = batch[0].run
    others = len({fingerprint.run.experiment for fingerprint in batch}) - 1
    return f"{run.experiment}{f' and {others} more' if others else ''} L={run.depth}"


def _print_batches(planned: Sequence[Planned], unknown: Sequence[Sequence[RunFingerprint]]) -> None:
    """Print a line for each batch, and one for each shape of which nothing is known before its data are."""
    print(f"{'batch':<40} {'runs':>5} {'epochs':>7} {'memory':>9} {'alone':>8}")
    for batch in planned:
        counted = f"{len(batch.fingerprints):>5} {batch.epochs:>7}"
        print(
            f"{_name(batch.fingerprints):<40} {counted} {batch.memory / 1e6:>6.0f} MB "
            f"{duration(batch.total):>8}"
        )
    for group in unknown:
        epochs = group[0].run.spec.epochs
        print(f"{_name(group):<40} {len(group):>5} {epochs:>7} {'?':>9} {'?':>8}")
    print(
        "\nbatch: runs of one shape, which train side by side; runs: how many; epochs: that each has left; "
        "memory: of\nall its runs; alone: the time that it takes while no other batch trains\n"
    )


def _train(missing: Sequence[RunFingerprint], settings: Settings, options: Options) -> list[TaskResult]:
    """Train into the store and return what failed. Runs that are in jobs already are waited for."""
    failed: list[TaskResult] = []
    jobs = read_jobs()
    if jobs and options.engine != "slurm":
        say(f"sweep: waits for {len(jobs)} jobs of an earlier sweep; --collect would not wait")
        engine = open_engine(Options("slurm", options.slurm), replace(settings, keep_options=True))
        failed += run_tasks(engine, [], settings.keep_going)
    return failed + fill(missing, settings, options)


def _look_at_jobs(missing: Sequence[RunFingerprint], settings: Settings, options: Options, how: Jobs) -> int:
    """Take what jobs have finished and submit what they lost; with `detach` also what is in no job.

    `collect` keeps the options that each job had. Returns how many runs failed, whose reasons are printed.
    """
    jobs = read_jobs()
    if how == "collect" and jobs:
        options, settings = Options("slurm", options.slurm), replace(settings, keep_options=True)
    if options.engine != "slurm":
        if how == "detach":
            raise InputError(f"--detach: jobs of the engine {options.engine} end with the sweep; use slurm")
        say("sweep: no jobs to collect from")
        return 0
    under_way = keys_in_jobs(jobs)
    todo = [fingerprint for fingerprint in missing if how == "detach" and fingerprint.key() not in under_way]
    engine = open_engine(options, settings)
    failed = run_tasks(engine, tasks_of(todo, settings), keep_going=True, wait=False)
    return len({key for result in failed for key in result.task.keys if not has(key)})
