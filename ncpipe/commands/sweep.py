"""Train all missing runs through an engine, then run `dvc repro` (`ncpipe sweep`).

`ncpipe.runs.fill` trains; `ncpipe.commands.stale` finds what `--dry-run` prints.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import torch

from ncpipe.commands.grid import check_metrics
from ncpipe.commands.stale import Stale
from ncpipe.config.params import Params, check_there, load_params
from ncpipe.config.records import suggest
from ncpipe.config.specs import Device
from ncpipe.config.study import study_errors
from ncpipe.runs.batches import groups, worker_count
from ncpipe.runs.dvc import dvc
from ncpipe.runs.engines.choice import dry_run, open_engine, tasks_of
from ncpipe.runs.engines.engine import run_tasks
from ncpipe.runs.engines.jobs import keys_in_jobs, read_jobs
from ncpipe.runs.engines.options import LOCAL, Options, Settings
from ncpipe.runs.engines.slurm_commands import cancel
from ncpipe.runs.engines.task import TaskResult
from ncpipe.runs.fill import fill
from ncpipe.runs.fingerprint import RunFingerprint, code_digest
from ncpipe.runs.plan import Planned, headline, plan, seconds_of
from ncpipe.runs.store import checkpoint_of, has, import_runs, missing_of, sweep_fingerprints
from ncpipe.system.console import duration, plural, say
from ncpipe.system.errors import InputError, shown
from ncpipe.training.checkpoints import epochs_done
from ncpipe.training.device import prepare_device, release_memory

Jobs = Literal["wait", "detach", "collect"]
UNKNOWN = f"{'?':>9} {'?':>8}"  # memory and time


def sweep(
    device: Device | None,
    workers: int | None,
    checkpoint_seconds: float,
    keep_going: bool,
    options: Options = LOCAL,
    jobs: Jobs = "wait",
) -> None:
    """Bring the pipeline up to date: train all missing runs in parallel, then run `dvc repro`.

    Missing runs train in batches into the store, from which `dvc repro` takes them. If a batch fails, the
    finished runs are kept.

    Args:
        keep_going: whether to train the other batches after an error, and let DVC run all stages that it can.
        options: where the batches train.
        jobs: with an engine whose jobs outlive this command: wait for them, detach, or collect the runs that
            they have finished and submit lost runs again.
    """
    params = load_params()
    for spec in params.experiments.values():
        code_digest(spec)  # of study.py as it was loaded, however long the data take
    check_metrics(params)
    check_rules(options, params)
    dvc("repro", "code", "grid", "fetch", capture=True)
    fingerprints = sweep_fingerprints(load_params(), params.compute_on(device))
    keys = frozenset(fingerprint.key() for fingerprint in fingerprints)
    if others := [job for job in read_jobs() if job.keys.isdisjoint(keys)]:
        count = plural(len(others), "job")
        say(f"sweep: {count} of other code, data or parameters go on (ncpipe sweep --cancel ends all jobs)")
    import_runs()
    missing = missing_of(fingerprints)
    say(f"sweep: {len(fingerprints) - len(missing)} of {len(fingerprints)} runs are trained")
    settings = Settings(
        params.compute_on(device), workers, checkpoint_seconds, keep_going, len(fingerprints), keys=keys
    )
    if jobs != "wait":
        failed = _handle_jobs(missing, settings, options, jobs)
        left = missing_of(missing)
        if jobs == "collect" and left:
            say(f"sweep: {plural(len(left), 'run')} not finished yet")
        if failed:
            raise InputError(
                f"sweep: {plural(failed, 'run')} failed, see above and data/logs; others are kept"
            )
        if jobs == "detach" or left:
            return
    elif missing:
        try:
            failures = _train(missing, settings, options)
        finally:
            release_memory()  # the stages of dvc repro have processes of their own
        if failures:
            say("sweep: some runs failed, see above; running dvc repro for the others")
            dvc("repro", "--keep-going")
            raise InputError("sweep: some runs failed, see above; the others are kept")
    dvc("repro")


def check_rules(options: Options, params: Params) -> None:
    """Raise InputError for a rule of engine.yaml with an unknown experiment."""
    for index, rule in enumerate(options.slurm.rules):
        for name in rule.experiments:
            if name not in params.experiments:
                known = suggest(name, params.experiments)
                raise InputError(f"engine.yaml: slurm.rules[{index}].experiments: {shown(name)}: {known}")


def cancel_jobs() -> None:
    """Cancel all jobs of this folder and keep finished runs. Raises InputError if any may still run."""
    if not (jobs := read_jobs()):
        check_there()
    cancelled, still_running = cancel(jobs)
    say(f"sweep: cancelled {plural(cancelled, 'job')}; finished runs and checkpoints are kept")
    if still_running:
        raise InputError(still_running)


def print_plan(stale: Stale, workers: int | None, options: Options = LOCAL) -> None:
    """Print what `sweep` would train, where, and how long that takes; change nothing.

    Runs whose data are not prepared count as missing.
    """
    compute, unprepared = stale.compute, stale.unprepared
    check_rules(options, stale.params)
    missing, in_jobs = stale.missing, keys_in_jobs()
    if jobs := {in_jobs[fingerprint.key()].id for fingerprint in missing if fingerprint.key() in in_jobs}:
        print(f"{plural(len(jobs), 'job')} of an earlier sweep still in the queue or running")
    missing = [fingerprint for fingerprint in missing if fingerprint.key() not in in_jobs]
    todo = [*missing, *unprepared]
    if todo and options.engine != "local":
        _print_dry_run(todo, Settings(compute, workers, 0.0, True, len(todo)), options)
    else:
        device = prepare_device(compute)
        count = worker_count(compute, device, workers)
        planned, _ = plan(missing, device, count, keep_going=True)
        timed = list(_timed(planned, device))
        if todo:
            _print_batches(timed, groups(unprepared))
        if timed:
            seconds = [each for _, each in timed]
            shared = max(*seconds, sum(seconds) / count)
            said = headline([batch for batch, _ in timed], count, str(device))
            print(said if math.isnan(sum(seconds)) else f"{said}: about {duration(shared)}")
        elif not unprepared:
            print("nothing to train")
    if unprepared:
        names = ", ".join(dict.fromkeys(fingerprint.run.experiment for fingerprint in unprepared))
        print(
            f"up to {plural(len(unprepared), 'run')} of {names} to train: their data are not prepared, so "
            "their time is unknown\nand the store may have some of them; dvc repro fetch prepares the data"
        )
    if not (stale.stages or stale.edited):
        print("all other stages are up to date")
        return
    print("other stages (features, metrics, tables, figures) are to run")


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


def _timed(planned: Sequence[Planned], device: torch.device) -> Iterator[tuple[Planned, float]]:
    """Yield each batch with the seconds that it takes; say why a batch cannot train."""
    for batch in planned:
        try:
            with study_errors():
                seconds = seconds_of(batch, device)
        except InputError as error:
            say(f"ncpipe: {error}")
        else:
            yield batch, seconds


def _print_batches(
    timed: Sequence[tuple[Planned, float]], unknown: Sequence[Sequence[RunFingerprint]]
) -> None:
    """Print a line for each batch, and for each shape whose data are not prepared, with `?`."""
    print(f"{'batch':<40} {'runs':>5} {'epochs':>7} {'memory':>9} {'time':>8}")
    for batch, seconds in timed:
        counts = f"{len(batch.fingerprints):>5} {batch.epochs:>7}"
        known = not math.isnan(seconds)
        cost = f"{batch.memory / 1e6:>6.0f} MB {duration(seconds):>8}" if known else UNKNOWN
        print(f"{_name(batch.fingerprints):<40} {counts} {cost}")
    for group in unknown:
        epochs = group[0].run.spec.epochs
        print(f"{_name(group):<40} {len(group):>5} {epochs:>7} {UNKNOWN}")
    print(
        "\nbatch: networks of equal shape, which train together; runs: their number; epochs: left to train;\n"
        "memory: of all runs of the batch; time: if no other batch trains at the same time\n"
    )


def _train(missing: Sequence[RunFingerprint], settings: Settings, options: Options) -> int:
    """Train into the store; return how many runs failed. Waits for runs in jobs of an earlier sweep."""
    failed: set[str] = set()
    jobs = [job for job in read_jobs() if settings.keys is None or not job.keys.isdisjoint(settings.keys)]
    if jobs and options.engine != "slurm":
        say(f"sweep: waiting for {plural(len(jobs), 'job')} of an earlier sweep (--collect does not wait)")
        engine = open_engine(Options("slurm", options.slurm), replace(settings, keep_options=True))
        failed = _failed(run_tasks(engine, [], settings.keep_going))
    return len(failed | fill(missing, settings, options))


def _handle_jobs(missing: Sequence[RunFingerprint], settings: Settings, options: Options, how: Jobs) -> int:
    """Collect finished runs from jobs and submit lost runs again; with `detach` also runs without a job.

    With `collect`, lost runs keep the options of their job. Returns the number of failed runs, after printing
    the reasons.
    """
    jobs = read_jobs()
    if how == "collect" and jobs:
        options, settings = Options("slurm", options.slurm), replace(settings, keep_options=True)
    if options.engine != "slurm":
        if how == "detach":
            raise InputError(f"--detach: the engine {options.engine} ends with the sweep; use --engine slurm")
        say("sweep: no jobs to collect")
        return 0
    settings = replace(settings, keep_going=True)
    failed = _failed(run_tasks(open_engine(options, settings), [], keep_going=True, wait=False))
    if how == "detach":
        failed |= fill(missing, settings, options, wait=False)
    return len(failed)


def _failed(results: Sequence[TaskResult]) -> set[str]:
    return {key for result in results for key in result.task.keys if not has(key)}
