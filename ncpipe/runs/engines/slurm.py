"""Train tasks in job arrays of Slurm, which continue without the driver: the engine `slurm`.

The nodes must share the sweep's folder and the environment that has ncpipe. A job trains its tasks one after
the other and puts finished runs into the store. Before its time limit, and when it is preempted, it saves
checkpoints and queues again. `ncpipe.runs.engines.slurm_worker` is what runs in a job.
"""

import contextlib
import json
import math
import shlex
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncpipe.runs.engines.engine import Engine
from ncpipe.runs.engines.job_log import describe_log
from ncpipe.runs.engines.jobs import (
    LOG,
    REFUSED,
    RESULT,
    Job,
    prepare_workdir,
    read_jobs,
    remove_array,
    write_array,
    write_number,
)
from ncpipe.runs.engines.options import Slurm
from ncpipe.runs.engines.slurm_commands import (
    JobState,
    NotInstalled,
    job_states,
    last_line,
    summary,
)
from ncpipe.runs.engines.slurm_script import batch_script, check_submission, submission, submit
from ncpipe.runs.engines.task import DryRun, State, Task, TaskResult
from ncpipe.system.artifacts import JOBS
from ncpipe.system.console import plural, say
from ncpipe.system.errors import InputError

ARRAY = "ARRAY"  # stands in a dry run for the name that an array gets
POLL = 5.0  # seconds between two queries of the queue
DISK_DELAY = 10.0  # seconds until a shared disk shows here what a job has written
LOG_LINES = 15  # of the log of a job that failed
# The states of Slurm that a retry treats differently from a lost task.
TASK_STATES: Mapping[str, State] = {"OUT_OF_MEMORY": "memory", "PREEMPTED": "preempted"}
REASONS = {
    "BOOT_FAIL": "its node did not start",
    "CANCELLED": "it was cancelled",
    "GONE": "Slurm no longer knows how it ended",
    "NODE_FAIL": "its node failed",
    "OUT_OF_MEMORY": "it needed more memory than it had; make slurm.mem larger",
    "PREEMPTED": "it was preempted",
    "TIMEOUT": "it reached its time limit before it had saved",
}


class SlurmEngine(Engine):
    """Trains tasks in jobs, which continue when the driver ends; watches those of earlier drivers too.

    options: those of new jobs.
    keep_options: submit lost tasks again with the options of their job instead of these.
    keys: fingerprints of the sweep's runs. Jobs without any of them, of code, data or parameters before an
        edit, go on; they are not waited for, and what they lose is not submitted again.
    """

    def __init__(
        self, options: Slurm, keep_options: bool = False, keys: Collection[str] | None = None
    ) -> None:
        self.options, self.keep_options, self.keys = options, keep_options, keys
        self.jobs = {job.id: job for job in read_jobs()}
        self._earlier_options: dict[str, Slurm] = {}  # of jobs that have ended, by their runs' fingerprints

    def submit(self, tasks: Sequence[Task]) -> None:
        groups = self.by_options(tasks)
        for options, group in groups:
            check_resources(group[0].compute, options)
            check_submission(options)
        for options, group in groups:
            self._submit_array(options, group)

    def watch(self, wait: bool = True) -> Iterator[list[TaskResult]]:
        """See `Engine`. Prints how many jobs wait and run whenever that changes."""
        printed = ""
        while jobs := [job for job in self.jobs.values() if not wait or self._is_wanted(job)]:
            states, with_result = job_states(jobs), _with_result(jobs)  # in this order
            ended = [job for job in jobs if job.id in with_result or states[job.id].has_ended]
            ids = {job.id for job in ended}
            active = [job for job in jobs if job.id not in ids]
            if (line := summary(active, states)) != printed and active:
                say(f"sweep: {line}")
                printed = line
            if ids - with_result:
                time.sleep(DISK_DELAY)
            if ended:
                yield self._results(ended, states)
            if not wait:
                return
            if not ended:
                time.sleep(POLL)

    def _is_wanted(self, job: Job) -> bool:
        return self.keys is None or not job.keys.isdisjoint(self.keys)

    def _results(self, ended: Sequence[Job], states: Mapping[str, JobState]) -> list[TaskResult]:
        """Return the results of jobs that have ended; keep their logs and remove their records."""
        results: list[TaskResult] = []
        for job in ended:
            state, report = states[job.id].name, _worker_report(job)
            own = results_of(job, state, report)
            if self._is_wanted(job):
                results += own
            elif lost := sum(len(result.task.missing()) for result in own):
                say(
                    f"sweep: job {job.id} ended without {plural(lost, 'run')} of other code, data or "
                    "parameters, which are not submitted again"
                )
            name = "COMPLETED" if report and state not in TASK_STATES else state
            describe_log(job.collected_log, f"slurm {job.id} ({name})", job.keys)
        for job in ended:
            if self.keep_options:
                self._earlier_options |= dict.fromkeys(job.keys, job.options)
            job.remove()
            del self.jobs[job.id]
        return results

    def _options_of(self, key: str, run: Mapping[str, Any]) -> Slurm:
        return self._earlier_options.get(key) or self.options.for_run(run["experiment"], run["depth"])

    def by_options(self, tasks: Sequence[Task]) -> list[tuple[Slurm, list[Task]]]:
        """Group tasks by their jobs' options; split a task whose runs have different options."""
        groups: dict[Slurm, list[Task]] = {}
        for task in tasks:
            indices: dict[Slurm, list[int]] = {}
            for index, (key, run) in enumerate(zip(task.keys, task.runs, strict=True)):
                indices.setdefault(self._options_of(key, run), []).append(index)
            for options, same in indices.items():
                groups.setdefault(options, []).append(task.subset(same))
        return list(groups.items())

    def _submit_array(self, options: Slurm, tasks: Sequence[Task]) -> None:
        start = time.monotonic()
        with_cores = [_with_cores(task, options) for task in tasks]
        shares = [[task.submitted() for task in share] for share in distribute(with_cores, options.array)]
        wait_for = arrays_to_wait_for(list(self.jobs.values()), len(shares), options)
        jobs = write_array(shares, options)
        name = jobs[0].array
        try:
            prepare_workdir(name)
            number = submit(name, len(jobs), options, wait_for)
        except InputError:
            remove_array(name)
            raise
        self.jobs |= {job.id: job for job in write_number(jobs, number)}
        runs = plural(sum(len(task.runs) for task in tasks), "run")
        say(
            f"sweep: submitted {runs} in {plural(len(jobs), 'job')} of array {number}, "
            f"which took {time.monotonic() - start:.1f} s"
        )


def distribute(tasks: Sequence[Task], most: int) -> list[list[Task]]:
    """Distribute tasks over at most so many jobs, in even shares of the expected cost.

    With fewer tasks than jobs, tasks that were not submitted before are split. With more, each task, the
    most costly first, goes to the job with the lowest cost so far.
    """
    costs = [_cost(task) for task in tasks]
    total = sum(costs)
    parts = [
        part
        for task, cost in zip(tasks, costs, strict=True)
        for part in task.split(1 if task.epochs_before >= 0 else max(1, int(most * cost / total)))
    ]
    if len(parts) <= most:
        return [[part] for part in parts]
    jobs: list[list[Task]] = [[] for _ in range(most)]
    job_costs = [0.0] * most
    for part in sorted(parts, key=_cost, reverse=True):
        cheapest = job_costs.index(min(job_costs))
        jobs[cheapest].append(part)
        job_costs[cheapest] += _cost(part)
    return jobs


def dry_run(tasks: Sequence[Task], options: Slurm) -> DryRun:
    """Return what `submit` would do with these tasks. Raises InputError if Slurm would refuse the jobs."""
    engine = SlurmEngine(options)
    all_jobs: list[list[Task]] = []
    lines: list[str] = []
    not_checked = ""
    for own_options, group in engine.by_options(tasks):
        check_resources(group[0].compute, own_options)
        try:
            check_submission(own_options)
        except NotInstalled as error:
            not_checked = f"not checked: {error}"
        jobs = distribute(group, own_options.array)
        all_jobs += jobs
        runs = plural(sum(len(task.runs) for task in group), "run")
        lines += [
            f"Slurm: {runs} in an array of {plural(len(jobs), 'job')}, "
            f"{min(own_options.at_once, len(jobs))} at a time",
            f"each job: {_resources(own_options)}; {_time_limit(own_options)}",
            *_idle_cores(jobs, own_options),
            f"submitted by: {shlex.join(submission(ARRAY, len(jobs), own_options))}",
        ]
    lines.append("batch size, memory and time depend on the node's device")
    lines.append(f"batch script, where {ARRAY} stands for a new name:\n{batch_script(ARRAY, options)}")
    return DryRun(all_jobs, [*lines, *([not_checked] if not_checked else [])])


def _idle_cores(jobs: Sequence[Sequence[Task]], options: Slurm) -> list[str]:
    """Return a line if every job has more cores than its runs can use; a job on a GPU is left out."""
    if options.uses_gpu:
        return []
    tasks = [_with_cores(task, options) for job in jobs for task in job]
    threads = tasks[0].compute["threads"]
    busy = threads * max(min(len(task.runs), task.workers or 1) for task in tasks)
    if busy >= options.cpus:
        return []
    fewer = (
        f", or -o array={count} for more runs in a job" if (count := len(jobs) * busy // options.cpus) else ""
    )
    return [
        f"idle cores: a job has {options.cpus} and its runs use {busy} at most "
        f"({plural(threads, 'thread')} a run); give -o cpus={busy}{fewer}"
    ]


def _time_limit(options: Slurm) -> str:
    """Return the time limit of a job, for the terminal."""
    if math.isinf(options.limit):
        return "no time limit"
    return f"{options.limit:g} minutes, then it queues again"


def _resources(options: Slurm) -> str:
    """Return what a job requests, for the terminal."""
    parts = [plural(options.cpus, "core")]
    parts += [] if options.megabytes is None else [f"{options.megabytes / 1024:g} GB"]
    parts += ["1 GPU"] if options.gpus else []
    names = ("gres", "partition", "account", "qos", "constraint")
    parts += [f"{name} {value}" for name in names if (value := getattr(options, name)) is not None]
    return ", ".join([*parts, *options.sbatch])


def check_resources(compute: Mapping[str, Any], options: Slurm) -> None:
    """Raise InputError if the jobs' resources do not suit how runs are computed.

    compute: the fields of `Compute`. A GPU may also be requested by a further option of sbatch.
    """
    device, threads = compute["device"], compute["threads"]
    uses_gpu = options.uses_gpu or any(line.startswith("--gpus") for line in options.sbatch)
    if device == "mps":
        raise InputError(
            "compute.device: mps is for one machine; use cpu, cuda or auto with the engine slurm"
        )
    if device == "cuda" and not uses_gpu:
        raise InputError("slurm.gpus: 0, but compute.device is cuda; make it 1, or the device cpu")
    if device == "cpu" and options.gpus:
        raise InputError("slurm.gpus: 1, but compute.device is cpu, so the GPU would be idle; make it 0")
    if device != "cuda" and not options.gpus and options.cpus < threads:
        raise InputError(f"slurm.cpus: {options.cpus}, but compute.threads is {threads}; make them equal")


def arrays_to_wait_for(jobs: Sequence[Job], new: int, options: Slurm) -> list[str]:
    """Return the arrays that must end before `new` jobs begin, so that at most `at_once` jobs run."""
    if len(jobs) + new <= options.at_once:
        return []
    states = job_states(jobs)
    active = [job for job in jobs if not states[job.id].has_ended and job.number]
    return sorted({job.number for job in active}) if len(active) + new > options.at_once else []


def _cost(task: Task) -> float:
    """Return runs x layers x epochs. Nothing is timed, because the nodes may have other devices."""
    run = task.runs[0]
    return float(len(task.runs) * run["depth"] * run["spec"]["epochs"])


def _with_cores(task: Task, options: Slurm) -> Task:
    """Return the task with as many workers as the job has cores; the node may have more cores."""
    if task.workers is not None or options.uses_gpu:
        return task
    return replace(task, workers=max(1, options.cpus // task.compute["threads"]))


def _with_result(jobs: Sequence[Job]) -> set[str]:
    """Return the ids of jobs whose worker wrote a result. Listing a folder updates a shared disk."""
    paths = {path for name in {job.array for job in jobs} for path in (JOBS / name).glob(f"*{RESULT}")}
    return {job.id for job in jobs if job.file(RESULT) in paths}


def _worker_report(job: Job) -> dict[str, Any]:
    """Return what the worker wrote when it ended; empty without it."""
    report: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        report = json.loads(job.file(RESULT).read_text(encoding="utf-8"))
    return report


def results_of(job: Job, state: str, report: Mapping[str, Any]) -> list[TaskResult]:
    """Return the result of each task of a job: the worker's, or what Slurm's state says of the job."""
    reported = report.get("results", [])
    results: list[TaskResult] = []
    interrupted = False  # whether the task that was training when the job ended has been found
    for index, task in enumerate(job.tasks):
        if index < len(reported) and (reported[index]["state"] != "done" or not task.missing()):
            results.append(TaskResult(task, **reported[index]))
        elif index < len(reported):
            reason = f"{task.name}: trained, but not visible in {Path.cwd()}; do all nodes share this folder?"
            results.append(TaskResult(task, "refused", reason))
        elif not task.missing():
            results.append(TaskResult(task, "done"))
        elif interrupted:
            results.append(TaskResult(task, "preempted", f"{task.name}: job {job.id} ended before it began"))
        else:
            interrupted = True
            stopped = report.get("reason")
            task_state = "lost" if stopped else TASK_STATES.get(state, "lost")
            reason = f"{task.name}: job {job.id}: {stopped or _reason(job, state)}\n{log_tail(job.file(LOG))}"
            results.append(TaskResult(task, task_state, reason))
    return results


def _reason(job: Job, state: str) -> str:
    """Return why a job ended without a result."""
    refusal = _text(job.file(REFUSED)).strip()
    if refusal:
        return f"it reached its time limit and Slurm does not queue it again ({last_line(refusal)})"
    return f"{REASONS.get(state, 'it ended without a result')} ({state})"


def log_tail(path: Path) -> str:
    """Return the last lines of a log."""
    return "\n".join(_text(path).splitlines()[-LOG_LINES:]) or "it wrote no log"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
