"""Slurm: job arrays that train batches and continue without the driver.

The folder of the sweep is one that the nodes see too, with the environment that has ncpipe. A job trains its
tasks one after the other and puts finished runs into the store. Before its time limit, and when it is
preempted, it saves checkpoints and queues again.
"""

import contextlib
import functools
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncpipe.runs.engines.job_log import JobCost, digests_of, write_costs
from ncpipe.runs.engines.jobs import LOG, REFUSED, RESULT, Job, read_jobs, write_array, write_number
from ncpipe.runs.engines.options import Slurm
from ncpipe.runs.engines.slurm_commands import (
    JobState,
    Usage,
    cancel,
    check_submission,
    job_states,
    last_line,
    still_running,
    submit,
    summary,
    usages,
)
from ncpipe.runs.engines.slurm_script import batch_script, sbatch_options
from ncpipe.runs.engines.task import DryRun, State, Task, TaskResult
from ncpipe.system.artifacts import JOBS, remove
from ncpipe.system.console import say
from ncpipe.system.errors import InputError

POLL = 5.0  # seconds between two looks at the queue
SETTLED = 10.0  # seconds after which what a job has written is visible here, on a shared disk
TAIL = 15  # lines of a log that are shown
# What Slurm's states mean for the task that a job was at.
ENDS: Mapping[str, State] = {"OUT_OF_MEMORY": "memory", "PREEMPTED": "preempted"}
REASONS = {
    "BOOT_FAIL": "its node did not start",
    "CANCELLED": "it was cancelled",
    "GONE": "Slurm no longer knows how it ended",
    "NODE_FAIL": "its node failed",
    "OUT_OF_MEMORY": "it needed more memory than it had",
    "PREEMPTED": "it was preempted",
    "TIMEOUT": "it reached its time limit before it had saved",
}


class SlurmEngine:
    """Jobs of this folder, those of earlier drivers too.

    options: of what is submitted. keep_options: submit again with the options that a job had, not with these.
    """

    tries_again = True
    outlives = True

    def __init__(self, options: Slurm, keep_options: bool = False) -> None:
        self.options, self.keep_options = options, keep_options
        self.jobs = {job.id: job for job in read_jobs()}
        self._options_before: dict[str, Slurm] = {}  # of jobs that have ended, by their runs' fingerprints

    def submit(self, tasks: Sequence[Task]) -> None:
        groups = self.by_options(tasks)
        for options, own in groups:
            check_resources(own[0].compute, options)
            check_slurm(options)
        for options, own in groups:
            self._submit_array(options, own)

    def watch(self, wait: bool = True) -> Iterator[list[TaskResult]]:
        """See `Engine`. Prints a line whenever other numbers of jobs wait and run."""
        told = ""
        while self.jobs:
            jobs = list(self.jobs.values())
            states, with_result = job_states(jobs), _with_result(jobs)  # in this order
            over = [job for job in jobs if job.id in with_result or states[job.id].is_over]
            ids = {job.id for job in over}
            going = [job for job in jobs if job.id not in ids]
            if (line := summary(going, states)) != told and going:
                say(f"sweep: {line}")
                told = line
            if ids - with_result:
                time.sleep(SETTLED)
            if over:
                yield self._take(over, states)
            if not wait:
                return
            if self.jobs and not over:
                time.sleep(POLL)

    def _take(self, over: Sequence[Job], states: Mapping[str, JobState]) -> list[TaskResult]:
        """Return the results of jobs that have ended, which are recorded no more."""
        used = usages(over)
        results = [result for job in over for result in results_of(job, states[job.id].name)]
        write_costs([cost_of(job, states[job.id].name, used.get(job.id)) for job in over])
        for job in over:
            if self.keep_options:
                self._options_before |= dict.fromkeys(job.keys, job.options)
            job.forget()
            del self.jobs[job.id]
        return results

    def collect(self, result: TaskResult) -> None:
        """Do nothing: the store is on the shared disk."""

    def cancel(self) -> None:
        left, why = cancel(list(self.jobs.values()))
        self.jobs = {job.id: job for job in left}
        if left:
            say(f"sweep: {still_running(left, why)}")

    def more_memory(self, task: Task) -> Task | None:
        more = replace(task, memory_tries=task.memory_tries + 1)
        options = self._options_of(task.keys[0], task.runs[0])
        return None if options.grown(more.memory_tries) is None else more

    def _options_of(self, key: str, run: Mapping[str, Any]) -> Slurm:
        return self._options_before.get(key) or _with_rules(self.options, run["experiment"], run["depth"])

    def by_options(self, tasks: Sequence[Task]) -> list[tuple[Slurm, list[Task]]]:
        """Group tasks by what their jobs ask for, memory not grown; a task is split where its runs differ."""
        groups: dict[tuple[Slurm, int], list[Task]] = {}
        for task in tasks:
            own: dict[Slurm, list[int]] = {}
            for index, (key, run) in enumerate(zip(task.keys, task.runs, strict=True)):
                own.setdefault(self._options_of(key, run), []).append(index)
            for options, indices in own.items():
                groups.setdefault((options, task.memory_tries), []).append(task.of(indices))
        return [(options, some) for (options, _), some in groups.items()]

    def _submit_array(self, options: Slurm, tasks: Sequence[Task]) -> None:
        start = time.monotonic()
        with_cores = [_with_cores(task, options) for task in tasks]
        pieces = [[task.submitted() for task in piece] for piece in deal(with_cores, options.array)]
        before = arrays_before(list(self.jobs.values()), len(pieces), options)
        asked = options.grown(tasks[0].memory_tries) or options
        jobs = write_array(pieces, options)
        name = jobs[0].array
        try:
            arguments = sbatch_options(name, len(pieces), asked, before)
            number = submit(arguments, batch_script(name, asked))
        except InputError:
            remove(JOBS / name)
            raise
        self.jobs |= {job.id: job for job in write_number(jobs, number)}
        runs = sum(len(task.runs) for task in tasks)
        say(
            f"sweep: {runs} runs in {len(pieces)} {'task' if len(pieces) == 1 else 'tasks'} of job {number} "
            f"({time.monotonic() - start:.1f} s)"
        )


@functools.cache
def _with_rules(options: Slurm, experiment: str, depth: int) -> Slurm:
    return options.of(experiment, depth)


def check_slurm(options: Slurm) -> None:
    """Raise InputError, in one line, if Slurm would refuse such jobs or never start them."""
    arguments = sbatch_options("check", options.array, options)
    check_submission(arguments, batch_script("check", options), options.partition, options.limit)


def deal(tasks: Sequence[Task], most: int) -> list[list[Task]]:
    """Deal tasks out to at most so many jobs, in even shares of the expected cost.

    Tasks are split where there are fewer than jobs, unless they were submitted before. Where there are more,
    the most costly are dealt out first, each to the job with the least so far.
    """
    costs = [_cost(task) for task in tasks]
    whole = sum(costs)
    parts = [
        part
        for task, cost in zip(tasks, costs, strict=True)
        for part in task.in_parts(1 if task.epochs_before >= 0 else max(1, int(most * cost / whole)))
    ]
    if len(parts) <= most:
        return [[part] for part in parts]
    jobs: list[tuple[float, list[Task]]] = [(0.0, []) for _ in range(most)]
    for task in sorted(parts, key=_cost, reverse=True):
        at = min(range(most), key=lambda index: jobs[index][0])
        jobs[at][1].append(task)
        jobs[at] = (jobs[at][0] + _cost(task), jobs[at][1])
    return [job for _, job in jobs]


def dry_run(tasks: Sequence[Task], options: Slurm) -> DryRun:
    """Return what `submit` would do with these tasks. InputError if Slurm would refuse it."""
    engine = SlurmEngine(options)
    pieces: list[list[Task]] = []
    lines: list[str] = []
    unknown = ""
    for own, some in engine.by_options(tasks):
        check_resources(some[0].compute, own)
        try:
            check_slurm(own)
        except InputError as error:
            if " here; run this where you run sbatch" not in str(error):
                raise
            unknown = f"not from here: {error}"
        jobs = deal(some, own.array)
        pieces += jobs
        runs = sum(len(task.runs) for task in some)
        counted = f"{len(jobs)} {'task' if len(jobs) == 1 else 'tasks'} of a job array"
        lines += [
            f"{runs} runs to submit to Slurm: {counted}, {min(own.at_once, len(jobs))} of them at a time",
            f"a task: {_asked(own)}; {own.limit:g} minutes, then it queues again",
        ]
    lines.append("each node's device decides how many runs train side by side, in what memory and time")
    return DryRun(pieces, "tasks", [*lines, *([unknown] if unknown else [])])


def _asked(options: Slurm) -> str:
    asked = [f"{options.cpus} {'core' if options.cpus == 1 else 'cores'}"]
    asked += [] if options.megabytes is None else [f"{options.megabytes / 1024:g} GB"]
    asked += ["1 GPU"] if options.gpus else []
    names = ("gres", "partition", "account", "qos", "constraint")
    asked += [f"{name} {value}" for name in names if (value := getattr(options, name)) is not None]
    asked += [] if options.container is None else [f"in {options.container.image}"]
    return ", ".join([*asked, *options.sbatch])


def check_resources(compute: Mapping[str, Any], options: Slurm) -> None:
    """Raise InputError where what jobs get and how runs are to be computed do not go together.

    compute: the fields of `Compute`. A GPU may also be asked for by a further option of sbatch.
    """
    device, threads = compute["device"], compute["threads"]
    other = "gpu" in (options.gres or "") or any(re.match("--gpus", line) for line in options.sbatch)
    if device == "mps":
        raise InputError(
            "compute.device: mps is for one machine; use cpu, cuda or auto with the engine slurm"
        )
    if device == "cuda" and not (options.gpus or other):
        raise InputError("slurm.gpus: 0, and compute.device is cuda; make it 1, or the device cpu")
    if device == "cpu" and options.gpus:
        raise InputError("slurm.gpus: 1, and compute.device is cpu, which leaves it idle; make it 0")
    if device != "cuda" and not options.gpus and options.cpus < threads:
        raise InputError(f"slurm.cpus: {options.cpus}, and compute.threads is {threads}; make it as many")


def arrays_before(jobs: Sequence[Job], tasks: int, options: Slurm) -> list[str]:
    """Return the arrays that have to end before so many more tasks begin: no more than at_once ever run."""
    if len(jobs) + tasks <= options.at_once:
        return []
    states = job_states(jobs)
    going = [job for job in jobs if not states[job.id].is_over and job.number]
    return sorted({job.number for job in going}) if len(going) + tasks > options.at_once else []


def _cost(task: Task) -> float:
    """Return epochs times layers: nothing is measured here, where the device may be another."""
    run = task.runs[0]
    return float(len(task.runs) * run["depth"] * run["spec"]["epochs"])


def _with_cores(task: Task, options: Slurm) -> Task:
    """Return the task with the job's number of cores, since the node may have more."""
    if task.workers is not None or options.gpus or "gpu" in (options.gres or ""):
        return task
    return replace(task, workers=max(1, options.cpus // task.compute["threads"]))


def _with_result(jobs: Sequence[Job]) -> set[str]:
    """Return the ids of jobs whose worker wrote a result. Listing a folder refreshes a shared disk's view."""
    names = {path for name in {job.array for job in jobs} for path in (JOBS / name).glob(f"*{RESULT}")}
    return {job.id for job in jobs if job.file(RESULT) in names}


def results_of(job: Job, state: str) -> list[TaskResult]:
    """Return how each task of a job ended. state: Slurm's, for those of which the worker said nothing."""
    told, reason = _told(job)
    results: list[TaskResult] = []
    blamed = False  # the job's end is that of the task it was at; those behind it did not begin
    for index, task in enumerate(job.tasks):
        if index < len(told) and (told[index].state != "done" or not task.missing()):
            results.append(told[index])
        elif index < len(told):
            folder = Path.cwd()
            why = f"{task.name}: trained, but not visible in {folder}: do all nodes share it?"
            results.append(TaskResult(task, "refused", why))
        elif not task.missing():
            results.append(TaskResult(task, "done"))
        elif blamed:
            results.append(TaskResult(task, "preempted", f"{task.name}: job {job.id} ended before it began"))
        else:
            blamed = True
            how = "lost" if reason else ENDS.get(state, "lost")
            why = f"{task.name}: job {job.id}: {reason or _reason(job, state)}\n{tail(job.file(LOG))}"
            results.append(TaskResult(task, how, why))
    return results


def _told(job: Job) -> tuple[list[TaskResult], str]:
    """Return what the worker said of its first tasks, and why it trained no more."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        values = json.loads(job.file(RESULT).read_text(encoding="utf-8"))
        told = [
            TaskResult(task, each["state"], each["reason"])
            for task, each in zip(job.tasks, values["results"], strict=False)
        ]
        return told, values["reason"]
    return [], ""


def _reason(job: Job, state: str) -> str:
    refused = _text(job.file(REFUSED)).strip()
    if refused:
        return f"it reached its time limit and Slurm does not queue it again ({last_line(refused)})"
    return f"{REASONS.get(state, 'it ended without a result')} ({state})"


def cost_of(job: Job, state: str, usage: Usage | None) -> JobCost:
    """Return what a job cost: by the accounting, or else by what its worker measured of its last start."""
    own: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        own = json.loads(job.file(RESULT).read_text(encoding="utf-8"))
    if usage is None:
        options = job.options.grown(job.tasks[0].memory_tries) or job.options
        restarts, begun = own.get("restarts", 0), own.get("begun", 0.0)
        waited = max(0.0, begun - job.submitted) if own and not restarts else None  # else it ran in between
        usage = Usage(
            options.cpus, options.gpus, own.get("seconds", 0.0), waited, own.get("megabytes"),
            options.megabytes, restarts,
        )  # fmt: skip
    ended = "COMPLETED" if own and state not in ENDS else state
    keys = [key for task in job.tasks for key in task.keys]
    return JobCost(
        "slurm", job.id, ended, usage.cores, usage.gpus, usage.seconds,
        usage.waited, usage.memory_used, usage.memory_asked,
        usage.requeued, len(keys), str(job.collected_log), digests_of(keys),
    )  # fmt: skip


def tail(path: Path) -> str:
    """Return the end of a log."""
    return "\n".join(_text(path).splitlines()[-TAIL:]) or "it wrote no log"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
