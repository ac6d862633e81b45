"""Train runs by a job array of Slurm, whose jobs pull batches from the store: the engine `slurm`.

The nodes must share the sweep's folder and the environment with ncpipe. Jobs go on without the driver. One
that reaches its time limit, or is preempted, saves checkpoints and queues again. `slurm_job` runs in a job.
"""

import contextlib
import secrets
import shlex
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from ncpipe.config.run import Compute
from ncpipe.runs.engines.arrays import JOB_LOGS, Array, read_arrays
from ncpipe.runs.engines.options import Settings, Slurm
from ncpipe.runs.engines.slurm_commands import (
    NotInstalled,
    States,
    array_states,
    batch_script,
    cancel,
    check_submission,
    has_ended,
    submission,
    submit,
    summary,
)
from ncpipe.runs.fingerprint import RunFingerprint
from ncpipe.runs.run_claims import claimed_keys
from ncpipe.runs.store import epochs_of, has, lacking
from ncpipe.runs.training_log import failure_log
from ncpipe.system.console import plural, say
from ncpipe.system.errors import InputError

ARRAY = "ARRAY"  # stands in a dry run for the name that an array gets
POLL = 5.0  # seconds between two queries of the queue
DISK_DELAY = 10.0  # seconds until a shared disk shows here what a job has written
MOST_LOSSES = 3  # arrays in a row that may end without progress


def train_by_slurm(
    fingerprints: Sequence[RunFingerprint], options: Slurm, settings: Settings, wait: bool = True
) -> set[str]:
    """Submit the runs that are in no array; return the fingerprints of those that failed.

    Arrays of other code, data or parameters go on; they are not waited for. An array that ended without some
    of its runs, not by their own mistakes, is followed by another one, up to three times without progress.
    Without `wait`, the arrays are left to themselves.
    """
    failed: set[str] = set()
    losses: dict[str, int] = {}  # arrays in a row that ended without a run and without progress
    reported = ""
    while left := lacking(fingerprints, failed):
        keys = {fingerprint.key() for fingerprint in left}
        arrays = [array for array in read_arrays() if not keys.isdisjoint(array.keys)]
        active, states = set[str](), array_states(arrays)
        for array in arrays:
            if has_ended(array, states):
                time.sleep(DISK_DELAY)
                failed |= _collect(array, states, fingerprints, losses)
                if failed and not settings.keep_going:
                    raise InputError("sweep: runs failed, see above; finished runs are kept")
            else:
                active |= {*array.keys}
        assigned = active | failed | claimed_keys()
        if todo := lacking(left, assigned):
            submissions = by_options(todo, options)
            for resources, _ in submissions:
                check_resources(settings.compute, resources)
                check_submission(resources)
            for resources, group in submissions:
                most = max(losses.get(fingerprint.key(), 0) for fingerprint in group)
                _submit(resources, group, settings, most)
        if not wait:
            if others := len(keys & assigned - active - failed):
                say(f"sweep: left {plural(others, 'run')} to another process that trains them")
            break
        if active and (line := summary(states)) != reported:
            say(f"sweep: {line}")
            reported = line
        time.sleep(POLL)
    else:
        remove_finished({fingerprint.key() for fingerprint in fingerprints})
    return failed


def remove_finished(keys: Collection[str]) -> None:
    """Remove arrays without a run left to train, and those that ended without any of these runs."""
    done, others = list[Array](), list[Array]()
    for array in read_arrays():
        if all(has(key) for key in array.keys):
            done.append(array)
        elif {*keys}.isdisjoint(array.keys):
            others.append(array)
    with contextlib.suppress(InputError):  # Slurm does not answer
        states = array_states(others)
        cancel([*done, *(array for array in others if has_ended(array, states))])


def _collect(
    array: Array, states: States, fingerprints: Sequence[RunFingerprint], losses: dict[str, int]
) -> set[str]:
    """Remove the record of an array that has ended, and say how if it lacks runs; return those that failed.

    Runs fail by their own mistake, or when too many arrays in a row made no progress.
    """
    keys = set(array.keys)
    in_array = [fingerprint for fingerprint in fingerprints if fingerprint.key() in keys]
    lacks = lacking(in_array)
    logs = {fingerprint.key(): failure_log(fingerprint.run) for fingerprint in lacks}
    mistakes = {key: log for key, log in logs.items() if log.is_file()}
    lines = (log.read_text(encoding="utf-8").partition("\n")[0] for log in mistakes.values())
    for line in dict.fromkeys(line.partition(": ")[2] for line in lines):
        say(f"ncpipe: {line}")
    failed = set(mistakes)
    if lost := [fingerprint for fingerprint in lacks if fingerprint.key() not in mistakes]:
        ends = ", ".join(sorted({state for state, _ in states[array.id].values()}))
        runs = f"{plural(len(lost), 'run')}, as {lost[0].run.name}"
        say(f"sweep: array {array.id} ended without {runs} ({ends}); see {JOB_LOGS}/{array.id}_*.log")
        count = 0 if epochs_of(in_array) > array.epochs else array.losses + 1
        losses |= {fingerprint.key(): count for fingerprint in lost}
        if count >= MOST_LOSSES:
            failed |= {fingerprint.key() for fingerprint in lost}
    array.remove()
    return failed


def _submit(options: Slurm, fingerprints: Sequence[RunFingerprint], settings: Settings, losses: int) -> None:
    """Submit an array. Its batches are smaller the more arrays were lost, perhaps for want of memory."""
    workers = workers_of(settings, options)
    keys = tuple(fingerprint.key() for fingerprint in fingerprints)
    array = Array(
        secrets.token_hex(6), job_count(len(keys), workers, options), keys, settings.compute.device, workers,
        settings.checkpoint_seconds, epochs_of(fingerprints), losses, cluster=options.cluster,
    )  # fmt: skip
    for fingerprint in fingerprints:
        failure_log(fingerprint.run).unlink(missing_ok=True)
    try:
        array.prepare()
        number, cluster = submit(array.name, array.jobs, options)
        array = replace(array, number=number, cluster=cluster or array.cluster)
    except (InputError, OSError):
        array.remove()
        raise
    array.write()
    say(f"sweep: submitted {plural(len(keys), 'run')} in {plural(array.jobs, 'job')} of array {array.id}")


def workers_of(settings: Settings, options: Slurm) -> int | None:
    """Return how many batches a job trains at a time; None lets a GPU's job decide."""
    if settings.workers is not None or options.uses_gpu:
        return settings.workers
    return max(1, options.cpus // settings.compute.threads)


def job_count(runs: int, workers: int | None, options: Slurm) -> int:
    """Return how many jobs an array has, so that none is without a run for each of its workers."""
    return min(options.array, -(-runs // (workers or 1)))


def by_options(
    fingerprints: Sequence[RunFingerprint], options: Slurm
) -> list[tuple[Slurm, list[RunFingerprint]]]:
    """Group runs by the options of their jobs, rules applied."""
    groups: dict[Slurm, list[RunFingerprint]] = {}
    for fingerprint in fingerprints:
        run = fingerprint.run
        groups.setdefault(options.for_run(run.experiment, run.depth), []).append(fingerprint)
    return list(groups.items())


def dry_run(
    fingerprints: Sequence[RunFingerprint], options: Slurm, settings: Settings
) -> tuple[list[str], list[str]]:
    """Return what `train_by_slurm` would submit, and what Slurm says against it.

    Raises InputError if the jobs' resources do not suit the runs.
    """
    lines, not_checked, problems = list[str](), list[str](), list[str]()
    for resources, group in by_options(fingerprints, options):
        check_resources(settings.compute, resources)
        try:
            check_submission(resources)
        except NotInstalled as error:
            not_checked = [f"not checked: {error}"]
        except InputError as error:  # a refusal, or no answer
            problems.append(str(error))
        jobs = job_count(len(group), workers_of(settings, resources), resources)
        lines += [
            f"Slurm: {plural(len(group), 'run')} in an array of {plural(jobs, 'job')}, submitted by",
            shlex.join(submission(ARRAY, jobs, resources)),
        ]
    lines.append(f"batch script, where {ARRAY} stands for a new name:\n{batch_script(ARRAY, options)}")
    return [*lines, *not_checked], list(dict.fromkeys(problems))


def check_resources(compute: Compute, options: Slurm) -> None:
    """Raise InputError if the jobs' resources do not suit how runs are computed."""
    if compute.device == "cuda" and not options.uses_gpu:
        raise InputError("slurm.gpus: 0, but compute.device is cuda; make it 1, or the device cpu")
    if compute.device == "cpu" and options.gpus:
        raise InputError("slurm.gpus: 1, but compute.device is cpu, so the GPU would be idle; make it 0")
    if not options.uses_gpu and options.cpus < compute.threads:
        raise InputError(
            f"slurm.cpus: {options.cpus}, but compute.threads is {compute.threads}; make them equal"
        )
