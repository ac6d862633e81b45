"""Train all missing runs through an engine, then run `dvc repro` (`ncpipe sweep`)."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Annotated

import typer

from ncpipe.commands.options import CheckpointSeconds, Device, Workers, announce
from ncpipe.config.params import Params, check_there, load_params
from ncpipe.config.run import Compute
from ncpipe.runs.dvc import dvc
from ncpipe.runs.engines.arrays import Array, read_arrays
from ncpipe.runs.engines.options import EngineName, Options, Settings, load_options
from ncpipe.runs.engines.slurm import dry_run as slurm_dry_run
from ncpipe.runs.engines.slurm import remove_finished, train_by_slurm
from ncpipe.runs.engines.slurm_commands import active_arrays
from ncpipe.runs.engines.slurm_commands import cancel as cancel_arrays
from ncpipe.runs.fingerprint import RunFingerprint, code_digest, fingerprint_of
from ncpipe.runs.store import import_runs, missing_of, needs_training, restore, sweep_fingerprints
from ncpipe.runs.study_check import check_metrics
from ncpipe.system.console import plural, say
from ncpipe.system.errors import InputError, shown, suggest
from ncpipe.system.text_table import aligned

UNKNOWN = "0" * 64  # stands for the checksum of data that are not prepared


def sweep(
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the runs that would train, and what Slurm would be given; train nothing.",
        ),
    ] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="After an error, train the other batches.")
    ] = False,
    device: Device = None,
    workers: Workers = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    engine: Annotated[
        EngineName | None,
        typer.Option(help="Where to train; overrides `engine` in engine.yaml (docs/clusters.md)."),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Submit jobs to Slurm and exit; the jobs continue.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel all jobs that were submitted from this folder.")
    ] = False,
) -> None:
    """Bring the pipeline up to date: train missing runs in parallel, then run `dvc repro`.

    Or print what that would train, or cancel its jobs. Missing runs train in batches into the store, from
    which `dvc repro` takes them. If a batch fails, the finished runs are kept. Jobs of an earlier sweep are
    waited for.
    """
    if dry_run + detach + cancel > 1:
        raise InputError("sweep: give one of --dry-run, --detach and --cancel")
    if cancel:
        cancel_jobs()
        return
    options = load_options(engine)
    params = load_params()
    if dry_run:
        print_plan(params, params.compute_on(device), workers, options)
        return
    announce("sweep")
    if detach and options.engine != "slurm":
        raise InputError(f"--detach: the engine {options.engine} ends with the sweep; use --engine slurm")
    for spec in params.experiments.values():
        code_digest(spec, params.study)  # of study.py as it was loaded, however long the data take
    check_metrics(params)
    check_rules(options, params)
    dvc("repro", "code", "grid", "fetch", quiet=True)
    fingerprints = sweep_fingerprints(load_params(), params.compute_on(device))
    keys = {fingerprint.key() for fingerprint in fingerprints}
    remove_finished(keys)
    if others := [array for array in read_arrays() if keys.isdisjoint(array.keys)]:
        count = plural(len(others), "array")
        say(f"sweep: {count} of other code, data or parameters go on (ncpipe sweep --cancel ends all jobs)")
    import_runs()
    missing = restore(missing_of(fingerprints))
    say(f"sweep: {len(fingerprints) - len(missing)} of {len(fingerprints)} runs are trained")
    if missing:
        if options.engine != "slurm" and _arrays_of(missing, active_arrays()):
            say("sweep: jobs of an earlier sweep train these runs, so it goes on by Slurm")
            options = Options("slurm", options.slurm)
        settings = Settings(
            params.compute_on(device), workers, checkpoint_seconds, keep_going, len(fingerprints)
        )
        from ncpipe.training.device import release_memory

        try:
            failures = _train(missing, settings, options, detach)
        finally:
            release_memory()  # the stages of dvc repro have processes of their own
        if failures:
            failed = f"sweep: {plural(len(failures), 'run')} failed, see above; the others are kept"
            if options.engine == "slurm":
                raise InputError(f"{failed}; dvc repro would train the failed ones on this machine")
            say(f"{failed}; running dvc repro for these")
            try:
                dvc("repro", "--keep-going")
            except InputError:
                raise InputError(failed) from None
            return
        if detach:
            return
    dvc("repro")


def _train(
    missing: Sequence[RunFingerprint], settings: Settings, options: Options, detach: bool
) -> Collection[str]:
    """Train into the store; return the fingerprints of the runs that failed."""
    if options.engine == "slurm":
        return train_by_slurm(missing, options.slurm, settings, not detach)
    from ncpipe.runs.fill import fill

    return fill(missing, settings)


def check_rules(options: Options, params: Params) -> None:
    """Raise InputError for a rule of engine.yaml with an unknown experiment."""
    for index, rule in enumerate(options.slurm.rules):
        for name in rule.experiments:
            if name not in params.experiments:
                hint = suggest(name, params.experiments)
                raise InputError(f"engine.yaml: slurm.rules[{index}].experiments: {shown(name)}: {hint}")


def cancel_jobs() -> None:
    """Cancel all jobs of this folder and keep finished runs. Raises InputError if any may still run."""
    if not (arrays := read_arrays()):
        check_there()
    cancelled, still_running = cancel_arrays(arrays)
    say(f"sweep: cancelled {plural(cancelled, 'array')}; finished runs and checkpoints are kept")
    if still_running:
        raise InputError(still_running)


def print_plan(params: Params, compute: Compute, workers: int | None, options: Options) -> None:
    """Print what `sweep` would train, and where; change nothing.

    Runs whose data are not prepared count as missing.
    """
    check_rules(options, params)
    prepared = sweep_fingerprints(params, compute)
    runs = {fingerprint.run for fingerprint in prepared}
    unprepared = [fingerprint_of(run, UNKNOWN, compute) for run in params.grid() if run not in runs]
    missing = [fingerprint for fingerprint in prepared if needs_training(fingerprint)]
    problems: list[str] = []
    if arrays := _arrays_of(missing, read_arrays()):
        print(f"{plural(len(arrays), 'array')} of an earlier sweep still in the queue or running")
        queued = {key for array in arrays for key in array.keys}
        missing = [fingerprint for fingerprint in missing if fingerprint.key() not in queued]
    if todo := [*missing, *unprepared]:
        settings = Settings(compute, workers, 0.0, True, len(todo))
        lines, problems = (
            slurm_dry_run(todo, options.slurm, settings) if options.engine == "slurm" else ([], [])
        )
        counts = Counter((fingerprint.run.experiment, str(fingerprint.run.depth)) for fingerprint in todo)
        rows = [[*names, str(count)] for names, count in counts.items()]
        table = aligned([["experiment", "L", "runs"], *rows], (1, 2))
        print(*table, "", *lines, f"{plural(len(todo), 'run')} to train", sep="\n")
    else:
        print("nothing to train")
    if unprepared:
        names = ", ".join(dict.fromkeys(fingerprint.run.experiment for fingerprint in unprepared))
        print(
            f"up to {plural(len(unprepared), 'run')} of {names}: their data are not prepared, so the store "
            "may have some of them; dvc repro fetch prepares the data"
        )
    if problems:
        raise InputError("\n".join(problems))


def _arrays_of(fingerprints: Sequence[RunFingerprint], arrays: Sequence[Array]) -> list[Array]:
    """Return the arrays with any of these runs."""
    keys = {fingerprint.key() for fingerprint in fingerprints}
    return [array for array in arrays if not keys.isdisjoint(array.keys)]
